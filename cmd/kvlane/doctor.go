package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/sys/cufile"
	"github.com/kvlane/kvlane/internal/sys/dl"
	"github.com/kvlane/kvlane/internal/sys/nvml"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

func newDoctorCommand() *cobra.Command {
	var asJSON bool
	var dirs, require []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Report the hardware of this machine and the available paths",
		Long: `doctor reports the means of this machine for moving KV cache: GPUs and how they are attached, RDMA devices, cuFile, io_uring, huge pages,
file systems, and the limits on memory (of cgroups too), locked memory, open files and /dev/shm. For each copy path it reports whether it is available, and if not, the reason and the remedy.

Every answer is yes, no or unknown, the last two with a reason. A GPU's path is a yes only if it was tried: doctor opens every GPU for a
moment, copies a few KiB to it and back, also by the RDMA NIC nearest to it, and has a second process map its memory by each type of
handle. It measures nothing, and reports whether kvlane calibrate has. It writes one page to each file system, to try O_DIRECT and with a
GPU cuFile, and removes it; libcufile may write its log, cufile.log.

With --require the report ends with an answer for each name, and the exit code shows whether all are available:

` + abilityTable() + `
One GPU and one of the examined file systems are enough for each. The exit code is ` + strconv.Itoa(exitMissing) + ` if something is missing, and ` + strconv.Itoa(exitUndecided) + ` if nothing is
known to be missing but something could not be determined.`,
		Example: `  kvlane doctor
  kvlane doctor --dir /mnt/nvme --require cuda,uring,direct-io
  kvlane doctor --require nic --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for i, dir := range dirs {
				abs, err := filepath.Abs(dir)
				if err != nil {
					return fmt.Errorf("resolve directory %q: %w", dir, err)
				}
				if _, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
					return usagef("--dir: %w: check the name", err)
				}
				dirs[i] = abs
			}
			o := doctor.Options{Dirs: dirs}
			for _, name := range require {
				a, err := doctor.ParseAbility(name)
				if err != nil {
					return usagef("--require: %w", err)
				}
				o.Require = append(o.Require, a)
			}
			r := doctor.Examine(cmd.Context(), doctor.Local(askCUDA, askCuFile, loadable), o)
			write := r.WriteText
			if asJSON {
				write = func(io.Writer) error { return writeJSON(cmd, r) }
			}
			if err := write(cmd.OutOrStdout()); err != nil {
				return err
			}
			return missing(r.Required)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().StringArrayVar(&dirs, "dir", nil, "examine only the file system of this directory; repeatable")
	cmd.Flags().StringSliceVar(&require, "require", nil, "abilities that this machine must have, separated by commas; see above")
	return cmd
}

func abilityNames() []string {
	var names []string
	for _, a := range doctor.Abilities() {
		names = append(names, a.Name)
	}
	return names
}

// abilityTable lists the names that --require accepts, one per line.
func abilityTable() string {
	var b strings.Builder
	for _, a := range doctor.Abilities() {
		fmt.Fprintf(&b, "  %-14s %s\n", a.Name, a.What)
	}
	return b.String()
}

// missing returns an error that lists the required names whose answer is not yes, or nil. Its exit
// code is exitMissing or exitUndecided.
func missing(required []doctor.Path) error {
	var no, unknown []string
	for i := range required {
		switch p := &required[i]; p.Available.Answer {
		case doctor.Yes:
		case doctor.No:
			no = append(no, p.Name)
		default:
			unknown = append(unknown, p.Name)
		}
	}
	var text []string
	if len(no) > 0 {
		text = append(text, "required and not available: "+strings.Join(no, ", "))
	}
	if len(unknown) > 0 {
		text = append(text, "required, and could not be determined: "+strings.Join(unknown, ", "))
	}
	switch {
	case len(no) > 0:
		return &codedError{code: exitMissing, err: errors.New(strings.Join(text, "; "))}
	case len(unknown) > 0:
		return &codedError{code: exitUndecided, err: errors.New(strings.Join(text, "; "))}
	}
	return nil
}

// writeJSON prints v as one indented JSON object.
func writeJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// loadable returns an error if a library cannot be loaded.
func loadable(name string) error {
	l, err := dl.Open(name)
	if err != nil {
		return err
	}
	return l.Close()
}

// askCUDA opens each device of the driver and tests its copy paths.
func askCUDA(ctx context.Context) (doctor.CUDA, error) {
	drv, err := cuda.Load()
	if err != nil {
		return doctor.CUDA{}, err
	}
	n, err := drv.Count()
	if err != nil {
		return doctor.CUDA{}, err
	}
	c := doctor.CUDA{Version: drv.Version()}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return c, context.Cause(ctx)
		}
		c.Devices = append(c.Devices, askDevice(ctx, drv, i))
	}
	c.Peers = askPeers(c.Devices)
	return c, nil
}

func askDevice(ctx context.Context, drv *cuda.Driver, index int) doctor.CUDADevice {
	dev, err := drv.Open(index, cuda.Options{})
	if err != nil {
		return doctor.CUDADevice{Info: device.Info{Index: index, NUMANode: -1}, Err: err}
	}
	d := doctor.CUDADevice{
		Info: dev.Info(), Probe: doctor.ProbeDevice(ctx, dev, openPath), Profile: askProfile(dev), NIC: askNIC(ctx, dev),
		DMABuf: doctor.ProbeDMABuf(dev), Sharing: askSharing(ctx, dev),
	}
	if err := dev.Close(); err != nil {
		d.Err = fmt.Errorf("close the device: %w", err)
	}
	return d
}

// cuFileReasons is the maximum number of lines shown from libcufile's log.
const cuFileReasons = 5

// askCuFile tests cuFile on the first GPU.
func askCuFile(ctx context.Context, dirs []string) doctor.CuFileProbe {
	drv, err := cuda.Load()
	if err != nil {
		return doctor.CuFileProbe{Err: err}
	}
	dev, err := drv.Open(0, cuda.Options{})
	if err != nil {
		return doctor.CuFileProbe{Err: err}
	}
	p := doctor.ProbeStorage(ctx, dev, dirs)
	p.Err = errors.Join(p.Err, dev.Close())
	p.LogFile = cufile.LogFile()
	p.Log = cufile.LogReasons(p.LogFile, os.Getpid(), cuFileReasons)
	return p
}

// askProfile reports whether a profile of the device's copy paths is stored. Without a profile,
// built-in values are used to choose paths.
func askProfile(dev device.Device) doctor.Finding {
	c, err := profile.Stored(dev, "")
	switch {
	case err == nil:
		return doctor.Finding{Answer: doctor.Yes, Reason: c.File}
	case errors.Is(err, errdefs.ErrNotFound):
		return doctor.Finding{Answer: doctor.No, Reason: "no profile is stored for this GPU, driver, link and kernels", Remedy: "run kvlane calibrate; or the next run with calibrate once measures"}
	}
	return doctor.Finding{Answer: doctor.Unknown, Reason: err.Error(), Remedy: "kvlane calibrate --force"}
}

// askNIC tests copies by NICs of the device. The finding has the names of the NICs and the reasons
// for their selection.
func askNIC(ctx context.Context, dev device.Device) doctor.Finding {
	nics, err := gdr.Open(dev, gdr.Config{}, nil)
	if err != nil {
		return nicFinding(nil, err)
	}
	err = doctor.ProbeNICs(ctx, dev, nics, stream.PathNIC)
	ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
	defer cancel()
	return nicFinding(nics.Choices(), errors.Join(err, nics.Close(ctx)))
}

func nicFinding(nics []gdr.Choice, err error) doctor.Finding {
	if err != nil {
		f := doctor.Answered(err, "an RDMA NIC with an active port, rdma-core, and a kernel through which the NIC reaches the GPU's memory (dma-buf, or nvidia_peermem)")
		if errors.Is(err, errdefs.ErrBroken) || errors.Is(err, errdefs.ErrNotFound) {
			f.Answer = doctor.No // no NIC, or no active port
		}
		return f
	}
	var why []string
	for _, n := range nics {
		why = append(why, n.Name+" ("+n.Reason+")")
	}
	return doctor.Finding{Answer: doctor.Yes, Reason: strings.Join(why, ", ")}
}

func openPath(dev device.Device, path stream.Path) (stream.Stream, error) {
	return streamcopy.Open(dev, streamcopy.Options{Path: path})
}

// askPeers reports the access and the link for each ordered pair of devices.
func askPeers(devices []doctor.CUDADevice) []doctor.Peer {
	if len(devices) < 2 {
		return nil
	}
	lib, loadErr := nvml.Load()
	var peers []doctor.Peer
	for i := range devices {
		for j := range devices {
			if i == j {
				continue
			}
			p := doctor.Peer{From: devices[i].Info.Index, To: devices[j].Info.Index}
			nvlink, err := false, loadErr
			if err == nil {
				nvlink, err = lib.Peer(devices[i].Info.PCI, devices[j].Info.PCI)
			} else {
				// Without the library the answer is Unknown. A new error is needed because Answered
				// returns No for ErrNotSupported.
				err = errors.New(err.Error())
			}
			p.Access = doctor.Answered(err, "")
			if nvlink {
				p.Link = "NVLink"
			} else if err == nil {
				p.Link = "PCIe"
			}
			peers = append(peers, p)
		}
	}
	if loadErr == nil {
		if err := lib.Close(); err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
			for i := range peers {
				peers[i].Access.Reason += " (" + err.Error() + ")"
			}
		}
	}
	return peers
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/rdmabench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// NICs in software are measured only where they are named, and apart from everything else.
func TestBenchCopyByNICsInSoftware(t *testing.T) {
	args := tinyBench("--json", "--rdma-provider", "soft", "--nic", "soft0,soft1", "--rdma-queue-pairs", "2", "--charts", t.TempDir())
	for i, a := range args {
		if a == "--paths" {
			args[i+1] = "auto,nic-soft,nic-soft-channel,nic,nic-channel"
		}
	}
	charts := args[len(args)-1]
	code, stdout, stderr := execute(t, args...)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if len(r.Points) != 4 || len(r.Soft) != 8 || len(r.Setup.NICs) != 2 || !strings.Contains(r.Setup.NICs[1], "soft1 (in software)") {
		t.Errorf("%d points, %d of NICs in software, NICs %q", len(r.Points), len(r.Soft), r.Setup.NICs)
	}
	for _, p := range r.Soft {
		if p.Path != "nic-soft" && p.Path != "nic-soft-channel" || p.GBps <= 0 || p.Path == "nic-soft" && p.Traveled != "nic-soft" {
			t.Errorf("point %+v", p)
		}
	}
	if len(r.Missing) != 2 || !strings.Contains(r.Missing[0].Reason, "without --rdma-provider soft") {
		t.Errorf("missing %+v", r.Missing)
	}
	if _, err := os.Stat(filepath.Join(charts, "nic-soft-scattered.svg")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(charts, "nic-scattered.svg")); err == nil {
		t.Error("NICs in software have a chart of NICs")
	}
}

// Where nothing asks for NICs in software there are none, and what is missing of NICs is said.
func TestBenchCopyWithoutNICs(t *testing.T) {
	code, stdout, stderr := execute(t, tinyBench("--json", "--paths", "auto,nic-soft,nic-soft-channel,nic,nic-channel")...)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if len(r.Soft) != 0 || len(r.Missing) < 2 {
		t.Errorf("%d points of NICs in software, missing %+v", len(r.Soft), r.Missing)
	}
}

func TestBenchNICFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"copy: provider":      {tinyBench("--rdma-provider", "fpga", "--paths", "nic"), exitUsage, []string{`"fpga"`}},
		"copy: no such NIC":   {tinyBench("--rdma-provider", "soft", "--nic", "soft7", "--paths", "nic-soft"), exitFailure, []string{`"soft7"`, "soft0"}},
		"copy: named NIC":     {tinyBench("--nic", "no-such-nic", "--paths", "nic"), exitFailure, []string{"open NICs"}},
		"copy: port":          {tinyBench("--rdma-provider", "soft", "--rdma-port", "3", "--paths", "nic-soft"), exitUsage, []string{"port 3: it has ports 1 to 1"}},
		"rdma: device":        {[]string{"bench", "rdma", "--device", "auto"}, exitUsage, []string{`"auto"`, "none, cuda or sim"}},
		"rdma: size":          {[]string{"bench", "rdma", "--sizes", "big"}, exitUsage, []string{`"big"`}},
		"rdma: sizes":         {[]string{"bench", "rdma", "--sizes", "0,2GiB", "--iterations", "0"}, exitUsage, []string{"0 bytes", "2147483648 bytes", "0 iterations"}},
		"rdma: two NICs":      {[]string{"bench", "rdma", "--rdma-provider", "soft", "--nic", "soft0,soft1"}, exitUsage, []string{"one is measured"}},
		"rdma: no such NIC":   {[]string{"bench", "rdma", "--rdma-provider", "soft", "--nic", "soft7"}, exitFailure, []string{`"soft7"`}},
		"rdma: configuration": {[]string{"bench", "rdma", "--rdma-provider", "x", "--rdma-port", "-1", "--rdma-gid-index", "-7", "--rdma-mtu", "9"}, exitUsage, []string{`"x"`, "port -1", "GID index -7", "MTU 9"}},
		"rdma: GID":           {[]string{"bench", "rdma", "--rdma-provider", "soft", "--rdma-gid-index", "70"}, exitUsage, []string{"70"}},
		"rdma: arguments":     {[]string{"bench", "rdma", "mlx5_0"}, exitUsage, []string{"mlx5_0"}},
		"rdma: no such GPU":   {[]string{"bench", "rdma", "--rdma-provider", "soft", "--device", "sim", "--device-index", "3"}, exitFailure, []string{"device 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d; standard error %q", code, c.code, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not on standard error: %q", want, stderr)
				}
			}
		})
	}
}

func TestBenchRDMA(t *testing.T) {
	for _, device := range []string{"none", "sim"} {
		args := []string{"bench", "rdma", "--rdma-provider", "soft", "--device", device, "--sizes", "64,4KiB", "--iterations", "50"}
		code, stdout, stderr := execute(t, args...)
		if code != exitOK || !strings.Contains(stdout, "provider soft") || !strings.Contains(stdout, "no figures of a NIC") || strings.Contains(stdout, "SIMULATED") != (device == "sim") {
			t.Fatalf("%s: exit code %d, standard error %q, output:\n%s", device, code, stderr, stdout)
		}
		code, stdout, stderr = execute(t, append(args, "--json")...)
		var r rdmabench.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
			t.Fatalf("%s: exit code %d, %v, standard error %q", device, code, err, stderr)
		}
		if r.Provider != "soft" || r.NIC != "soft0" || len(r.Bandwidth) != 6 || len(r.Latency) != 6 || r.Command == "" || r.Reason == "" || (r.Remote == "device") != (device == "sim") {
			t.Errorf("%s: %+v", device, r)
		}
	}
}

// What a NIC or a driver calls invalid as it works is a failure, and no wrong command line.
func TestDefectErrorOfANICIsWrongUsage(t *testing.T) {
	for name, err := range map[string]error{
		"call":    rdma.NewError("ibv_modify_qp", "qp=7", syscall.EINVAL, ""),
		"posting": rdma.NewPostError("ibv_post_send", "", syscall.EINVAL, ""),
		"request": &rdma.WCError{Status: rdma.WCRemAccessErr},
		"driver":  &device.Error{Call: "cuMemcpyAsync", Code: 1, Kind: errdefs.ErrInvalid},
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v is not what this is about", name, err)
		}
		var usage *usageError
		if errors.As(asUsage(fmt.Errorf("measure: %w", errors.Join(err, errdefs.ErrClosed))), &usage) {
			t.Errorf("%s: %v is taken for a wrong command line", name, err)
		}
	}
	var usage *usageError
	if !errors.As(asUsage(fmt.Errorf("open: %w", errdefs.ErrInvalid)), &usage) {
		t.Error("what is asked for wrongly is no wrong command line")
	}
}

// Absurd numbers of the benchmark of NICs are wrong usage too.
func TestDefectAbsurdNumbersOfNICsAreWrongUsage(t *testing.T) {
	for flag, c := range map[string][2]string{
		"--iterations": {"9223372036854775807", "1 to 1048576"},
		"--sizes":      {"8000000TiB", "1 to 1073741824"},
	} {
		code, stdout, stderr := execute(t, "bench", "rdma", "--rdma-provider", "soft", flag, c[0])
		if code != exitUsage || !strings.Contains(stderr, c[1]) || stdout != "" {
			t.Errorf("%s: exit code %d, want %q:\n%s", flag, code, c[1], stderr)
		}
	}
}

// Where there is no library, what to install is said.
func TestDefectBenchRDMASaysWhatToInstall(t *testing.T) {
	r := doctor.Examine(t.Context(), doctor.Local(askCUDA, askCuFile, loadable), doctor.Options{Dirs: []string{t.TempDir()}})
	if code, _, stderr := execute(t, "bench", "rdma"); r.RDMA.Library.Answer == doctor.No && (code != exitFailure || !strings.Contains(stderr, "install rdma-core")) {
		t.Errorf("without libibverbs: exit code %d: %s", code, stderr)
	}
}

// keeping is a NIC that refuses memory and keeps a part of it until it is no longer stuck.
type keeping struct {
	stuck error
	taken int
}

func (k *keeping) Register(...*mem.Region) error { return errdefs.ErrNoMemory }

func (k *keeping) Unregister(_ context.Context, regions ...*mem.Region) error {
	if k.stuck != nil {
		return k.stuck
	}
	for _, r := range regions {
		k.taken++
		clear(r.Bytes()) // which is there still
	}
	return nil
}

// What a registration that failed could not undo is taken back before the memory is freed, which stays where that fails too.
func TestDefectMemoryIsFreedWhereANICKeepsIt(t *testing.T) {
	b, k := benchRDMA{bytes: []int64{4096}}, &keeping{stuck: errdefs.ErrBusy}
	if _, _, err := b.memory(nil, k); !errors.Is(err, errdefs.ErrNoMemory) {
		t.Fatal(err)
	}
	if err := b.rig.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("closed while the NIC has the memory: %v", err)
	}
	k.stuck = nil
	if err := b.rig.Close(); err != nil || k.taken != 2 {
		t.Errorf("%v; %d regions were taken back, want 2", err, k.taken)
	}
}

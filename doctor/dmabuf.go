package doctor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// ProbeDMABuf exports memory of dev as a dma-buf for NICs. If that works, its Reason describes
// whether NIC writes must be flushed.
func ProbeDMABuf(dev device.Device) Finding {
	f := Answered(exportOnce(dev), "the open kernel modules of the NVIDIA driver and Linux 5.12; without, NICs need nvidia_peermem")
	if f.Answer == Yes {
		f.Reason = flushText(dev)
	}
	return f
}

func exportOnce(dev device.Device) (err error) {
	x, ok := dev.(device.DMABufExporter)
	if !ok {
		return fmt.Errorf("this device exports no memory: %w", errdefs.ErrNotSupported)
	}
	r, err := dev.Alloc(probeBytes, device.AllocOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Free(r)) }()
	fd, _, err := x.ExportDMABuf(mem.All(r))
	if err != nil {
		return err
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close dma-buf: %w", err)
	}
	return nil
}

func flushText(dev device.Device) string {
	f, ok := dev.(device.RemoteWriteFlusher)
	if !ok {
		return ""
	}
	needs, err := f.NeedsFlush()
	switch {
	case err != nil:
		return "NICs' writes may become visible late: " + err.Error()
	case needs:
		return "NICs' writes are flushed before they are reported"
	}
	return "NICs' writes are visible without a flush"
}

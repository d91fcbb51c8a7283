package doctor

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// exporter is a simulated device that exports files, or returns err.
type exporter struct {
	*sim.Device
	err      error
	needs    bool
	needsErr error
}

func (x *exporter) ExportDMABuf(mem.Extent) (fd int, off int64, err error) {
	if x.err != nil {
		return -1, 0, x.err
	}
	fd, err = unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	return fd, 0, err
}

func (x *exporter) NeedsFlush() (bool, error) { return x.needs, x.needsErr }

func TestProbeDMABuf(t *testing.T) {
	for name, tt := range map[string]struct {
		exporter
		answer Answer
		want   string
	}{
		"seen at once": {exporter{}, Yes, "without a flush"},
		"flushed":      {exporter{needs: true}, Yes, "are flushed"},
		"visible late": {exporter{needs: true, needsErr: errors.New("no way")}, Yes, "late: no way"},
		"not there":    {exporter{err: errdefs.ErrNotSupported}, No, errdefs.ErrNotSupported.Error()},
		"fails":        {exporter{err: errdefs.ErrNoMemory}, Unknown, errdefs.ErrNoMemory.Error()},
	} {
		dev, err := sim.Open(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		x := tt.exporter
		x.Device = dev
		if f := ProbeDMABuf(&x); f.Answer != tt.answer || !strings.Contains(f.Reason, tt.want) || (f.Remedy == "") != (tt.answer == Yes) {
			t.Errorf("%s: %+v", name, f)
		}
		var plain device.Device = dev
		if f := ProbeDMABuf(plain); f.Answer != No {
			t.Errorf("a device without exports: %+v", f)
		}
		if err := dev.Close(); err != nil {
			t.Errorf("%s: something is left: %v", name, err)
		}
	}
}

package doctor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

func openCopy(dev device.Device, path stream.Path) (stream.Stream, error) {
	return streamcopy.Open(dev, streamcopy.Options{Path: path, StagingBytes: 1 << 20})
}

// probe probes a simulated device with the given faults. Closing the device fails if the probe has
// left memory or queues.
func probe(t *testing.T, plan *fault.Plan, open Opener) Probe {
	t.Helper()
	dev, err := sim.Open(sim.Options{MemoryBytes: 64 << 20, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	p := ProbeDevice(t.Context(), dev, open)
	if err := dev.Close(); err != nil {
		t.Errorf("after the probe: %v", err)
	}
	return p
}

func TestProbeOfWorkingDevice(t *testing.T) {
	if p := probe(t, nil, openCopy); p != allYes() {
		t.Errorf("probe %+v, want yes to all", p)
	}
}

func TestProbeOfMissingPathIsNo(t *testing.T) {
	p := probe(t, nil, func(dev device.Device, path stream.Path) (stream.Stream, error) {
		if path == stream.PathStaged {
			return nil, fmt.Errorf("the device runs no kernels: %w", errdefs.ErrNotSupported)
		}
		return openCopy(dev, path)
	})
	if p.Staged.Answer != No || p.Staged.Remedy == "" || p.Kernel.Answer != Yes {
		t.Errorf("probe %+v", p)
	}
}

// A path that copies wrong bytes is not available, but because it exists the answer is Unknown
// instead of No.
func TestProbeComparesBytes(t *testing.T) {
	p := probe(t, fault.New(1, fault.Every(sim.OpLaunch, 1).Corrupt()), openCopy)
	if p.Kernel.Answer != Unknown || !strings.Contains(p.Kernel.Reason, "read back wrong bytes") {
		t.Errorf("kernel: %+v", p.Kernel)
	}
	if p.CopyEngine.Answer != Yes {
		t.Errorf("copy engine: %+v", p.CopyEngine)
	}
}

// If any operation fails, at least one answer is not Yes, and nothing stays allocated.
func TestProbeReportsEveryFailure(t *testing.T) {
	for _, op := range []string{sim.OpAlloc, sim.OpAllocHost, sim.OpOpen, sim.OpWork, sim.OpRecord, sim.OpCallCopy, sim.OpCallBatch, sim.OpCallLaunch} {
		for n := 0; ; n++ {
			plan := fault.New(1, fault.Nth(op, n).Fail(nil))
			p := probe(t, plan, openCopy)
			bad := 0
			for _, a := range p.abilities() {
				if a.found.Answer != Yes {
					bad++
				}
			}
			if plan.Injected() == 0 {
				if bad != 0 || n == 0 {
					t.Errorf("%s: %d faults, and without one %+v", op, n, p)
				}
				break
			}
			if bad != 1 {
				t.Errorf("%s %d failed: %d paths report it", op, n, bad)
			}
		}
	}
}

func TestAnswered(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Answer
	}{
		{nil, Yes},
		{fmt.Errorf("x: %w", errdefs.ErrNotSupported), No},
		{errors.New("x"), Unknown},
	} {
		f := Answered(c.err, "do this")
		if f.Answer != c.want || (f.Remedy == "") != (c.want == Yes) {
			t.Errorf("%v: %+v", c.err, f)
		}
	}
}

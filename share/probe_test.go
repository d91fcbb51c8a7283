package share_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// gpu is a simulated device with the handles of a GPU on a host without an IMEX channel. The calls
// for fabric handles exist, but allocation of memory for them is not permitted.
type gpu struct {
	*sim.Device
	types []device.HandleType
}

func (g gpu) HandleTypes() []device.HandleType { return g.types }

func (g gpu) Alloc(n int64, o device.AllocOptions) (*mem.Region, error) {
	if o.Handle == device.HandleFabric {
		return nil, &device.Error{Call: "cuMemCreate", Code: 800, Name: "CUDA_ERROR_NOT_PERMITTED", Kind: errdefs.ErrNotSupported}
	}
	return g.Device.Alloc(n, o)
}

// TestRequirement1ProbeByDoing checks that Probe tries each type, that the best working type is
// chosen, and that the reasons of failures are returned.
func TestRequirement1ProbeByDoing(t *testing.T) {
	dev := gpu{simDevice(t, sim.Options{}), []device.HandleType{device.HandleFabric, device.HandlePosixFD, device.HandleCUDAIPC, device.HandleMemFD}}
	for name, peer := range map[string]func(context.Context) *exec.Cmd{
		"in one process": nil, "with a second": func(ctx context.Context) *exec.Cmd { return command(ctx, "probe") },
	} {
		found := share.Probe(t.Context(), dev, share.ProbeOptions{Peer: peer})
		if len(found) != 4 || found[3].Err != nil {
			t.Fatalf("%s: %v", name, found)
		}
		if err := found[0].Err; !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_PERMITTED (800)") {
			t.Errorf("%s: fabric: %v", name, err)
		}
		// Without a second process the result for cuda-ipc is inconclusive.
		if err := found[2].Err; err == nil || errors.Is(err, errdefs.ErrNotSupported) != (peer != nil) {
			t.Errorf("%s: cuda-ipc: %v", name, err)
		}
		a, err := share.NewAllocator(dev, found)
		must(t, err)
		if a.Type() != device.HandleMemFD {
			t.Errorf("%s: chosen: %s", name, a.Type())
		}
		r, err := a.Alloc(100)
		must(t, err)
		s := serve(t, share.Options{})
		e, err := s.Export(dev, r)
		must(t, err)
		must(t, errors.Join(withdraw(e), dev.Free(r)))
		if f := share.ProbeHost(t.Context(), dev, share.ProbeOptions{Peer: peer}); f.Err != nil {
			t.Errorf("%s: host memory: %v", name, f.Err)
		}
		if f := share.ProbeHost(t.Context(), nil, share.ProbeOptions{Peer: peer}); f.Err != nil {
			t.Errorf("%s: pageable memory: %v", name, f.Err)
		}
	}
	_, err := share.NewAllocator(dev, share.Probe(t.Context(), gpu{dev.Device, dev.types[:1]}, share.ProbeOptions{}))
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "fabric: ") {
		t.Errorf("probe with no working handle type: %v", err)
	}
	silent := share.ProbeOptions{Peer: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "true") }}
	if f := share.Probe(t.Context(), dev, silent)[3]; f.Err == nil || errors.Is(f.Err, errdefs.ErrNotSupported) {
		t.Errorf("a second process that prints nothing: %v", f.Err)
	}
}

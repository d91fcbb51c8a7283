package gdr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is a simulated device with software NICs that are handled like hardware NICs, and memory
// registered with them.
type rig struct {
	nics      *NICs
	host, gpu *mem.Region
}

func newRig(t *testing.T, o sim.Options) *rig {
	t.Helper()
	dev, err := sim.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, dev.Close()) })
	r := new(rig)
	if r.nics, err = open(dev, Config{Provider: Soft}, nil, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, r.nics.Close(context.Background())) })
	const bytes = 64 << 10
	var herr, gerr error
	r.host, herr = dev.AllocHost(bytes)
	r.gpu, gerr = dev.Alloc(bytes, device.AllocOptions{})
	if err := errors.Join(herr, gerr, r.nics.Register(r.host, r.gpu)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed(t, errors.Join(r.nics.Unregister(context.Background(), r.host, r.gpu), dev.Free(r.host), dev.Free(r.gpu)))
	})
	return r
}

func closed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// copy copies all of a region with its own stream.
func (r *rig) copy(t *testing.T, dst, src *mem.Region) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	s, err := r.nics.OpenStream()
	if err != nil {
		return err
	}
	ticket, err := s.Submit(ctx, &mem.Batch{Dst: []mem.Extent{mem.All(dst)}, Src: []mem.Extent{mem.All(src)}})
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if cerr := s.Close(ctx); err == nil {
		err = cerr
	}
	return err
}

// TestDefectGPUWritesNotFlushed checks copies to a device whose driver requires a flush. They are
// flushed before they complete, and fail if the flush fails. Copies from the device need no flush.
func TestDefectGPUWritesNotFlushed(t *testing.T) {
	for _, needed := range []bool{false, true} {
		plan := fault.New(1)
		r := newRig(t, sim.Options{Faults: plan, RemoteWritesNeedFlush: needed})
		if err := r.copy(t, r.host, r.gpu); err != nil || plan.Seen(sim.OpFlush) != 0 {
			t.Errorf("from the device: %v, %d flushes", err, plan.Seen(sim.OpFlush))
		}
		if err := r.copy(t, r.gpu, r.host); err != nil || plan.Seen(sim.OpFlush) > 0 != needed {
			t.Errorf("to the device, flush needed %v: %v, %d flushes", needed, err, plan.Seen(sim.OpFlush))
		}
		plan.Add(fault.After(sim.OpFlush, 0).Fail(nil))
		if err := r.copy(t, r.gpu, r.host); errors.Is(err, fault.ErrInjected) != needed {
			t.Errorf("a copy whose flush fails, needed %v: %v", needed, err)
		}
		plan.Clear()
	}
}

// TestDefectNoDMABufRegistration checks that memory is registered as a dma-buf if the device
// exports it. The reason of the choice reports which method was used.
func TestDefectNoDMABufRegistration(t *testing.T) {
	for exports, want := range map[bool]string{true: "by " + registry.MethodDMABuf.String(), false: "by " + registry.MethodPeerMemory.String() + " ("} {
		r := newRig(t, sim.Options{DMABufs: exports})
		if why := r.nics.Choices()[0].Reason; !strings.Contains(why, want) {
			t.Errorf("exports %v: NIC %q, want %q", exports, why, want)
		}
		if err := errors.Join(r.copy(t, r.gpu, r.host), r.copy(t, r.host, r.gpu)); err != nil {
			t.Errorf("exports %v: %v", exports, err)
		}
	}
}

// TestDefectDeviceForTransfers checks that transfers use the open NICs instead of opening them
// again with further descriptors and goroutines.
func TestDefectDeviceForTransfers(t *testing.T) {
	plan := fault.New(1)
	p, err := soft.New(soft.Options{Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closed(t, p.Close()) }()
	n := &NICs{closes: unwind.New()}
	defer func() { closed(t, n.Close(context.Background())) }()
	if err := n.openNICs(p, &device.Info{NUMANode: -1}, nil, false); err != nil {
		t.Fatal(err)
	}
	nics, err := n.Transfers()
	if err != nil {
		t.Fatal(err)
	}
	d, err := nics.Use()
	if err != nil {
		t.Fatal(err)
	}
	if opened := plan.Seen(soft.OpOpen); opened != 1 {
		t.Errorf("the NIC was opened %d times, want 1", opened)
	}
	closed(t, d.Close())
}

// A request for a missing NIC leaves nothing open. TestMain checks that.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		Config
		want error
	}{
		"an unknown provider": {Config{Provider: "smartnic"}, errdefs.ErrInvalid},
		"no such NIC":         {Config{Provider: Soft, NICs: []string{"soft7"}}, errdefs.ErrNotFound},
	} {
		if n, err := Open(nil, c.Config, nil); n != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// retrying is a provider with a fixed number of connection retries.
type retrying struct {
	rdma.Provider
	retries map[string]int64
}

func (p retrying) ConnectRetries(device string) int64 { return p.retries[device] }

// The statistics of each NIC include the provider's connection retries, also those of transfers,
// and also after Close.
func TestDefectConnectionIsTriedAgainInSilence(t *testing.T) {
	p, err := soft.New(soft.Options{Devices: make([]soft.DeviceOptions, 2)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, p.Close()) })
	n := &NICs{cfg: Config{Provider: Soft, Count: 2}, closes: unwind.New()}
	if err := n.openNICs(retrying{p, map[string]int64{"soft0": 3, "soft1": 4}}, &device.Info{NUMANode: -1}, nil, false); err != nil {
		t.Fatal(err)
	}
	transfers, err := n.Transfers()
	if err != nil || transfers.ConnectRetries() != 7 {
		t.Errorf("%d retries of transfers, want 7; %v", transfers.ConnectRetries(), err)
	}
	closed(t, n.Close(context.Background()))
	for i, s := range n.Stats() {
		if s.ConnectRetries != int64(3+i) {
			t.Errorf("%+v, want %d retries", s, 3+i)
		}
	}
}

// A refusal by NICs is distinguished from a wrong call, whether or not the registration could be
// undone.
func TestDefectFailureToUndoPassesForARefusal(t *testing.T) {
	stuck, wrong := rdma.NewError("ibv_dereg_mr", "", unix.EIO, ""), rdma.NewError("ibv_reg_mr", "", unix.EINVAL, "")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{wrong, true},
		{&registry.LeftError{Err: wrong, Left: stuck}, true},
		{errdefs.ErrExists, false},
		{&registry.LeftError{Err: errdefs.ErrExists, Left: stuck}, false},
	} {
		if got := Refused(fmt.Errorf("register: %w", c.err)); got != c.want {
			t.Errorf("%v: refused %t, want %t", c.err, got, c.want)
		}
	}
}

package nic_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestEveryVerbFails fails operation N of each verb and of each request, on two NICs with two queue
// pairs each. Every failure must be reported, every ticket must resolve, every ticket without an
// error must have copied its bytes, and no resource may be left.
func TestEveryVerbFails(t *testing.T) {
	for _, op := range []string{
		soft.OpOpen, soft.OpQueryPort, soft.OpQueryGID, soft.OpAllocPD, soft.OpCreateChannel, soft.OpCreateCQ, soft.OpRegMR, soft.OpCreateQP,
		soft.OpModifyQP, soft.OpPostSend, soft.OpPoll, soft.OpNotify, soft.OpWaitChannel, soft.OpWaitEvent, soft.OpClose, soft.OpWrite,
		soft.OpRead,
	} {
		t.Run(op, func(t *testing.T) {
			limit := 0 // limit for operations whose number depends on scheduling
			if op == soft.OpPoll || op == soft.OpNotify || op == soft.OpWaitChannel {
				limit = 10
			}
			sweep(t, op, limit)
		})
	}
}

func sweep(t *testing.T, op string, limit int) {
	t.Helper()
	if limit == 0 {
		testkit.Sweep(t, op, errdefs.ErrNoMemory, func(t *testing.T, plan *fault.Plan) error { t.Helper(); return useAll(t, plan) })
		return
	}
	for n := range limit {
		plan := fault.New(uint64(n), fault.Nth(op, n).Fail(errdefs.ErrNoMemory))
		err := useAll(t, plan)
		if lost := plan.Unreported(err); len(lost) > 0 {
			t.Fatalf("%v was not reported; reported: %v", lost[0], err)
		}
		if n == 0 && plan.Injected() == 0 {
			t.Fatalf("no operation %q happened", op)
		}
	}
}

// useAll uses all functions of a stream and returns the joined errors of all calls.
func useAll(t *testing.T, plan *fault.Plan) (all error) {
	t.Helper()
	failed := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	twice := func(close func() error) { // twice closes and retries once if the first attempt fails
		if failed(close()) {
			failed(close())
		}
	}
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeOK(t, dev)
	mover := newCopyMover(dev)
	defer mover.close()
	prov, err := soft.New(soft.Options{Mover: mover, Faults: plan, Devices: make([]soft.DeviceOptions, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer twice(prov.Close)
	set := registry.NewDevices(prov).NewSet(registry.Options{})
	defer twice(set.Close)
	o := nic.Options{QueuePairs: 2, StripeBytes: 1024, SendDepth: 8}
	var nics []*registry.Registry
	for _, name := range []string{"soft0", "soft1"} {
		n, err := set.NIC(name)
		if failed(err) {
			return all
		}
		nics = append(nics, n)
		o.NICs = append(o.NICs, nic.NIC{Registry: n})
	}
	const n = 80
	var regions [3]*mem.Region // from the first to the second, which is device memory, to the third
	for i := range regions {
		if i == 1 {
			regions[i], err = dev.Alloc(n*9, device.AllocOptions{})
		} else {
			regions[i], err = dev.AllocHost(n * 9)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := dev.Free(regions[i]); err != nil {
				t.Error(err)
			}
		}()
	}
	defer twice(func() error { return registry.Unregister(deadline(t), nics, regions[:]...) })
	if failed(registry.Register(nics, rdma.MROptions{Access: nic.Access}, regions[:]...)) {
		return all
	}
	s, err := nic.Open(o)
	if failed(err) {
		return all
	}
	defer twice(func() error { return s.Close(deadline(t)) })
	copyBoth(t, s, regions, n, failed)
	return all
}

// copyBoth copies bytes to the device and back.
func copyBoth(t *testing.T, s *nic.Stream, regions [3]*mem.Region, n int, failed func(error) bool) {
	t.Helper()
	src, gpu, dst := regions[0], regions[1], regions[2]
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}
	for _, size := range []int{1, n} {
		clear(dst.Bytes())
		there, back := streamtest.Strided(gpu, src, size, 8), streamtest.Strided(dst, gpu, size, 8)
		first, err := s.Submit(deadline(t), there)
		if failed(err) {
			continue
		}
		ticket, err := s.Submit(deadline(t), back)
		failed(first.Wait(deadline(t)))
		if failed(err) || failed(ticket.Wait(deadline(t))) {
			continue
		}
		for i := range back.Dst {
			if !bytes.Equal(back.Dst[i].Bytes(), there.Src[i].Bytes()) {
				t.Fatalf("the tickets succeeded, and copy %d of %d did not happen", i, size)
			}
		}
	}
}

func noLateWrites(t *testing.T, r *mem.Region) {
	t.Helper()
	sentinel := bytes.Repeat([]byte{0xa5}, int(r.Len()))
	copy(r.Bytes(), sentinel)
	time.Sleep(5 * time.Millisecond)
	if !bytes.Equal(r.Bytes(), sentinel) {
		t.Error("memory was written after its ticket had resolved")
	}
}

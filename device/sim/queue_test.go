package sim_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// TestKernelsFindBadAddresses launches kernels with arguments that are detected as wrong only when
// they run.
func TestKernelsFindBadAddresses(t *testing.T) {
	// errors of the device, or of the kernel
	const illegal, misaligned = "_ERROR_ILLEGAL_ADDRESS", "_ERROR_MISALIGNED_ADDRESS"
	d := open(t, sim.Options{})
	r, p := d.dev(4096), d.pin(4096)
	dev, pin := uint64(r.Dev()), uint64(p.Dev())
	list := func(dst, src, n uint64) func() *device.Kernel {
		return func() *device.Kernel {
			words(p, 0, dst, src, n)
			return launch(device.KernelCopyList, pin, 1)
		}
	}
	paged := func(base, stride, bytes, slotOff, planes, pairs, slot0, dir uint64) func() *device.Kernel {
		return func() *device.Kernel {
			words(p, 0, base, stride, bytes, slotOff, 1|1<<32) // page 1, slot 1
			return launch(device.KernelCopyPaged, pin, planes, pin+32, pairs, slot0, 1024, dir)
		}
	}
	tests := []struct {
		name   string
		kernel func() *device.Kernel
		want   string
	}{
		{"list is fine", list(dev, pin+1024, 1024), ""},
		{"list of nothing at no address", list(0, 0, 0), ""},
		{"CPU address", list(dev, uint64(p.CPU()), 8), illegal},
		{"address zero", list(0, pin, 8), illegal},
		{"past the end", list(dev+4090, pin, 8), illegal},
		{"before the start", list(dev-1, pin, 8), illegal},
		{"length that wraps around", list(dev, pin, math.MaxUint64), illegal},
		{"descriptors elsewhere", func() *device.Kernel { return launch(device.KernelCopyList, 24, 1) }, illegal},
		{"descriptors past the end", func() *device.Kernel { return launch(device.KernelCopyList, pin, 171) }, illegal},
		{"too many descriptors", func() *device.Kernel { return launch(device.KernelCopyList, pin, 1<<63) }, illegal},
		{"misaligned descriptors", func() *device.Kernel { return launch(device.KernelCopyList, pin+4, 1) }, misaligned},
		{"paged is fine", paged(dev, 1024, 100, 7, 1, 1, pin+512, 1), ""},
		{"page past the end", paged(dev+3072, 1024, 100, 7, 1, 1, pin+512, 1), illegal},
		{"slot past the end", paged(dev, 1024, 100, 7, 1, 1, pin+3072, 2), illegal},
		{"planes past the end", paged(dev, 1024, 100, 7, 129, 1, pin+512, 1), illegal},
		{"pairs past the end", paged(dev, 1024, 0, 7, 1, 600, pin+512, 1), illegal},
		{"no direction", paged(dev, 1024, 100, 7, 1, 1, pin+512, 3), "_ERROR_INVALID_VALUE"},
		{"pattern without seeds", func() *device.Kernel {
			words(p, 0, dev, 1024, 8, 0, 0)
			return launch(device.KernelPatternFill, pin, 1, pin+32, 1, dev+4096)
		}, illegal},
		{"pattern without counters", func() *device.Kernel {
			words(p, 0, dev, 1024, 8, 0, 0, 5)
			return launch(device.KernelPatternCheck, pin, 1, pin+32, 1, pin+40, 8)
		}, illegal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := d.queue()
			must(t, q.Launch(tt.kernel()))
			err := d.sync(q)
			var native *device.Error
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.As(err, &native) || !strings.HasSuffix(native.Name, tt.want) || !errors.Is(err, errdefs.ErrInvalid)):
				t.Errorf("the event returns %v, want %s", err, tt.want)
			}
		})
	}
}

func TestDescriptorsAndBytesAreReadWhenTheKernelRuns(t *testing.T) {
	d := manual(t, sim.Options{})
	q, r, p := d.queue(), d.dev(4096), d.pin(4096)
	words(p, 0, uint64(r.Dev()), uint64(p.Dev())+1024, 8)
	must(t, q.Launch(launch(device.KernelCopyList, uint64(p.Dev()), 1)))
	words(p, 0, uint64(r.Dev())+8, uint64(p.Dev())+2048, 8)
	words(p, 1024, 0x1111111111111111)
	words(p, 2048, 0x2222222222222222)
	must(t, d.sync(q))
	got := d.read(r)
	if count(got[:8], sim.PoisonFresh) != 8 || count(got[8:16], 0x22) != 8 {
		t.Errorf("device memory is %#x", got[:16])
	}
}

func TestWaitingForFailedWorkFails(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFill, 0).Fail(nil))
	d := open(t, sim.Options{Faults: plan})
	q1, q2, r, p := d.queue(), d.queue(), d.dev(64), d.pin(64)
	must(t, q1.Fill(mem.All(r), 1))
	must(t, q2.Wait(d.event(q1)))
	err := q2.Copy(mem.All(p), mem.All(r))
	if err != nil && !errors.Is(err, errdefs.ErrBroken) {
		t.Fatal(err)
	}
	if err := d.sync(q2); len(plan.Unreported(err)) != 0 {
		t.Errorf("the waiting queue returns %v", err)
	}
	if p.Bytes()[0] != 0 {
		t.Error("bytes were copied although the wait failed")
	}
}

func TestQueueCloseReportsUnreportedErrors(t *testing.T) {
	for _, reported := range []bool{false, true} {
		plan := fault.New(1, fault.Nth(sim.OpFill, 0).Fail(nil))
		d := open(t, sim.Options{Faults: plan})
		q, r := d.queue(), d.dev(64)
		must(t, q.Fill(mem.All(r), 1))
		if reported {
			if err := d.sync(q); err == nil {
				t.Fatal("the fill did not fail")
			}
		}
		err := q.Close(t.Context())
		if got := errors.Is(err, fault.ErrInjected); got == reported {
			t.Errorf("reported %v, and close returns %v", reported, err)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Errorf("second close: %v", err)
		}
	}
}

func TestMisusedEventsAreReported(t *testing.T) {
	d := open(t, sim.Options{})
	q := d.queue()
	e, err := q.Record()
	must(t, err)
	must(t, e.Wait(t.Context()))
	e.Close()
	e.Close()
	if _, err := e.Done(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("done: %v", err)
	}
	if err := e.Wait(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if err := q.Wait(e); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("queue wait: %v", err)
	}
	for range 20 {
		_, _ = e.Done()
	}
	must(t, q.Close(t.Context()))
	err = d.Close()
	for _, want := range []string{"closed twice", "ask event", "wait for event", "and 16 more"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error of close does not contain %q: %v", want, err)
		}
	}
}

func TestHostStreams(t *testing.T) {
	d, other := open(t, sim.Options{}), open(t, sim.Options{Index: 1})
	host, foreign := d.queue(), other.queue()
	st := d.adopt(host)
	must(t, host.Close(t.Context()))
	if _, err := st.Record(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("an adopted stream that was closed: %v", err)
	}
	for name, stream := range map[string]uintptr{"closed": host.Handle(), "another device": foreign.Handle(), "no": 0} {
		if _, err := d.AdoptStream(stream); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s stream: %v", name, err)
		}
	}
	if err := d.adopt(d.queue()).WaitValue(mem.All(d.dev(8)), 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a word in device memory: %v", err)
	}
}

// TestWaitsHoldAllocation checks that allocations and opening of queues block while a stream waits.
func TestWaitsHoldAllocation(t *testing.T) {
	d := open(t, sim.Options{WaitsHoldAllocation: true})
	word, old := d.pin(8), d.dev(8)
	must(t, d.adopt(d.queue()).WaitValue(mem.All(word), 1))
	done := make(chan error, 3)
	go func() { _, err := d.Alloc(8, device.AllocOptions{}); done <- err }()
	go func() { _, err := d.OpenQueue(device.QueueOptions{}); done <- err }()
	go func() { done <- d.Free(old) }()
	select {
	case err := <-done:
		t.Errorf("something did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	words(word, 0, 1)
	for range 3 {
		must(t, <-done)
	}
	// Close of the device ends the wait.
	must(t, d.adopt(d.queue()).WaitValue(mem.All(word), 2))
	go func() { _, err := d.AllocHost(8); done <- err }()
	_ = d.Close()
	if err := <-done; !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("allocating while the device closes: %v", err)
	}
}

func TestWaitValueFindsThatItsWordWasFreed(t *testing.T) {
	d := open(t, sim.Options{})
	q, word := d.queue(), d.pin(8)
	must(t, d.adopt(q).WaitValue(mem.All(word), 1))
	e := d.event(q)
	must(t, d.Free(word))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.Wait(ctx); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "use after free") {
		t.Errorf("the event returns %v", err)
	}
}

// TestWaitValueComparesAsHardwareDoes checks that a counter may wrap around to zero.
func TestWaitValueComparesAsHardwareDoes(t *testing.T) {
	d := manual(t, sim.Options{})
	q, word := d.queue(), d.pin(8)
	words(word, 0, 3)
	must(t, d.adopt(q).WaitValue(mem.All(word), math.MaxUint64-1))
	if !d.Step() {
		t.Error("3 follows 2^64-2, but the queue still waits")
	}
	must(t, d.adopt(q).WaitValue(mem.All(word), 4))
	if d.Step() {
		t.Error("the queue did not wait for 4")
	}
}

package devicetest

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// sharedEvent returns an event of the device, and the same as another process of the GPU has it, which the driver may refuse in one process.
func (h *harness) sharedEvent(t *testing.T, other device.Device) (own, theirs device.SharedEvent) {
	t.Helper()
	s, ok := h.dev.(device.EventSharer)
	if !ok {
		testkit.Skip(t, "sharing", "this device shares no events")
	}
	own, err := s.NewSharedEvent()
	must(t, err)
	t.Cleanup(func() { must(t, own.Close(context.Background())) })
	handle, err := own.Handle()
	must(t, err)
	opener, ok := other.(device.EventSharer)
	if !ok {
		t.Fatalf("%T shares events, and %T does not", h.dev, other)
	}
	theirs, err = opener.OpenSharedEvent(handle)
	if handle.Type.IsFD() {
		must(t, unix.Close(handle.FD))
	}
	if err != nil && handle.Type == device.HandleCUDAIPC {
		testkit.Skip(t, "sharing", "an event in the process that made it: "+err.Error())
	}
	must(t, err)
	t.Cleanup(func() { must(t, theirs.Close(context.Background())) })
	return own, theirs
}

// testShareEvent: work of another process comes after what a shared event follows, and after the last that it was told to follow.
func testShareEvent(t *testing.T, h *harness) {
	const n = 8 << 20
	other := newPeerHarness(h.another(t))
	own, theirs := h.sharedEvent(t, other.dev)
	e, err := theirs.Event(nil)
	must(t, err)
	must(t, e.Wait(t.Context())) // which follows nothing yet
	e.Close()
	q, late := h.queue(t), other.queue(t)
	far := h.device(t, n)
	want := make([]byte, n)
	for round := range 3 {
		h.random(want)
		from := h.pinned(t, n)
		copy(from.Bytes(), want)
		must(t, q.Copy(mem.All(far), mem.All(from)))
		done, err := q.Record()
		must(t, err)
		must(t, own.Follow(done))
		e, err := theirs.Event(nil)
		must(t, err)
		must(t, late.Wait(e))
		after, err := late.Record()
		must(t, err)
		must(t, after.Wait(t.Context()))
		for what, w := range map[string]device.Event{"the work": done, "the shared event": e} {
			if ok, err := w.Done(); !ok || err != nil {
				t.Errorf("round %d: %s is not done, which another queue has waited for: %v", round, what, err)
			}
			w.Close()
		}
		after.Close()
		diff(t, "behind the event", h.get(t, q, far, n), want)
	}
}

// testShareEventRefuses: a process that did not make an event has no say over it, and one that was closed is none.
func testShareEventRefuses(t *testing.T, h *harness) {
	own, theirs := h.sharedEvent(t, h.another(t))
	q := h.queue(t)
	done, err := q.Record()
	must(t, err)
	if err := theirs.Follow(done); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("another process's event follows: %v", err)
	}
	if _, err := theirs.Handle(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("another process's event is exported: %v", err)
	}
	must(t, theirs.Close(t.Context()))
	must(t, own.Close(t.Context()))
	if err := own.Follow(done); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("a closed event follows: %v", err)
	}
	if _, err := own.Event(nil); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("an event of a closed one: %v", err)
	}
	done.Close()
	s, ok := h.dev.(device.EventSharer)
	for _, by := range append(device.HandleTypes(), 0, 99) {
		if e, err := s.OpenSharedEvent(device.Handle{Type: by, FD: -1}); !ok || err == nil {
			t.Errorf("a handle of type %s of nothing is opened: %v", by, e)
		}
	}
}

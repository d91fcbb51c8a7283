package capi_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func allocatorStats(t *testing.T, l *capi.Library) (s capi.AllocatorStats) {
	t.Helper()
	b, err := l.AllocatorStats(0)
	must(t, err)
	must(t, json.Unmarshal(b, &s))
	return s
}

// TestAllocator checks that memory of the allocator can be exported and imported, is freed by its
// address, and is counted.
func TestAllocator(t *testing.T) {
	l := capi.New()
	if _, err := l.AllocatorStats(0); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("figures of no allocator: %v", err)
	}
	must(t, l.OpenAllocator("sim", 0))
	must(t, l.OpenAllocator("sim", 0))
	dev := l.AllocatorDevice(0)
	t.Cleanup(func() { must(t, dev.Close()) })
	if err := l.OpenAllocator("cuda", 0); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("open the allocator with another driver: %v", err)
	}
	const n = 100_000
	at, err := l.Allocate(0, n)
	must(t, err)
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: mem.DevAddr(at)})
	must(t, err)
	s, err := share.NewServer(share.Options{Dir: t.TempDir() + "/s"})
	must(t, err)
	must(t, s.Start(t.Context()))
	e, err := s.Export(dev, r)
	must(t, err)
	other, err := sim.Open(sim.Options{Index: 1})
	must(t, err)
	in, err := share.NewImporter(other, share.ImportOptions{})
	must(t, err)
	i, err := in.Import(t.Context(), e.Descriptor())
	must(t, err)
	if i.Region().Len() != n {
		t.Errorf("imported %s", i.Region())
	}
	must(t, errors.Join(i.Close(), in.Close(), other.Close(), e.Close(t.Context()), s.Close(t.Context())))

	if st := allocatorStats(t, l); st != (capi.AllocatorStats{Handle: "memfd", Allocations: 1, Bytes: n}) {
		t.Errorf("%+v", st)
	}
	must(t, l.Deallocate(0, at, 0))
	for _, wrong := range []error{l.Deallocate(0, at, 0), l.Deallocate(1, at, 0)} {
		if !errors.Is(wrong, errdefs.ErrInvalid) {
			t.Errorf("free unknown memory: %v", wrong)
		}
	}
	must(t, l.Deallocate(0, 0, 0))
	if at, err := l.Allocate(0, 0); at != 0 || err != nil {
		t.Errorf("no bytes are at %#x: %v", at, err)
	}
	if _, err := l.Allocate(0, -1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("negative bytes: %v", err)
	}
	if _, err := l.Allocate(0, 1<<62); err == nil {
		t.Error("all the memory there could be is allocated")
	}
	if st := allocatorStats(t, l); st != (capi.AllocatorStats{Handle: "memfd"}) {
		t.Errorf("%+v", st)
	}
}

// TestDefectAllocatorFreesWhatIsUsed checks that memory is freed only after the work that was
// enqueued on its stream before. If the stream is unknown, the memory is not freed.
func TestDefectAllocatorFreesWhatIsUsed(t *testing.T) {
	l := capi.New()
	must(t, l.OpenAllocator("sim", 0))
	dev, ok := l.AllocatorDevice(0).(*sim.Device)
	if !ok {
		t.Fatalf("%T", l.AllocatorDevice(0))
	}
	t.Cleanup(func() { must(t, dev.Close()) })
	opened, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	q, ok := opened.(*sim.Queue)
	if !ok {
		t.Fatalf("%T", opened)
	}
	stream, err := dev.AdoptStream(q.Handle())
	must(t, err)
	word, err := dev.AllocHost(4096)
	must(t, err)
	at, err := l.Allocate(0, 4096)
	must(t, err)
	if err := l.Deallocate(0, at, 12345); err == nil {
		t.Error("memory is freed although its stream is unknown")
	}
	if st := allocatorStats(t, l); st != (capi.AllocatorStats{Handle: "memfd", Allocations: 1, Bytes: 4096, Kept: 1}) {
		t.Errorf("%+v", st)
	}
	must(t, stream.WaitValue(mem.Extent{Region: word, Len: 8}, 1))
	freed := make(chan error, 1)
	go func() { freed <- l.Deallocate(0, at, uint64(q.Handle())) }()
	select {
	case err := <-freed:
		t.Fatalf("freed while the stream may use it: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	binary.NativeEndian.PutUint64(word.Bytes(), 1)
	must(t, <-freed)
	must(t, errors.Join(q.Close(t.Context()), dev.Free(word)))
}

package copy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// lesser is a device whose queues can do less than a simulated one's.
type lesser struct {
	device.Device
	hide func(device.Queue) device.Queue
}

func (d lesser) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	return d.hide(q), nil
}

func bare(q device.Queue) device.Queue { return struct{ device.Queue }{q} }
func all(q device.Queue) device.Queue  { return q }

func batching(q device.Queue) device.Queue {
	b, ok := q.(device.BatchCopier)
	if !ok {
		return q
	}
	return struct{ device.BatchCopier }{b}
}

func TestOpenRefuses(t *testing.T) {
	dev := openSim(t, sim.Options{})
	tests := []struct {
		name string
		hide func(device.Queue) device.Queue
		o    streamcopy.Options
		is   error
		says []string
	}{
		{"kernel without launcher", bare, streamcopy.Options{Path: stream.PathKernel}, errdefs.ErrNotSupported, []string{"kernel", "sim 0"}},
		{"batch without batcher", bare, streamcopy.Options{Path: stream.PathCopyEngineBatch}, errdefs.ErrNotSupported, []string{"copy-engine-batch"}},
		{"path of files", all, streamcopy.Options{Path: stream.PathPosix}, errdefs.ErrNotSupported, []string{"posix"}},
		{"unknown path", all, streamcopy.Options{Path: 77}, errdefs.ErrNotSupported, []string{"path(77)"}},
		{"all fields", all, streamcopy.Options{QueueDepth: -1, Descriptors: 3, CTAs: -2}, errdefs.ErrInvalid, []string{"depth -1", "3 descriptors", "CTAs -2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := streamcopy.Open(lesser{dev, tt.hide}, tt.o)
			if s != nil || !errors.Is(err, tt.is) {
				t.Fatalf("stream %v, error %v", s != nil, err)
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not say %q", err, word)
				}
			}
		})
	}
}

func TestSizeRule(t *testing.T) {
	dev := openSim(t, sim.Options{})
	dst, src := pinned(t, dev, 40<<20), pinned(t, dev, 40<<20)
	few, many, large := strided(dst, src, 3, 100), strided(dst, src, 4, 100), strided(dst, src, 8, 1<<20)
	neighbours := &mem.Batch{}
	for i := range int64(100) {
		e := mem.Extent{Off: i * 10, Len: 10}
		d, s := e, e
		d.Region, s.Region = dst, src
		neighbours.Dst, neighbours.Src = append(neighbours.Dst, d), append(neighbours.Src, s)
	}
	tests := []struct {
		name   string
		hide   func(device.Queue) device.Queue
		batch  *mem.Batch
		path   stream.Path
		reason string
	}{
		{"nothing", all, &mem.Batch{}, stream.PathNone, streamcopy.ReasonEmpty},
		{"few", all, few, stream.PathCopyEngine, streamcopy.ReasonFewRuns},
		{"neighbours", all, neighbours, stream.PathCopyEngine, streamcopy.ReasonFewRuns},
		{"many", all, many, stream.PathKernel, streamcopy.ReasonManyPieces},
		{"large", all, large, stream.PathCopyEngineBatch, streamcopy.ReasonLargeRuns},
		{"paged", all, benchPaged(dst, src, 2, 2, 1<<10), stream.PathKernel, streamcopy.ReasonManyPieces},
		{"many, no kernels", batching, many, stream.PathCopyEngineBatch, streamcopy.ReasonNoLauncher},
		{"many, bare", bare, many, stream.PathCopyEngine, streamcopy.ReasonOnlyEngine},
		{"large, bare", bare, large, stream.PathCopyEngine, streamcopy.ReasonLargeRuns},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, lesser{dev, tt.hide}, streamcopy.Options{})
			ticket, err := s.Submit(deadline(t), tt.batch)
			if err != nil {
				t.Fatal(err)
			}
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if c := ticket.Completion(); c.Path != tt.path || c.Reason != tt.reason {
				t.Errorf("path %s (%s), want %s (%s)", c.Path, c.Reason, tt.path, tt.reason)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestForeignDevice: device memory of another device has an address that means something else here.
func TestForeignDevice(t *testing.T) {
	dev, other := openSim(t, sim.Options{}), openSim(t, sim.Options{Index: 1})
	r, err := other.Alloc(100, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dev, streamcopy.Options{})
	if _, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{mem.All(r)}}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("submit: %v", err)
	}
	if err := errors.Join(s.Close(deadline(t)), other.Free(r)); err != nil {
		t.Error(err)
	}
}

// TestAllocations: a batch costs a constant number of allocations, however many copies it stands for.
func TestAllocations(t *testing.T) {
	dev := openSim(t, sim.Options{})
	dst, src := pinned(t, dev, 32<<20), pinned(t, dev, 32<<20)
	for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathCopyEngineBatch, stream.PathKernel} {
		s := open(t, nullDevice{dev, nullEvent{}}, streamcopy.Options{Path: path})
		for _, b := range []*mem.Batch{strided(dst, src, 1, 8), strided(dst, src, 10_000, 8), benchPaged(dst, src, 64, 256, 1<<10)} {
			n := testing.AllocsPerRun(20, func() {
				ticket, err := s.Submit(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				<-ticket.Done()
			})
			if n > 6 {
				t.Errorf("%s: %v allocations for %d copies", path, n, b.Pieces())
			}
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
}

package copy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// unsummed is the value of all checksums of a batch before it is submitted.
const unsummed = 0xdead

// leaves is a batch with checksums, between pages in device memory and slots in host memory.
type leaves struct {
	*mem.Batch
	slotBytes, pageBytes int64
	slots, pages         *mem.Region
}

// drawLeaves returns a batch without memory, with planes of one to three leaves. Pages are in
// random order, and so are slots unless oneRun is set.
func drawLeaves(rng *rand.Rand, dir mem.Direction, planes, pairs int, oneRun bool) *leaves {
	l := &leaves{}
	var g mem.PageGroup
	n := 0
	for i := range planes {
		bytes := int64(1+i%3) * mem.LeafBytes
		stride := bytes + mem.LeafAlign*rng.Int64N(9)
		g.Planes = append(g.Planes, mem.Plane{Base: l.pageBytes, Stride: stride, Bytes: bytes, SlotOff: g.Slots.Stride})
		l.pageBytes += stride * int64(pairs)
		g.Slots.Stride += bytes
		n += int(bytes/mem.LeafBytes) * pairs
	}
	l.slotBytes = g.Slots.Stride * int64(pairs)
	page, slot := rng.Perm(pairs), rng.Perm(pairs)
	if oneRun {
		slices.Sort(slot)
	}
	for i := range pairs {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(page[i]), Slot: uint32(slot[i])})
	}
	l.Batch = &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{g}, Sums: slices.Repeat([]uint64{unsummed}, n)}}
	return l
}

// place assigns memory to the batch.
func (l *leaves) place(slots, pages *mem.Region) {
	l.slots, l.pages = slots, pages
	g := &l.Paged.Groups[0]
	g.Slots.Region = slots
	for i := range g.Planes {
		g.Planes[i].Region = pages
	}
}

// newLeaves returns a batch from drawLeaves in new memory, filled with random bytes.
func newLeaves(tb testing.TB, dev *sim.Device, rng *rand.Rand, dir mem.Direction, planes, pairs int, oneRun bool) *leaves {
	tb.Helper()
	l := drawLeaves(rng, dir, planes, pairs, oneRun)
	l.place(pinned(tb, dev, l.slotBytes), deviceMemory(tb, dev, l.pageBytes))
	l.fill(tb, dev, rng.Uint64())
	return l
}

// fill writes random bytes to the memory of the batch.
func (l *leaves) fill(tb testing.TB, dev device.Device, seed uint64) {
	tb.Helper()
	noise := rand.NewChaCha8([32]byte{byte(seed)})
	for _, r := range []*mem.Region{l.slots, l.pages} {
		b := make([]byte, r.Len())
		_, _ = noise.Read(b) // never fails
		memoryOf(r, dev).Write(tb, mem.All(r), b)
	}
}

// sums returns the checksums of the leaves on both sides.
func (l *leaves) sums(tb testing.TB, dev device.Device) (dst, src []uint64) {
	tb.Helper()
	bytes := map[*mem.Region][]byte{}
	for _, r := range []*mem.Region{l.slots, l.pages} {
		bytes[r] = memoryOf(r, dev).Read(tb, mem.All(r))
	}
	of := func(e mem.Extent) (sums []uint64) {
		for leaf := range slices.Chunk(bytes[e.Region][e.Off:e.Off+e.Len], mem.LeafBytes) {
			sums = append(sums, xxh3.Hash(leaf))
		}
		return sums
	}
	for d, s := range l.Paged.Extents() {
		dst, src = append(dst, of(d)...), append(src, of(s)...)
	}
	return dst, src
}

// sumRoutes lists the routes whose copies are summed.
var sumRoutes = []route{{path: stream.PathKernel}, {path: stream.PathStaged}, {path: stream.PathStaged, chunk: 17 << 10}}

func (w route) options(o streamcopy.Options) streamcopy.Options {
	if o.Path = w.path; w.chunk > 0 {
		o.Path, o.Planner = stream.PathNone, &fixedPlanner{choice: plan.Choice{Path: w.path, ChunkBytes: w.chunk}}
	}
	return o
}

// TestSumsInChunks copies batches in chunks of different sizes, limited by staging memory, by the
// ring and by the planner. Many batches are in flight, some after lists of odd sizes and some
// without checksums. Each checksum must be that of its leaf.
func TestSumsInChunks(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 17))
		faults := fault.New(seed, fault.Nth(sim.OpLaunch, 0).Stall())
		dev := openSim(t, sim.Options{Faults: faults})
		w := route{path: stream.PathStaged, chunk: []int64{0, 1 << 10, 10_000, 64 << 10, 1 << 20}[seed%5]}
		o := streamcopy.Options{StagingBytes: 4 << 20}
		if w.chunk < 1<<20 {
			o.StagingBytes, o.Descriptors = 16<<10+rng.Int64N(8<<20)>>rng.IntN(10), streamcopy.MinDescriptors<<rng.IntN(6)
		}
		s := open(t, dev, w.options(o))
		dir := mem.Direction(1 + seed%2)
		var all []*leaves
		for range 12 {
			l := newLeaves(t, dev, rng, dir, 1+rng.IntN(5), 1+rng.IntN(9), rng.IntN(2) == 0)
			if rng.IntN(3) == 0 {
				dst, src := pinned(t, dev, 9000), deviceMemory(t, dev, 9000)
				if dir == mem.ToPages {
					dst, src = src, dst
				}
				list := streamtest.Strided(dst, src, 1+rng.IntN(20), 1+rng.Int64N(400))
				l.Dst, l.Src = list.Dst, list.Src
			}
			if rng.IntN(4) == 0 {
				l.Paged.Sums = nil
			}
			all = append(all, l)
		}
		var tickets []*stream.Ticket
		for _, l := range all {
			tickets = append(tickets, submitOK(t, s, l.Batch))
		}
		faults.Release()
		for i, ticket := range tickets {
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			dst, src := all[i].sums(t, dev)
			got := all[i].Paged.Sums
			if c := ticket.Completion(); c.Summed != (got != nil) || c.Path != stream.PathStaged {
				t.Errorf("seed %d, batch %d: by %s, summed %t of %d", seed, i, c.Path, c.Summed, len(got))
			}
			if !slices.Equal(dst, src) || got != nil && !slices.Equal(got, src) {
				t.Fatalf("seed %d, batch %d: sums %x, destination %x, source %x", seed, i, got, dst, src)
			}
		}
		closeStream(t, s)
	}
}

// TestSumsBehindUnalignedNeighbours copies bytes that end where the first leaf begins in host
// memory. They have another place in staging memory, and kernels sum aligned leaves only.
func TestSumsBehindUnalignedNeighbours(t *testing.T) {
	const odd, at = 2987, mem.LeafBytes
	for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
		dev := openSim(t, sim.Options{})
		s := open(t, dev, streamcopy.Options{Path: stream.PathStaged, StagingBytes: 256 << 10})
		l := drawLeaves(rand.New(rand.NewPCG(1, 6)), dir, 2, 3, true)
		l.place(pinned(t, dev, at+l.slotBytes), deviceMemory(t, dev, l.pageBytes+odd+1))
		l.Paged.Groups[0].Slots.Base = at
		l.Dst = []mem.Extent{{Region: l.slots, Off: at - odd, Len: odd}}
		l.Src = []mem.Extent{{Region: l.pages, Off: l.pageBytes + 1, Len: odd}}
		if dir == mem.ToPages {
			l.Dst, l.Src = l.Src, l.Dst
		}
		l.fill(t, dev, 7)
		c := complete(t, s, l.Batch)
		if dst, src := l.sums(t, dev); !c.Summed || !slices.Equal(dst, src) || !slices.Equal(l.Paged.Sums, src) {
			t.Errorf("%s: summed %t, sums %x, destination %x, source %x", dir, c.Summed, l.Paged.Sums, dst, src)
		}
		closeStream(t, s)
	}
}

// TestSumsNeedRoomForALeaf checks that the CPU computes the checksums if no leaf fits into a chunk,
// and that the planner gets this information.
func TestSumsNeedRoomForALeaf(t *testing.T) {
	for _, tt := range []struct {
		staging int64
		want    bool
	}{{4 * mem.LeafBytes, true}, {4*mem.LeafBytes - 1, true}, {4*mem.LeafBytes - 256, false}, {streamcopy.MinStagingBytes, false}} {
		dev := openSim(t, sim.Options{})
		reported := &sumPlanner{path: stream.PathStaged}
		s := open(t, dev, streamcopy.Options{Planner: reported, StagingBytes: tt.staging})
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			l := newLeaves(t, dev, rand.New(rand.NewPCG(1, 2)), dir, 3, 7, true)
			c := complete(t, s, l.Batch)
			if c.Path != stream.PathStaged || c.Summed != tt.want || reported.unsummed.Has(stream.PathStaged) == tt.want {
				t.Errorf("%d bytes of staging: path %s, summed %t, the planner was informed that it is not: %t", tt.staging, c.Path, c.Summed, reported.unsummed.Has(stream.PathStaged))
			}
			if dst, src := l.sums(t, dev); !slices.Equal(dst, src) || tt.want && !slices.Equal(l.Paged.Sums, src) {
				t.Errorf("%d bytes of staging: sums %x, destination %x, source %x", tt.staging, l.Paged.Sums, dst, src)
			}
		}
		closeStream(t, s)
	}
}

// TestDamageShowsInSums corrupts operation N of a batch, for every N. In copies to the device, the
// checksums are those of the bytes that reached the pages, including any damage. In copies to the
// host they are those of the bytes read from the pages, so that damage on the bus changes the bytes
// and not the checksums. Damage in a staged copy's gather step counts as a read error: it changes
// both.
func TestDamageShowsInSums(t *testing.T) {
	for _, w := range sumRoutes {
		for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
			for _, op := range []string{sim.OpLaunch, sim.OpCopy, sim.OpBatch} {
				n := 0
				for w.damage(t, dir, op, n) {
					n++
				}
				if n == 0 && (op == sim.OpLaunch || op == sim.OpCopy && w.path == stream.PathStaged) {
					t.Errorf("%s %s: nothing was damaged by %s", w, dir, op)
				}
			}
		}
	}
}

// damage corrupts operation n of a batch, and reports whether the batch had such an operation.
func (w route) damage(t *testing.T, dir mem.Direction, op string, n int) bool {
	t.Helper()
	faults := fault.New(uint64(n))
	dev := openSim(t, sim.Options{Faults: faults})
	s := open(t, dev, w.options(streamcopy.Options{StagingBytes: 64 << 10}))
	l := newLeaves(t, dev, rand.New(rand.NewPCG(uint64(n), 3)), dir, 4, 5, n%2 == 0)
	faults.Add(fault.Nth(op, int(faults.Seen(op))+n).Corrupt())
	c := complete(t, s, l.Batch)
	damaged := faults.Injected() > 0
	faults.Clear()
	closeStream(t, s)
	dst, src := l.sums(t, dev)
	want := dst
	if dir == mem.ToSlots && (w.path != stream.PathStaged || op != sim.OpLaunch) {
		want = src
	}
	if !c.Summed || !slices.Equal(l.Paged.Sums, want) || slices.Equal(dst, src) == damaged {
		t.Errorf("%s %s, %s %d, damaged %t: summed %t, sums %x, destination %x, source %x", w, dir, op, n, damaged, c.Summed, l.Paged.Sums, dst, src)
	}
	return damaged
}

// TestEveryOperationFailsWithSums fails operation N of each kind, with batches that have checksums.
// Every failure must be reported, and every ticket without an error must have copied its bytes and
// their checksums.
func TestEveryOperationFailsWithSums(t *testing.T) {
	kernel := []string{sim.OpCallLaunch, sim.OpLaunch, sim.OpAllocHost, sim.OpRecord}
	staged := append([]string{sim.OpCallCopy, sim.OpCopy, sim.OpCallBatch, sim.OpBatch, sim.OpAlloc, sim.OpWait, sim.OpOpen}, kernel...)
	for _, w := range sumRoutes {
		ops := kernel
		if w.path == stream.PathStaged {
			ops = staged
		}
		for _, op := range ops {
			t.Run(fmt.Sprintf("%s chunk %d %s", w.path, w.chunk, op), func(t *testing.T) {
				testkit.Sweep(t, op, errdefs.ErrNoMemory, func(t *testing.T, faults *fault.Plan) error {
					t.Helper()
					return w.sumAll(t, faults)
				})
			})
		}
	}
}

// sumAll dumps and loads batches with checksums on a device with injected faults. It returns the
// joined errors of all calls.
func (w route) sumAll(t *testing.T, faults *fault.Plan) (all error) {
	t.Helper()
	dev, far := simPeers(t, sim.Options{Faults: faults})
	failed := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	rng := rand.New(rand.NewPCG(1, 4))
	var batches []*leaves
	for i := range 4 {
		l := drawLeaves(rng, mem.Direction(1+i/2), 3, 4, i%2 == 0)
		slots, err := dev.AllocHost(l.slotBytes)
		if failed(err) {
			return all
		}
		defer func() { failed(freeTwice(dev, far, slots)) }()
		pages, err := dev.Alloc(l.pageBytes, device.AllocOptions{})
		if failed(err) {
			return all
		}
		defer func() { failed(freeTwice(dev, far, pages)) }()
		l.place(slots, pages)
		l.fill(t, far, uint64(i))
		batches = append(batches, l)
	}
	s, err := streamcopy.Open(dev, w.options(streamcopy.Options{StagingBytes: 128 << 10, Descriptors: streamcopy.MinDescriptors}))
	if failed(err) {
		return all
	}
	var tickets []*stream.Ticket
	for _, l := range batches {
		ticket, err := s.Submit(deadline(t), l.Batch)
		failed(err)
		tickets = append(tickets, ticket)
	}
	for i, ticket := range tickets {
		if ticket == nil || failed(ticket.Wait(deadline(t))) || failed(ticket.Completion().GivenUp) {
			continue
		}
		dst, src := batches[i].sums(t, far)
		if !slices.Equal(dst, src) || ticket.Completion().Summed && !slices.Equal(batches[i].Paged.Sums, src) {
			t.Fatalf("batch %d succeeded with sums %x, destination %x, source %x", i, batches[i].Paged.Sums, dst, src)
		}
	}
	if failed(s.Close(deadline(t))) {
		failed(s.Close(deadline(t)))
	}
	return all
}

// TestCancelLeavesSumsAlone cancels batches of many steps at any time. After its ticket resolves,
// the checksums of a batch must not be written, whatever the device does later.
func TestCancelLeavesSumsAlone(t *testing.T) {
	for _, w := range sumRoutes {
		for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
			canceled := 0
			for seed := range uint64(12) {
				rng := rand.New(rand.NewPCG(seed, 5))
				c := cancelRig{}
				c.dev, c.far = simPeers(t, sim.Options{Interleave: &sim.Interleave{Seed: seed, Manual: true}})
				c.s = open(t, c.dev, w.options(streamcopy.Options{StagingBytes: 64 << 10, Descriptors: streamcopy.MinDescriptors}))
				l, other := drawLeaves(rng, dir, 6, 60, true), drawLeaves(rng, dir, 2, 3, true)
				for _, l := range []*leaves{l, other} {
					l.place(pinned(t, c.dev, l.slotBytes), deviceMemory(t, c.dev, l.pageBytes))
				}
				ticket := submitOK(t, c.s, l.Batch)
				behind := submitOK(t, c.s, other.Batch)
				for range rng.IntN(30) {
					c.dev.Step()
				}
				if ticket.Cancel(); c.end(t, ticket) {
					canceled++
				}
				for i := range l.Paged.Sums {
					l.Paged.Sums[i] = unsummed
				}
				if c.end(t, behind) {
					t.Error("another batch was canceled")
				}
				if slices.Contains(other.Paged.Sums, unsummed) {
					t.Errorf("%s %s, seed %d: the batch behind has not all its sums", w, dir, seed)
				}
				c.close(t)
				if slices.ContainsFunc(l.Paged.Sums, func(sum uint64) bool { return sum != unsummed }) {
					t.Errorf("%s %s, seed %d: sums were written after the ticket had resolved", w, dir, seed)
				}
			}
			if canceled == 0 {
				t.Errorf("%s %s: no batch was canceled before its end", w, dir)
			}
		}
	}
}

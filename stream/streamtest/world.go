package streamtest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// world is the state of a test: a stream, regions, and the expected bytes of each region.
type world struct {
	testing.TB
	env   Env
	rng   *rand.Rand
	noise *rand.ChaCha8
	s     stream.Stream
	want  map[*mem.Region][]byte
	in    map[*mem.Region]Memory
	made  []*mem.Region // in order
}

// newWorld opens a stream for depth unresolved batches. The seed determines all random bytes and
// choices.
func newWorld(tb testing.TB, env Env, depth int, seed uint64) *world {
	tb.Helper()
	w := &world{
		TB: tb, env: env, rng: rand.New(rand.NewPCG(seed, 1)), noise: rand.NewChaCha8([32]byte{byte(seed)}),
		want: make(map[*mem.Region][]byte), in: make(map[*mem.Region]Memory),
	}
	w.s = w.open(depth)
	return w
}

// open opens another stream and closes it when the test ends.
func (w *world) open(depth int) stream.Stream {
	w.Helper()
	s := w.env.Open(w, depth)
	w.Cleanup(func() {
		if err := s.Close(deadline(w)); err != nil {
			w.Errorf("close: %v", err)
		}
	})
	return s
}

// region allocates n bytes of m and fills them with random bytes.
func (w *world) region(m Memory, n int64) *mem.Region {
	w.Helper()
	r := m.Alloc(w, n)
	w.in[r], w.made = m, append(w.made, r)
	b := make([]byte, n)
	_, _ = w.noise.Read(b) // never fails
	w.fill(r, b)
	return r
}

// fill writes b to r without the stream.
func (w *world) fill(r *mem.Region, b []byte) {
	w.Helper()
	w.in[r].Write(w, mem.All(r), b)
	w.want[r] = b
}

// submit submits b and applies it to the model.
func (w *world) submit(b *mem.Batch) *stream.Ticket {
	w.Helper()
	t := w.submitOnly(b)
	w.apply(b)
	return t
}

// submitOnly submits b without changing the model, for batches that must not take effect.
func (w *world) submitOnly(b *mem.Batch) *stream.Ticket {
	w.Helper()
	t, err := w.s.Submit(deadline(w), b)
	if err != nil {
		w.Fatalf("submit: %v", err)
	}
	return t
}

func (w *world) apply(b *mem.Batch) {
	for dst, src := range b.Extents() {
		copy(w.want[dst.Region][dst.Off:dst.Off+dst.Len], w.want[src.Region][src.Off:src.Off+src.Len])
	}
}

// ok waits for t, which must succeed.
func (w *world) ok(t *stream.Ticket) {
	w.Helper()
	if err := t.Wait(deadline(w)); err != nil {
		w.Fatalf("ticket %d: %v", t.ID(), err)
	}
}

// fails waits for t and checks that its error wraps all given errors.
func (w *world) fails(t *stream.Ticket, is ...error) {
	w.Helper()
	wantErr(w, t.Wait(deadline(w)), is...)
}

func wantErr(tb testing.TB, err error, is ...error) {
	tb.Helper()
	for _, target := range is {
		if !errors.Is(err, target) {
			tb.Fatalf("error %v is not %q", err, target)
		}
	}
}

// resolved reports whether t has resolved.
func resolved(t *stream.Ticket) bool {
	select {
	case <-t.Done():
		return true
	default:
		return false
	}
}

// check compares every byte of every region with the model.
func (w *world) check() {
	w.Helper()
	for i, r := range w.made {
		got := w.in[r].Read(w, mem.All(r))
		if bytes.Equal(got, w.want[r]) {
			continue
		}
		for j := range got {
			if got[j] != w.want[r][j] {
				w.Fatalf("region %d (%s), byte %d of %d: %#02x, want %#02x", i, w.in[r].Name, j, len(got), got[j], w.want[r][j])
			}
		}
	}
}

// gate is a dependency that the test resolves.
type gate struct {
	done chan struct{}
	err  error
}

func newGate() *gate { return &gate{done: make(chan struct{})} }

func (g *gate) Done() <-chan struct{} { return g.done }
func (g *gate) Err() error            { return g.err }

func (g *gate) open(err error) {
	g.err = err
	close(g.done)
}

// scatter returns up to n copies between the regions, in random order on both sides. size returns
// their sizes. Random gaps produce all alignments. It stops when a region is full.
func (w *world) scatter(dst, src *mem.Region, n int, size func(i int) int64) *mem.Batch {
	var b mem.Batch
	var to, from int64
	for i := range n {
		l := size(i)
		to, from = to+w.rng.Int64N(9), from+w.rng.Int64N(9)
		if to+l > dst.Len() || from+l > src.Len() {
			break
		}
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: to, Len: l})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: from, Len: l})
		to, from = to+l, from+l
	}
	// Pairs are shuffled, and then sources of equal length are swapped, so that lengths still
	// match.
	w.rng.Shuffle(len(b.Dst), func(i, j int) {
		b.Dst[i], b.Dst[j] = b.Dst[j], b.Dst[i]
		b.Src[i], b.Src[j] = b.Src[j], b.Src[i]
	})
	for i := range b.Src {
		if j := w.rng.IntN(len(b.Src)); b.Src[i].Len == b.Src[j].Len {
			b.Src[i], b.Src[j] = b.Src[j], b.Src[i]
		}
	}
	return &b
}

// paged returns a batch of page groups with new regions for slots and planes.
func (w *world) paged(dir mem.Direction, slots, pages Memory, pairs int, groups ...[]int64) *mem.Batch {
	w.Helper()
	p := &mem.Paged{Dir: dir}
	for _, sizes := range groups {
		p.Groups = append(p.Groups, w.pageGroup(slots, pages, pairs, sizes))
	}
	return &mem.Batch{Paged: p}
}

func (w *world) pageGroup(slots, pages Memory, pairs int, planeBytes []int64) mem.PageGroup {
	w.Helper()
	var g mem.PageGroup
	total := pairs + 3 // some pages and slots stay unused
	at := int64(w.rng.IntN(5))
	for _, n := range planeBytes {
		stride := n + w.rng.Int64N(7)
		base := w.rng.Int64N(33)
		g.Planes = append(g.Planes, mem.Plane{
			Region: w.region(pages, base+stride*int64(total)), Base: base, Stride: stride, Bytes: n, SlotOff: at,
		})
		at += n + w.rng.Int64N(5)
	}
	g.Slots = mem.Slots{Base: w.rng.Int64N(65), Stride: max(at, 1)}
	g.Slots.Region = w.region(slots, g.Slots.Base+g.Slots.Stride*int64(total))
	page, slot := w.rng.Perm(total), w.rng.Perm(total)
	for i := range pairs {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(page[i]), Slot: uint32(slot[i])})
	}
	return g
}

// whole returns a batch that copies all of src to the start of dst.
func whole(dst, src *mem.Region, after ...mem.Dependency) *mem.Batch {
	return &mem.Batch{
		Dst: []mem.Extent{mem.All(dst).Sub(0, src.Len())}, Src: []mem.Extent{mem.All(src)},
		After: after,
	}
}

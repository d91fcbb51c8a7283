package devicetest

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// resident is the host's side of KernelResident.
type resident struct {
	q          device.Launcher
	control    *mem.Region
	rings      *mem.Region
	next       []uint64 // of each worker, the entry to write next
	generation uint64
}

// ringDepth is short, so that tests go around often.
const ringDepth = 4

func newResident(t *testing.T, h *harness, workers int) *resident {
	t.Helper()
	r := &resident{q: h.launcher(t), next: make([]uint64, workers)}
	needKernel(t, r.q, device.KernelResident)
	r.control = h.pinned(t, int64(workers)*device.ResidentControlBytes)
	r.rings = h.pinned(t, int64(workers)*ringDepth*device.ResidentEntryBytes)
	for w := range workers {
		r.next[w] = 1
		hostmem.StoreUint64(r.word(w, device.ResidentRing), uint64(r.rings.Dev())+uint64(w)*ringDepth*device.ResidentEntryBytes)
		hostmem.StoreUint64(r.word(w, device.ResidentDepth), ringDepth)
	}
	return r
}

func (r *resident) word(w, off int) []byte {
	return r.control.Bytes()[w*device.ResidentControlBytes+off:]
}

func (r *resident) done(w int) uint64 { return hostmem.LoadUint64(r.word(w, device.ResidentDone)) }

// launch starts the workers where the last ones stopped.
func (r *resident) launch(t *testing.T, idle, lease time.Duration) {
	t.Helper()
	r.generation++
	for w := range r.next {
		hostmem.StoreUint64(r.word(w, device.ResidentNext), r.done(w)+1)
	}
	must(t, r.q.Launch(kernel(device.KernelResident, len(r.next), uint64(r.control.Dev()), device.ResidentControlBytes,
		r.generation, uint64(idle), uint64(lease))))
}

// put writes worker w's next entry.
func (r *resident) put(w int, words ...uint64) {
	var e device.ResidentWords
	e[0] = r.next[w]
	copy(e[1:], words)
	b := r.rings.Bytes()[(w*ringDepth+int(r.next[w]%ringDepth))*device.ResidentEntryBytes:]
	hostmem.StoreUint64(b[device.ResidentLast:], e.Put(b))
	r.next[w]++
}

// wait waits until worker w has done all that was put.
func (r *resident) wait(t *testing.T, w int) {
	t.Helper()
	for deadline := time.Now().Add(patience); r.done(w) != r.next[w]-1; time.Sleep(10 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("worker %d has done entry %d, not %d", w, r.done(w), r.next[w]-1)
		}
	}
}

// gone waits until all workers have left.
func (r *resident) gone(t *testing.T) {
	t.Helper()
	sync(t, r.q)
	for w := range r.next {
		if got := hostmem.LoadUint64(r.word(w, device.ResidentExited)); got != r.generation {
			t.Fatalf("worker %d: exited is %d after the kernel ended, want %d", w, got, r.generation)
		}
	}
}

func (r *resident) stop(t *testing.T) {
	t.Helper()
	for w := range r.next {
		r.put(w, device.ResidentStop)
	}
	r.gone(t)
	for w := range r.next {
		r.wait(t, w)
	}
}

const hour = time.Hour

// inline makes the words of a ResidentCopy, from the one after the sequence number on.
func inline(pieces ...[2]mem.Extent) []uint64 {
	w := make([]uint64, device.ResidentEntryWords)
	w[1], w[device.ResidentPieces] = device.ResidentCopy, uint64(len(pieces))
	for i, p := range pieces {
		at := device.ResidentPiece(i)
		w[at], w[at+1], w[at+2] = uint64(p[0].Dev()), uint64(p[1].Dev()), uint64(p[1].Len)
	}
	return w[1:]
}

// testResident has two workers copy in both directions, in all ways that entries can say, several times around the ring,
// through the same memory: what a worker reads must be what the host wrote last.
func testResident(t *testing.T, h *harness) {
	const n = 70_000
	r := newResident(t, h, 2)
	in, out, dev := h.pinned(t, 2*n), h.pinned(t, 2*n), h.device(t, 2*n)
	list := h.pinned(t, 2*2*device.CopyDescBytes)
	r.launch(t, hour, patience)
	sizes := []int64{4096, 1, 512, 16, 8192, 100, n / 4, 3}
	for round := range 60 {
		h.random(in.Bytes())
		for w := range 2 {
			base := int64(w) * n
			to := func(dst, src *mem.Region, off, len int64) [2]mem.Extent {
				return [2]mem.Extent{extent(dst, base+off, len), extent(src, base+off, len)}
			}
			switch round % 3 {
			case 0: // pieces in the entry
				a, b, c := sizes[round%8], sizes[(round+3)%8], sizes[(round+5)%8]
				r.put(w, inline(to(dev, in, 0, a), to(dev, in, a, b), to(dev, in, a+b, c), to(dev, in, a+b+c, n-a-b-c))...)
				r.wait(t, w)
				r.put(w, inline(to(out, dev, 0, n))...)
			case 1: // a list
				half := list.Bytes()[w*2*device.CopyDescBytes:]
				addr := uint64(list.Dev()) + uint64(w*2*device.CopyDescBytes)
				for _, ends := range [][2]*mem.Region{{dev, in}, {out, dev}} {
					cut := sizes[round%8]
					first, rest := to(ends[0], ends[1], 0, cut), to(ends[0], ends[1], cut, n-cut)
					putList(half, []mem.Extent{first[0], rest[0]}, []mem.Extent{first[1], rest[1]})
					r.put(w, device.ResidentList, addr, 2)
					r.wait(t, w)
				}
			default: // as many pieces as any entry holds, by turns; the last is what is left
				count := 1 + (round/3*7+w)%device.ResidentInline
				pieces := make([][2]mem.Extent, count)
				for _, ends := range [][2]*mem.Region{{dev, in}, {out, dev}} {
					off := int64(0)
					for i := range pieces {
						size := 1 + sizes[(round+i)%8]%3000
						if i == count-1 {
							size = n - off
						}
						pieces[i] = to(ends[0], ends[1], off, size)
						off += size
					}
					r.put(w, inline(pieces...)...)
					r.wait(t, w)
				}
			}
		}
		for w := range 2 {
			r.wait(t, w)
		}
		diff(t, "through the device and back", out.Bytes(), in.Bytes())
	}
	r.stop(t)
}

// testResidentTorn writes entries word by word, in any order, over those that were there before: none is taken before its
// last word is there, and it is taken then.
func testResidentTorn(t *testing.T, h *harness) {
	const block = 64
	r := newResident(t, h, 1)
	in, out := h.pinned(t, device.ResidentInline*block), h.pinned(t, device.ResidentInline*block)
	r.launch(t, hour, patience)
	for round, count := range []int{20, 1, 17, 5, 20, 4, 2, 20, 6, 3, 19, 20, 1, 1, 20, 20} {
		h.random(in.Bytes())
		copy(out.Bytes(), bytes.Repeat([]byte{guardByte}, int(out.Len())))
		var e device.ResidentWords
		e[0] = r.next[0]
		pieces := make([][2]mem.Extent, count)
		for i := range pieces {
			at := int64((i*7 + round) % device.ResidentInline * block)
			pieces[i] = [2]mem.Extent{extent(out, at, block), extent(in, at, block)}
		}
		copy(e[1:], inline(pieces...))
		b := r.rings.Bytes()[int(r.next[0]%ringDepth)*device.ResidentEntryBytes:][:device.ResidentEntryBytes]
		whole := make([]byte, device.ResidentEntryBytes)
		e[device.ResidentLast/8] = e.Put(whole)
		var order []int // of the words that are not there yet
		for i, v := range e {
			if hostmem.LoadUint64(b[8*i:]) != v && (i < device.ResidentLine/8 || i < device.ResidentPiece(count-1)+3) {
				order = append(order, i)
			}
		}
		h.rng.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		for i, at := range order {
			if i%8 == 0 || i == len(order)-1 {
				time.Sleep(glance / 40) // long enough for a poll
			}
			if done := r.done(0); done != r.next[0]-1 {
				t.Fatalf("round %d: entry %d is done and has %d words to come", round, done, len(order)-i)
			}
			hostmem.StoreUint64(b[8*at:], e[at])
		}
		r.next[0]++
		r.wait(t, 0)
		for i := range device.ResidentInline {
			at, want := int64((i*7+round)%device.ResidentInline*block), bytes.Repeat([]byte{guardByte}, block)
			if i < count {
				want = in.Bytes()[at : at+block]
			}
			diff(t, "a piece of an entry", out.Bytes()[at:at+block], want)
		}
	}
	r.stop(t)
}

// testResidentLeaves has workers leave for every reason that there is, and looks at what they have not taken.
func testResidentLeaves(t *testing.T, h *harness) {
	const n = 4096
	r := newResident(t, h, 1)
	in, dev := h.pinned(t, n), h.device(t, n)
	copyOne := func() { r.put(0, inline([2]mem.Extent{mem.All(dev), mem.All(in)})...) }
	check := func(what string) {
		t.Helper()
		q := h.queue(t)
		diff(t, what, h.get(t, q, dev, n), in.Bytes())
	}
	h.random(in.Bytes())

	r.launch(t, time.Millisecond, hour) // idle
	copyOne()
	r.gone(t)
	if r.done(0) == 0 { // it may have been too late
		r.launch(t, time.Millisecond, hour)
		r.gone(t)
	}
	check("before it was idle for too long")

	copyOne() // nobody there to take it
	h.random(in.Bytes())
	time.Sleep(glance)
	if r.done(0) != 1 {
		t.Fatalf("entry %d is done and no kernel runs", r.done(0))
	}
	r.launch(t, time.Millisecond, hour)
	r.gone(t)
	r.wait(t, 0)
	check("an entry that had to wait for a launch")

	r.launch(t, hour, 0) // its lease is over before it begins
	copyOne()
	r.gone(t)
	if r.done(0) != 2 {
		t.Fatalf("%d entries are done, and the lease was over after 2", r.done(0))
	}
	r.launch(t, hour, 5*time.Millisecond)
	r.gone(t)
	r.wait(t, 0)
	check("within the lease")

	for _, nothing := range [][]uint64{
		{1 << 20},
		inline(),
		{device.ResidentPieces - 1: device.ResidentInline + 1, 0: device.ResidentCopy},
		{device.ResidentPieces - 1: 1<<32 + 1, 0: device.ResidentCopy},
	} {
		r.put(0, nothing...)
		r.launch(t, hour, patience)
		r.gone(t)
		if r.done(0) != 3 {
			t.Fatalf("%d entries are done, the last of which says nothing", r.done(0))
		}
		r.next[0]--
	}
	h.random(in.Bytes())
	copyOne()
	r.launch(t, hour, patience)
	r.wait(t, 0)
	r.stop(t) // before check frees memory, which drivers do only when nothing runs
	check("after a relaunch")
}

package streamtest

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Hearing is what a batch has told of its page groups: Hear.
type Hearing struct {
	tb      testing.TB
	groups  int
	check   func(group int)
	calling atomic.Bool
	heard   atomic.Int64
	ticket  atomic.Pointer[stream.Ticket]
}

// Hear has p, whose batch is submitted then, tell of its page groups. check is called for each of them, in order, while that it
// has landed is told. It is an error if numbers do not ascend, if there are no such groups, if two goroutines tell at once, or if
// one tells when the ticket has resolved.
func Hear(tb testing.TB, p *mem.Paged, check func(group int)) *Hearing {
	tb.Helper()
	h := &Hearing{tb: tb, groups: len(p.Groups), check: check}
	p.Landed = h.landed
	return h
}

// Of says which ticket the batch has.
func (h *Hearing) Of(t *stream.Ticket) { h.ticket.Store(t) }

// Heard returns how many groups have landed, as was told.
func (h *Hearing) Heard() int { return int(h.heard.Load()) }

func (h *Hearing) landed(groups int, _ bool) {
	if h.calling.Swap(true) {
		h.tb.Error("two goroutines tell at once")
	}
	before := h.Heard()
	if groups <= before || groups > h.groups {
		h.tb.Errorf("%d groups of %d have landed, after %d", groups, h.groups, before)
	}
	h.early("begins to tell")
	for g := before; g < min(groups, h.groups); g++ {
		h.check(g)
	}
	h.heard.Store(int64(groups))
	h.early("tells") // who waits for the ticket may have given up what telling needs
	h.calling.Store(false)
}

func (h *Hearing) early(does string) {
	if t := h.ticket.Load(); t != nil && resolved(t) {
		h.tb.Errorf("it %s after the ticket has resolved", does)
	}
}

// hear has b tell of its page groups. What it tells must be true, as far as can be seen while work may be stalled or fail.
func (w *world) hear(b *mem.Batch, faults bool) *Hearing {
	w.Helper()
	return Hear(w, b.Paged, func(group int) {
		one := mem.Paged{Dir: b.Paged.Dir, Groups: b.Paged.Groups[group : group+1]}
		for dst, src := range one.Extents() {
			if faults && dst.Region.Bytes() == nil || dst.Len == 0 {
				continue // seeing it is work too
			}
			if !bytes.Equal(w.in[dst.Region].Read(w, dst), w.want[src.Region][src.Off:src.Off+src.Len]) {
				w.Errorf("group %d has not landed when that is told", group)
				return
			}
		}
	})
}

// testLanded looks at what has landed when a stream says so. It need not say anything.
func testLanded(t *testing.T, env Env) {
	many := func(n int, sizes ...int64) [][]int64 { return slices.Repeat([][]int64{sizes}, n) }
	large := func(n int) int64 { return int64(less(n)) }
	shapes := map[string]struct {
		pairs  int
		groups [][]int64
	}{
		"one group":           {4, many(1, large(100_000))},
		"small groups":        {3, many(50, 1000, 24)},
		"large groups":        {3, many(4, large(50_000), large(50_001))},
		"one page":            {1, many(16, large(33_000))},
		"groups of all sizes": {3, [][]int64{{}, {large(60_000)}, {0}, {17, 3}, {large(100_000), 1}, {64}, {large(50_000)}, {}}},
		"no pages":            {0, many(3, 100)},
	}
	for name, shape := range shapes {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(name+" "+dir.String(), func(t *testing.T) {
				w := newWorld(t, env, 0, 110)
				batches := []*mem.Batch{ // all there before the first tells, which looks at what is there
					w.paged(dir, env.A, env.B, shape.pairs, shape.groups...), w.paged(dir, env.A, env.B, shape.pairs, shape.groups...),
					w.paged(dir, env.B, env.A, shape.pairs, shape.groups...),
				}
				var hearings []*Hearing
				var tickets []*stream.Ticket
				for i, b := range batches {
					hearings = append(hearings, w.hear(b, false))
					tickets = append(tickets, w.submitOnly(b))
					hearings[i].Of(tickets[i])
				}
				for i, ticket := range tickets {
					w.ok(ticket)
					w.apply(batches[i])
					t.Logf("batch %d: told of %d groups of %d", i, hearings[i].Heard(), len(shape.groups))
				}
				w.check()
			})
		}
	}
}

// testLandedCancel cancels batches in the middle, and gives what they write to somebody else.
func testLandedCancel(t *testing.T, env Env) {
	for round := range 5 {
		w := newWorld(t, env, 0, 111)
		b := w.paged(mem.ToSlots, env.A, env.B, less(40), slices.Repeat([][]int64{{8000}}, 12)...)
		h := w.hear(b, false)
		ticket := w.submitOnly(b)
		h.Of(ticket)
		until := time.Now().Add(time.Duration(round*round) * 40 * time.Microsecond)
		for h.Heard() < round && time.Now().Before(until) && !resolved(ticket) {
			time.Sleep(10 * time.Microsecond)
		}
		ticket.Cancel()
		if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
			t.Fatal(err)
		}
		told := h.Heard()
		for i := range b.Paged.Groups {
			r := b.Paged.Groups[i].Slots.Region
			w.fill(r, bytes.Repeat([]byte{0xa5}, int(r.Len())))
		}
		time.Sleep(pause)
		w.check()
		if h.Heard() != told {
			t.Errorf("round %d: told of %d groups when the ticket had resolved, and of %d later", round, told, h.Heard())
		}
	}
}

// testLandedFails has one work after another of a batch fail.
func testLandedFails(t *testing.T, env Env) {
	for n := 0; ; n += 1 + n/4 {
		w := newWorld(t, env, 0, 112)
		b := w.paged(mem.ToSlots, env.A, env.B, 3, slices.Repeat([][]int64{{int64(less(50_000))}}, 5)...)
		h := w.hear(b, true)
		env.Plan.Add(fault.Nth(env.Work, int(env.Plan.Seen(env.Work))+n).Fail(nil))
		before := env.Plan.Injected()
		ticket := w.submitOnly(b)
		h.Of(ticket)
		err := ticket.Wait(deadline(t))
		failed := env.Plan.Injected() > before
		if failed != (err != nil) {
			t.Fatalf("work %d failed: %t; the ticket says %v", n, failed, err)
		}
		told := h.Heard()
		time.Sleep(pause)
		if h.Heard() != told {
			t.Errorf("work %d: told of %d groups when the ticket had resolved, and of %d later", n, told, h.Heard())
		}
		if err == nil {
			return
		}
		if told == len(b.Paged.Groups) {
			t.Errorf("work %d: told of all groups, of which one has failed", n)
		}
	}
}

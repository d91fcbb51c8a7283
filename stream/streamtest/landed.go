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

// Hearing records the reports about a batch's page groups, see Hear.
type Hearing struct {
	tb      testing.TB
	groups  int
	check   func(group int)
	calling atomic.Bool
	heard   atomic.Int64
	ticket  atomic.Pointer[stream.Ticket]
}

// Hear records the reports about the page groups of p, which is submitted afterwards. It calls
// check for each completed group in order, during the report. The test fails if the reported
// numbers do not ascend or exceed the number of groups. It also fails if two goroutines report at
// once, or if a report comes after the ticket has resolved.
func Hear(tb testing.TB, p *mem.Paged, check func(group int)) *Hearing {
	tb.Helper()
	h := &Hearing{tb: tb, groups: len(p.Groups), check: check}
	p.Landed = h.landed
	return h
}

// Of sets the ticket of the batch.
func (h *Hearing) Of(t *stream.Ticket) { h.ticket.Store(t) }

// Heard returns the number of groups reported as completed.
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
	// A waiter for the ticket may have freed memory that reports need.
	h.early("tells")
	h.calling.Store(false)
}

func (h *Hearing) early(does string) {
	if t := h.ticket.Load(); t != nil && resolved(t) {
		h.tb.Errorf("it %s after the ticket has resolved", does)
	}
}

// hear records the reports about b's page groups and checks the bytes of each reported group. With
// faults it checks only host memory, since the check of device memory is work that may stall or
// fail.
func (w *world) hear(b *mem.Batch, faults bool) *Hearing {
	w.Helper()
	return Hear(w, b.Paged, func(group int) {
		one := mem.Paged{Dir: b.Paged.Dir, Groups: b.Paged.Groups[group : group+1]}
		for dst, src := range one.Extents() {
			if faults && dst.Region.Bytes() == nil || dst.Len == 0 {
				continue // reading it is work of the device too
			}
			if !bytes.Equal(w.in[dst.Region].Read(w, dst), w.want[src.Region][src.Off:src.Off+src.Len]) {
				w.Errorf("group %d has not landed when that is told", group)
				return
			}
		}
	})
}

// testLanded checks the bytes of page groups when the stream reports them. Reports are optional.
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
				// All batches exist before the first report, because its check reads the maps that
				// region writes.
				batches := []*mem.Batch{
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

// testLandedCancel cancels batches at various times and then reuses the memory that they write.
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

// testLandedFails makes one operation after another of a batch fail.
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

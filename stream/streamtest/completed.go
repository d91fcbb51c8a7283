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

// Reports records the reports about a batch's page groups. Record creates one.
type Reports struct {
	tb        testing.TB
	groups    int
	check     func(group int)
	calling   atomic.Bool
	completed atomic.Int64
	ticket    atomic.Pointer[stream.Ticket]
}

// Record records the reports about the page groups of p, which must be submitted afterwards. It
// calls check for each completed group in order, during the report. The test fails if the reported
// numbers do not ascend or exceed the number of groups, if two goroutines report at once, or if a
// report comes after the ticket has resolved.
func Record(tb testing.TB, p *mem.Paged, check func(group int)) *Reports {
	tb.Helper()
	h := &Reports{tb: tb, groups: len(p.Groups), check: check}
	p.Completed = h.report
	return h
}

// SetTicket sets the ticket of the batch.
func (h *Reports) SetTicket(t *stream.Ticket) { h.ticket.Store(t) }

// Completed returns the number of groups reported as completed.
func (h *Reports) Completed() int { return int(h.completed.Load()) }

func (h *Reports) report(groups int, _ bool) {
	if h.calling.Swap(true) {
		h.tb.Error("two goroutines report at once")
	}
	before := h.Completed()
	if groups <= before || groups > h.groups {
		h.tb.Errorf("%d completed groups of %d, after %d", groups, h.groups, before)
	}
	h.checkOpen("before the report")
	for g := before; g < min(groups, h.groups); g++ {
		h.check(g)
	}
	h.completed.Store(int64(groups))
	// A waiter for the ticket may already have freed memory that the report needs.
	h.checkOpen("after the report")
	h.calling.Store(false)
}

// checkOpen fails the test if the ticket has resolved.
func (h *Reports) checkOpen(at string) {
	if t := h.ticket.Load(); t != nil && resolved(t) {
		h.tb.Errorf("the ticket has resolved %s", at)
	}
}

// record records the reports about b's page groups and checks the bytes of each reported group. If
// faults is set it checks only host memory, because checking device memory is work that may stall
// or fail.
func (w *world) record(b *mem.Batch, faults bool) *Reports {
	w.Helper()
	return Record(w, b.Paged, func(group int) {
		one := mem.Paged{Dir: b.Paged.Dir, Groups: b.Paged.Groups[group : group+1]}
		for dst, src := range one.Extents() {
			if faults && dst.Region.Bytes() == nil || dst.Len == 0 {
				continue // a read by the device would meet the faults
			}
			if !bytes.Equal(w.in[dst.Region].Read(w, dst), w.want[src.Region][src.Off:src.Off+src.Len]) {
				w.Errorf("group %d is reported as completed and is not", group)
				return
			}
		}
	})
}

// testCompleted checks the bytes of page groups when the stream reports them. Reports are optional.
func testCompleted(t *testing.T, env Env) {
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
				var reports []*Reports
				var tickets []*stream.Ticket
				for i, b := range batches {
					reports = append(reports, w.record(b, false))
					tickets = append(tickets, w.submitOnly(b))
					reports[i].SetTicket(tickets[i])
				}
				for i, ticket := range tickets {
					w.ok(ticket)
					w.apply(batches[i])
					t.Logf("batch %d: %d of %d groups reported", i, reports[i].Completed(), len(shape.groups))
				}
				w.check()
			})
		}
	}
}

// testCompletedCancel cancels batches at various times and then reuses the memory that they write.
func testCompletedCancel(t *testing.T, env Env) {
	for round := range 5 {
		w := newWorld(t, env, 0, 111)
		b := w.paged(mem.ToSlots, env.A, env.B, less(40), slices.Repeat([][]int64{{8000}}, 12)...)
		h := w.record(b, false)
		ticket := w.submitOnly(b)
		h.SetTicket(ticket)
		until := time.Now().Add(time.Duration(round*round) * 40 * time.Microsecond)
		for h.Completed() < round && time.Now().Before(until) && !resolved(ticket) {
			time.Sleep(10 * time.Microsecond)
		}
		ticket.Cancel()
		if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
			t.Fatal(err)
		}
		before := h.Completed()
		for i := range b.Paged.Groups {
			r := b.Paged.Groups[i].Slots.Region
			w.fill(r, bytes.Repeat([]byte{0xa5}, int(r.Len())))
		}
		time.Sleep(pause)
		w.check()
		if h.Completed() != before {
			t.Errorf("round %d: %d groups reported when the ticket had resolved, and %d later", round, before, h.Completed())
		}
	}
}

// testCompletedFails makes each operation of a batch fail, one per round.
func testCompletedFails(t *testing.T, env Env) {
	for n := 0; ; n += 1 + n/4 {
		w := newWorld(t, env, 0, 112)
		b := w.paged(mem.ToSlots, env.A, env.B, 3, slices.Repeat([][]int64{{int64(less(50_000))}}, 5)...)
		h := w.record(b, true)
		env.Plan.Add(fault.Nth(env.Work, int(env.Plan.Seen(env.Work))+n).Fail(nil))
		before := env.Plan.Injected()
		ticket := w.submitOnly(b)
		h.SetTicket(ticket)
		err := ticket.Wait(deadline(t))
		failed := env.Plan.Injected() > before
		if failed != (err != nil) {
			t.Fatalf("work %d failed: %t; the ticket: %v", n, failed, err)
		}
		reported := h.Completed()
		time.Sleep(pause)
		if h.Completed() != reported {
			t.Errorf("work %d: %d groups reported when the ticket had resolved, and %d later", n, reported, h.Completed())
		}
		if err == nil {
			return
		}
		if reported == len(b.Paged.Groups) {
			t.Errorf("work %d: all groups reported, of which one has failed", n)
		}
	}
}

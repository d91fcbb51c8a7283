package rdmatest

import (
	"context"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

func (h *harness) channel(t *testing.T, i int) rdma.CompChannel {
	t.Helper()
	c, err := h.devs[i].CreateCompChannel()
	must(t, err)
	closeAtEnd(t, "completion channel", c)
	return c
}

// event waits for an event of c and checks that it is for q.
func event(t *testing.T, c rdma.CompChannel, q rdma.CQ) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := c.Wait(ctx)
	must(t, err)
	if got != q {
		t.Fatal("the event is of another queue")
	}
}

// noEvent checks that c has no event.
func noEvent(t *testing.T, c rdma.CompChannel) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), glance)
	defer cancel()
	_, err := c.Wait(ctx)
	wantErr(t, "wait for no event", err, context.DeadlineExceeded)
}

// testChannel checks that a request for an event causes one, at the next completion.
func testChannel(t *testing.T, h *harness) {
	c := h.channel(t, 0)
	one, two := h.cq(t, 0, 64, c), h.cq(t, 0, 64, c)
	a, b := h.end(t, 0, options{cq: one}), h.end(t, 0, options{cq: two})
	for _, e := range []*end{a, b} {
		must(t, Loopback(e.dev, e.qp, e.o.connect))
	}
	a.post(t, a.write(a, 1, 0, 1))
	ok(t, one, 1)
	noEvent(t, c) // no event was requested
	for range 3 {
		must(t, one.RequestNotify(false))
		noEvent(t, c)
		a.post(t, a.write(a, 1, 0, 1), a.write(a, 2, 0, 1))
		event(t, c, one)
		ok(t, one, 2)
	}
	must(t, two.RequestNotify(false))
	a.post(t, a.write(a, 1, 0, 1))
	ok(t, one, 1)
	b.post(t, b.write(b, 1, 0, 1))
	event(t, c, two)
	ok(t, two, 1)
	noEvent(t, c)

	without := h.cq(t, 0, 4, nil)
	wantErr(t, "ask a queue without a channel for an event", without.RequestNotify(false), errdefs.ErrInvalid)

	// To lose no completion: request an event, poll again, then wait.
	const n = 200
	// A device may free a place of the send queue before the completion is polled, so ErrBusy does
	// not keep the poster within the completion queue.
	places := make(chan struct{}, 32)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		for i := range n {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if _, err := a.qp.PostSend([]rdma.SendWR{a.write(a, uint64(i), 0, 1)}); err != nil {
				t.Errorf("post with %d of %d places taken: %v", len(places), defaultCaps.MaxSendWR, err)
				return
			}
		}
	})
	wcs := make([]rdma.WC, 8)
	for got := 0; got < n; {
		k, err := one.Poll(wcs)
		must(t, err)
		if k == 0 {
			must(t, one.RequestNotify(false))
			if k, err = one.Poll(wcs); k == 0 {
				event(t, c, one)
			}
			must(t, err)
		}
		for i := range k {
			wantStatus(t, &wcs[i], uint64(got+i), a.qp, rdma.WCSuccess)
			<-places
		}
		got += k
	}
}

// testChannelSolicited checks that a request for solicited completions causes events for those and
// for failures.
func testChannelSolicited(t *testing.T, h *harness) {
	c := h.channel(t, 1)
	q := h.cq(t, 1, 64, c)
	a, b := h.end(t, 0, options{}), h.end(t, 1, options{cq: q})
	connect(t, a, b)
	b.postRecv(t, b.recv(1, 0, 8), b.recv(2, 0, 8), b.recv(3, 0, 8))
	must(t, q.RequestNotify(true))
	plain, solicited := a.send(1, 0, 8), a.send(2, 0, 8)
	solicited.Flags |= rdma.SendSolicited
	a.post(t, plain)
	ok(t, q, 1)
	noEvent(t, c)
	a.post(t, solicited)
	event(t, c, q)
	ok(t, q, 1)
	must(t, q.RequestNotify(true))
	must(t, b.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	event(t, c, q)
	wc := await(t, q, 1)[0]
	wantStatus(t, &wc, 3, b.qp, rdma.WCWRFlushErr)
}

func testChannelCloses(t *testing.T, h *harness) {
	c, err := h.devs[0].CreateCompChannel()
	must(t, err)
	q, err := h.devs[0].CreateCQ(rdma.CQOptions{Entries: 4, Channel: c})
	must(t, err)
	wantErr(t, "close a channel in use", c.Close(), errdefs.ErrBusy)
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() {
			_, err := c.Wait(t.Context())
			ended <- err
		}()
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Wait(canceled)
	wantErr(t, "wait with a context that has ended", err, context.Canceled)
	must(t, q.Close())
	must(t, c.Close())
	for range cap(ended) {
		wantErr(t, "wait for a channel that closes", <-ended, errdefs.ErrClosed)
	}
	_, err = c.Wait(t.Context())
	wantErr(t, "wait for a closed channel", err, errdefs.ErrClosed)
	must(t, c.Close())
	_, err = h.devs[0].CreateCQ(rdma.CQOptions{Entries: 4, Channel: c})
	wantErr(t, "attach a queue to a closed channel", err, errdefs.ErrClosed)
}

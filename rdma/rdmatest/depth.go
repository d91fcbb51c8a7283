package rdmatest

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// testSendDepth fills a send queue. It checks that the next request is refused, that the posted
// ones are executed, and that polling frees space.
func testSendDepth(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		info, err := a.qp.Query()
		must(t, err)
		depth := info.Caps.MaxSendWR
		if depth < defaultCaps.MaxSendWR {
			t.Fatalf("the queue takes %d requests of %d asked for", depth, defaultCaps.MaxSendWR)
		}
		wrs := make([]rdma.SendWR, depth+8)
		for i := range wrs {
			wrs[i] = a.write(b, uint64(i), int64(i), 1)
		}
		for range 3 {
			n, err := a.qp.PostSend(wrs)
			wantErr(t, "post more than there is room for", err, errdefs.ErrBusy)
			if n < defaultCaps.MaxSendWR || n > depth {
				t.Fatalf("a queue of %d took %d", depth, n)
			}
			for i, wc := range ok(t, a.scq, n) {
				wantStatus(t, &wc, uint64(i), a.qp, rdma.WCSuccess)
			}
			same(t, "writes", b.far()[:n], a.near()[:n])
			h.fill(t, a.near())
		}
		none(t, a.scq)
	})
}

func testRecvDepth(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	info, err := b.qp.Query()
	must(t, err)
	depth := info.Caps.MaxRecvWR
	wrs := make([]rdma.RecvWR, depth+8)
	for i := range wrs {
		wrs[i] = b.recv(uint64(i), int64(i), 1)
	}
	for range 2 {
		n, err := b.qp.PostRecv(wrs)
		wantErr(t, "post more receives than there is room for", err, errdefs.ErrBusy)
		if n < defaultCaps.MaxRecvWR || n > depth {
			t.Fatalf("a queue of %d took %d", depth, n)
		}
		for i := range n {
			a.post(t, a.send(uint64(i), int64(i), 1))
			ok(t, a.scq, 1)
		}
		ok(t, b.rcq, n)
		same(t, "sends", b.far()[:n], a.near()[:n])
	}
}

// testPostRefuses checks that for a chain with an invalid request, the earlier requests are
// executed and the later ones are not posted.
func testPostRefuses(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	info, err := a.qp.Query()
	must(t, err)
	many := make([]rdma.SGE, info.Caps.MaxSendSGE+1)
	for what, spoil := range map[string]func(w *rdma.SendWR){
		"too many entries": func(w *rdma.SendWR) { w.SGEs = many },
		"too much inline": func(w *rdma.SendWR) {
			w.Flags, w.SGEs, w.Inline = rdma.SendInline, nil, make([]byte, info.Caps.MaxInlineBytes+1)
		},
		"inline and entries": func(w *rdma.SendWR) { w.Flags, w.Inline = rdma.SendInline, []byte{1} },
		"inline read": func(w *rdma.SendWR) {
			w.Opcode, w.Flags, w.SGEs, w.Inline = rdma.WRRDMARead, rdma.SendInline, nil, []byte{1}
		},
		"an opcode that there is not": func(w *rdma.SendWR) { w.Opcode = 77 },
	} {
		wrs := []rdma.SendWR{a.write(b, 1, 0, 8), a.write(b, 2, 8, 8), a.write(b, 3, 16, 8)}
		spoil(&wrs[1])
		n, err := a.qp.PostSend(wrs)
		wantErr(t, what, err, errdefs.ErrInvalid)
		if n != 1 {
			t.Errorf("%s: %d were posted", what, n)
		}
		ok(t, a.scq, n)
		none(t, a.scq)
	}
	n, err := b.qp.PostRecv([]rdma.RecvWR{{}, {SGEs: make([]rdma.SGE, 1000)}})
	wantErr(t, "a receive with too many entries", err, errdefs.ErrInvalid)
	if n != 1 {
		t.Errorf("%d receives were posted", n)
	}
	fresh := h.end(t, 0, options{})
	_, err = fresh.qp.PostSend([]rdma.SendWR{fresh.write(b, 1, 0, 8)})
	wantErr(t, "send before the queue pair is connected", err, errdefs.ErrInvalid)
	if n, err := a.qp.PostSend(nil); n != 0 || err != nil {
		t.Errorf("posting nothing: %d, %v", n, err)
	}
}

func testSharedReceive(t *testing.T, h *harness) {
	pd, err := h.devs[1].AllocPD()
	must(t, err)
	closeAtEnd(t, "protection domain", pd)
	srq, err := pd.CreateSRQ(rdma.SRQCaps{MaxWR: 32, MaxSGE: 2})
	must(t, err)
	closeAtEnd(t, "shared receive queue", srq)
	depth := srq.Caps().MaxWR
	if depth < 32 || srq.Caps().MaxSGE < 2 {
		t.Fatalf("capacities %+v", srq.Caps())
	}
	cq := h.cq(t, 1, 256, nil)
	var senders, receivers []*end
	for range 3 {
		s, r := h.end(t, 0, options{}), h.end(t, 1, options{pd: pd, srq: srq, cq: cq})
		connect(t, s, r)
		senders, receivers = append(senders, s), append(receivers, r)
	}
	for range 3 {
		wrs := make([]rdma.RecvWR, depth+4)
		for i := range wrs {
			wrs[i] = receivers[0].recv(uint64(i), int64(i*8), 8)
		}
		n, err := srq.PostRecv(wrs)
		wantErr(t, "post more shared receives than there is room for", err, errdefs.ErrBusy)
		if n < 32 || n > depth {
			t.Fatalf("a shared queue of %d took %d", depth, n)
		}
		// One at a time, so that the order is known.
		for i := range n {
			s := senders[i%3]
			s.post(t, s.send(1, int64(i*8), 8))
			ok(t, s.scq, 1)
			wc := ok(t, cq, 1)[0]
			wantStatus(t, &wc, uint64(i), receivers[i%3].qp, rdma.WCSuccess)
			same(t, "send", receivers[0].far()[i*8:i*8+8], s.near()[i*8:i*8+8])
		}
	}
}

func testSharedReceiveRefuses(t *testing.T, h *harness) {
	pd, err := h.devs[0].AllocPD()
	must(t, err)
	closeAtEnd(t, "protection domain", pd)
	srq, err := pd.CreateSRQ(rdma.SRQCaps{MaxWR: 4, MaxSGE: 1})
	must(t, err)
	e := h.end(t, 0, options{pd: pd, srq: srq})
	must(t, Loopback(e.dev, e.qp, e.o.connect))
	_, err = e.qp.PostRecv([]rdma.RecvWR{{}})
	wantErr(t, "post a receive on a queue pair with a shared queue", err, errdefs.ErrInvalid)
	wantErr(t, "close a shared queue in use", srq.Close(), errdefs.ErrBusy)
	must(t, e.qp.Close())
	must(t, srq.Close())
	_, err = srq.PostRecv([]rdma.RecvWR{{}})
	wantErr(t, "post on a closed shared queue", err, errdefs.ErrClosed)
	_, err = pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1 << 30, MaxSGE: 1})
	wantErr(t, "create a shared queue that is too large", err, errdefs.ErrInvalid)
}

// testCQOverflow checks that a completion queue that overflows is unusable and that the device
// reports it.
func testCQOverflow(t *testing.T, h *harness) {
	small := h.cq(t, 0, 4, nil)
	caps := defaultCaps
	caps.MaxSendWR = small.Entries() + 16
	a := h.end(t, 0, options{cq: small, caps: caps})
	must(t, Loopback(a.dev, a.qp, a.o.connect))
	wrs := make([]rdma.SendWR, small.Entries()+8)
	for i := range wrs {
		wrs[i] = a.write(a, uint64(i), 0, 1)
	}
	a.post(t, wrs...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		e, err := a.dev.WaitEvent(ctx)
		must(t, err)
		if e.Type == rdma.EventCQErr {
			if e.CQ != small {
				t.Errorf("the event is of another queue: %+v", e)
			}
			break
		}
	}
	wcs := make([]rdma.WC, 2*len(wrs))
	for got := 0; ; {
		n, err := small.Poll(wcs)
		if got += n; got > small.Entries() {
			t.Fatalf("%d completions of a queue of %d", got, small.Entries())
		}
		if err != nil && !errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("poll a lost queue: %v", err)
		}
		if n == 0 || err != nil {
			break
		}
	}
}

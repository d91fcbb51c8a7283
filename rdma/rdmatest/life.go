package rdmatest

import (
	"io"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// testStates checks that permitted state transitions succeed and others are refused.
func testStates(t *testing.T, h *harness) {
	e := h.end(t, 0, options{})
	self, err := rdma.LocalEndpoint(e.dev, e.qp, e.o.connect)
	must(t, err)
	good := rdma.QPAttr{
		Port: h.c.Port, Access: rdma.AccessRemoteWrite, Address: rdma.Address{GID: self.GID, GIDIndex: h.c.GIDIndex, LID: self.LID, HopLimit: 64},
		PathMTU: self.MTU, DestQPNum: self.QPNum, MinRNRTimer: 12, MaxDestRDAtomic: 1, MaxRDAtomic: 1, Timeout: 14, RetryCount: 7, RNRRetry: 7,
	}
	to := func(s rdma.QPState) error {
		a := good
		a.State = s
		return e.qp.Modify(a)
	}
	refuse := func(states ...rdma.QPState) {
		t.Helper()
		info, err := e.qp.Query()
		must(t, err)
		for _, s := range states {
			wantErr(t, info.Attr.State.String()+" to "+s.String(), to(s), errdefs.ErrInvalid)
		}
		wantState(t, e.qp, info.Attr.State)
	}
	for range 2 {
		wantState(t, e.qp, rdma.QPSReset)
		refuse(rdma.QPSRTR, rdma.QPSRTS, rdma.QPSErr)
		_, err := e.qp.PostRecv([]rdma.RecvWR{{}})
		wantErr(t, "post a receive in RESET", err, errdefs.ErrInvalid)
		must(t, to(rdma.QPSInit))
		wantState(t, e.qp, rdma.QPSInit)
		refuse(rdma.QPSRTS)
		e.postRecv(t, e.recv(1, 0, 8))
		must(t, to(rdma.QPSRTR))
		wantState(t, e.qp, rdma.QPSRTR)
		refuse(rdma.QPSInit)
		must(t, to(rdma.QPSRTS))
		wantState(t, e.qp, rdma.QPSRTS)
		refuse(rdma.QPSInit, rdma.QPSRTR)
		e.post(t, e.send(1, 0, 8))
		ok(t, e.scq, 1)
		ok(t, e.rcq, 1)
		must(t, to(rdma.QPSErr))
		wantState(t, e.qp, rdma.QPSErr)
		must(t, to(rdma.QPSErr))
		refuse(rdma.QPSInit, rdma.QPSRTR, rdma.QPSRTS)
		must(t, to(rdma.QPSReset))
		must(t, to(rdma.QPSReset))
	}
	bad := good
	bad.State, bad.Port = rdma.QPSInit, e.dev.Info().Ports+1
	wantErr(t, "a port that does not exist", e.qp.Modify(bad), errdefs.ErrInvalid)
}

func testQuery(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	if a.qp.Num() == b.qp.Num() && a.dev == b.dev {
		t.Errorf("two queue pairs have number %d", a.qp.Num())
	}
	info, err := a.qp.Query()
	must(t, err)
	at, dev := info.Attr, a.dev.Info()
	if at.State != rdma.QPSRTS || at.Port != h.c.Port || at.DestQPNum != b.qp.Num() || at.PathMTU.Bytes() == 0 || at.Access != rdma.AccessRemoteWrite|rdma.AccessRemoteRead {
		t.Errorf("attributes %+v", at)
	}
	// The connection must permit as many outstanding reads as both sides support. One at a time
	// would slow device-to-host copies.
	if want := min(dev.MaxQPInitRDAtomic, b.dev.Info().MaxQPRDAtomic, 255); int(at.MaxRDAtomic) != want {
		t.Errorf("connection permits %d outstanding reads, devices support %d", at.MaxRDAtomic, want)
	}
	c := info.Caps
	if c.MaxSendWR < defaultCaps.MaxSendWR || c.MaxRecvWR < defaultCaps.MaxRecvWR || c.MaxSendSGE < defaultCaps.MaxSendSGE || c.MaxRecvSGE < defaultCaps.MaxRecvSGE {
		t.Errorf("capacities %+v, %+v asked for", c, defaultCaps)
	}
	for what, caps := range map[string]rdma.QPCaps{
		"too many sends":    {MaxSendWR: 1 << 30},
		"too many receives": {MaxRecvWR: 1 << 30},
		"too many entries":  {MaxSendWR: 1, MaxSendSGE: 1 << 20},
	} {
		_, err := a.pd.CreateQP(rdma.QPOptions{SendCQ: a.scq, RecvCQ: a.rcq, Caps: caps})
		wantErr(t, what, err, errdefs.ErrInvalid)
	}
	_, err = a.dev.CreateCQ(rdma.CQOptions{Entries: 1 << 30})
	wantErr(t, "too many completions", err, errdefs.ErrInvalid)
	_, err = a.dev.CreateCQ(rdma.CQOptions{})
	wantErr(t, "a completion queue of none", err, errdefs.ErrInvalid)
}

// testReset checks that a reset returns a failed queue pair to its initial state, several times.
func testReset(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for range 5 {
			bad := a.write(b, 1, 0, 8)
			bad.RKey ^= 0x5a5a00
			a.post(t, bad)
			await(t, a.scq, 1)
			a.reset(t)
			if a != b {
				b.reset(t)
			}
			connect(t, a, b)
			h.fill(t, a.near())
			b.postRecv(t, b.recv(9, 4096, 64))
			a.post(t, a.write(b, 2, 0, 4096), a.send(3, 4096, 64))
			wcs := ok(t, a.scq, 2)
			wantStatus(t, &wcs[0], 2, a.qp, rdma.WCSuccess)
			wantStatus(t, &wcs[1], 3, a.qp, rdma.WCSuccess)
			ok(t, b.rcq, 1)
			same(t, "after a reset", b.far()[:4160], a.near()[:4160])
		}
	})
}

// testResetWithWork checks that after a reset with posted requests, no memory is accessed and all
// queue entries are free.
func testResetWithWork(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for range 5 {
			for range 4 {
				b.postRecv(t, b.recv(1, 0, 64))
			}
			for i := range defaultCaps.MaxSendWR {
				a.post(t, a.write(b, uint64(i), 0, half))
			}
			a.reset(t)
			if a != b {
				b.reset(t)
			}
			h.fill(t, a.near())
			h.fill(t, b.far())
			want := append([]byte(nil), b.far()...)
			// Completions from before the reset may still arrive now, but not later.
			drain(t, a.scq)
			drain(t, b.rcq)
			same(t, "memory after a reset", b.far(), want)
			connect(t, a, b)
			// A send must not use the receives from before the reset.
			b.postRecv(t, b.recv(78, 0, 64))
			a.post(t, a.send(77, 0, 64))
			wc := ok(t, a.scq, 1)[0]
			wantStatus(t, &wc, 77, a.qp, rdma.WCSuccess)
			wc = ok(t, b.rcq, 1)[0]
			wantStatus(t, &wc, 78, b.qp, rdma.WCSuccess)
			same(t, "send", b.far()[:64], a.near()[:64])
			a.reset(t)
			if a != b {
				b.reset(t)
			}
			drain(t, a.scq)
			drain(t, b.rcq)
			connect(t, a, b)
		}
	})
}

// drain polls until the queue is empty.
func drain(t *testing.T, q rdma.CQ) {
	t.Helper()
	wcs := make([]rdma.WC, 16)
	for {
		n, err := q.Poll(wcs)
		must(t, err)
		if n == 0 {
			return
		}
	}
}

// testCloseWithWork checks that memory can be used and freed after Close of a queue pair with work
// in flight.
func testCloseWithWork(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i := range 32 {
			a.post(t, a.write(b, uint64(i), 0, half))
		}
		must(t, a.qp.Close())
		must(t, b.qp.Close())
		must(t, a.mr.Close())
		must(t, b.mr.Close())
		h.fill(t, b.far())
		want := append([]byte(nil), b.far()...)
		drain(t, a.scq)
		same(t, "memory after Close", b.far(), want)
	})
}

// testCloseOrder checks that an object cannot be closed before its children, in any order, and that
// closing twice returns nil.
func testCloseOrder(t *testing.T, h *harness) {
	d, err := h.prov.Open(h.c.Devices[0])
	must(t, err)
	pd, err := d.AllocPD()
	must(t, err)
	ch, err := d.CreateCompChannel()
	must(t, err)
	cq, err := d.CreateCQ(rdma.CQOptions{Entries: 4, Channel: ch})
	must(t, err)
	srq, err := pd.CreateSRQ(rdma.SRQCaps{MaxWR: 4, MaxSGE: 1})
	must(t, err)
	mr, err := pd.RegMR(mem.All(memory(t, 4096)), rdma.MROptions{Access: access})
	must(t, err)
	qp, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq, Caps: rdma.QPCaps{MaxSendWR: 4, MaxSendSGE: 1}})
	must(t, err)
	order := []struct {
		name   string
		c      io.Closer
		blocks []io.Closer // objects that cannot be closed while this one is open
	}{
		{"queue pair", qp, []io.Closer{srq, cq, pd, ch, d, h.prov}},
		{"shared receive queue", srq, []io.Closer{pd, d, h.prov}},
		{"memory region", mr, []io.Closer{pd, d, h.prov}},
		{"completion queue", cq, []io.Closer{ch, d, h.prov}},
		{"completion channel", ch, []io.Closer{d, h.prov}},
		{"protection domain", pd, []io.Closer{d, h.prov}},
		{"device", d, nil},
	}
	for _, o := range order {
		for _, c := range o.blocks {
			wantErr(t, "close before the "+o.name, c.Close(), errdefs.ErrBusy)
		}
		must(t, o.c.Close())
		must(t, o.c.Close())
	}
}

// testClosed checks that calls on closed objects are refused.
func testClosed(t *testing.T, h *harness) {
	d, err := h.prov.Open(h.c.Devices[0])
	must(t, err)
	pd, err := d.AllocPD()
	must(t, err)
	cq, err := d.CreateCQ(rdma.CQOptions{Entries: 4})
	must(t, err)
	qp, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: defaultCaps})
	must(t, err)
	r := memory(t, 4096)
	for _, c := range []io.Closer{qp, cq, pd, d} {
		must(t, c.Close())
	}
	for what, call := range map[string]func() error{
		"PostSend":      func() error { _, err := qp.PostSend(make([]rdma.SendWR, 1)); return err },
		"PostRecv":      func() error { _, err := qp.PostRecv(make([]rdma.RecvWR, 1)); return err },
		"Modify":        func() error { return qp.Modify(rdma.QPAttr{State: rdma.QPSReset}) },
		"Query":         func() error { _, err := qp.Query(); return err },
		"Poll":          func() error { _, err := cq.Poll(make([]rdma.WC, 1)); return err },
		"RequestNotify": func() error { return cq.RequestNotify(false) },
		"RegMR":         func() error { _, err := pd.RegMR(mem.All(r), rdma.MROptions{Access: access}); return err },
		"CreateQP": func() error {
			_, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: defaultCaps})
			return err
		},
		"CreateSRQ":     func() error { _, err := pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1, MaxSGE: 1}); return err },
		"AllocPD":       func() error { _, err := d.AllocPD(); return err },
		"CreateChannel": func() error { _, err := d.CreateCompChannel(); return err },
		"CreateCQ":      func() error { _, err := d.CreateCQ(rdma.CQOptions{Entries: 1}); return err },
		"QueryPort":     func() error { _, err := d.QueryPort(h.c.Port); return err },
		"QueryGID":      func() error { _, err := d.QueryGID(h.c.Port, h.c.GIDIndex); return err },
	} {
		wantErr(t, what+" of a closed object", call(), errdefs.ErrClosed)
	}
}

package rdmatest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// broken posts a chain of a good request, the bad one and two more, with a receive outstanding. It
// checks that the good one succeeds, the bad one completes with one of the statuses, and the later
// ones are flushed, with or without SendSignaled.
func broken(t *testing.T, a, b *end, bad rdma.SendWR, statuses ...rdma.WCStatus) {
	t.Helper()
	a.postRecv(t, a.recv(100, 0, 8))
	before := bytes.Clone(b.far())
	bad.WRID = 2
	bad.Flags = 0 // a failure is always reported
	silent := a.write(b, 3, 4096, 64)
	silent.Flags = 0
	a.post(t, a.write(b, 1, 0, 64), bad, silent, a.write(b, 4, 8192, 64))
	wcs := await(t, a.scq, 4)
	wantStatus(t, &wcs[0], 1, a.qp, rdma.WCSuccess)
	wantStatus(t, &wcs[1], 2, a.qp, statuses...)
	if e := wcs[1].Err(); e == nil || errors.Is(e, errdefs.ErrBroken) {
		t.Errorf("the failure of a wrong request is not ErrInvalid: %v", e)
	}
	wantStatus(t, &wcs[2], 3, a.qp, rdma.WCWRFlushErr)
	wantStatus(t, &wcs[3], 4, a.qp, rdma.WCWRFlushErr)
	wantErr(t, "a flushed request", wcs[3].Err(), errdefs.ErrBroken)
	wantState(t, a.qp, rdma.QPSErr)
	wc := await(t, a.rcq, 1)[0]
	wantStatus(t, &wc, 100, a.qp, rdma.WCWRFlushErr)
	// Requests posted now are flushed too.
	a.post(t, silent)
	wc = await(t, a.scq, 1)[0]
	wantStatus(t, &wc, 3, a.qp, rdma.WCWRFlushErr)
	if !a.h.c.LateReceivesStay {
		a.postRecv(t, a.recv(101, 0, 8))
		wc = await(t, a.rcq, 1)[0]
		wantStatus(t, &wc, 101, a.qp, rdma.WCWRFlushErr)
	}
	none(t, a.scq)
	same(t, "the good write", b.far()[:64], a.near()[:64])
	// A device may execute writes before an earlier read has finished.
	if bad.Opcode != rdma.WRRDMARead {
		same(t, "memory of the flushed writes", b.far()[64:], before[64:])
	}
}

func testLocalKeys(t *testing.T, h *harness) {
	for name, spoil := range map[string]func(t *testing.T, a *end, w *rdma.SendWR){
		"no such key":      func(_ *testing.T, _ *end, w *rdma.SendWR) { w.SGEs[0].LKey ^= 0x5a5a00 },
		"before the start": func(_ *testing.T, a *end, w *rdma.SendWR) { w.SGEs[0].Addr = a.info.Addr - 1 },
		"beyond the end":   func(_ *testing.T, a *end, w *rdma.SendWR) { w.SGEs[0].Addr = a.info.Addr + 2*half - 63 },
		"wraps around":     func(_ *testing.T, _ *end, w *rdma.SendWR) { w.SGEs[0].Addr = ^uint64(0) - 7 },
		"deregistered": func(t *testing.T, a *end, w *rdma.SendWR) {
			m, err := a.pd.RegMR(mem.All(a.mem), rdma.MROptions{Access: access})
			must(t, err)
			w.SGEs[0].LKey = m.Info().LKey
			must(t, m.Close())
		},
		"of another domain": func(t *testing.T, a *end, w *rdma.SendWR) {
			w.SGEs[0].LKey = foreign(t, a).Info().LKey
		},
		"read into what is read-only": func(t *testing.T, a *end, w *rdma.SendWR) {
			m, err := a.pd.RegMR(mem.All(a.mem), rdma.MROptions{})
			must(t, err)
			closeAtEnd(t, "memory region", m)
			w.Opcode, w.SGEs[0].LKey = rdma.WRRDMARead, m.Info().LKey
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.shapes(t, options{}, func(t *testing.T, a, b *end) {
				w := a.write(b, 2, 4096, 64)
				spoil(t, a, &w)
				// Devices report an unknown key with either status.
				broken(t, a, b, w, rdma.WCLocProtErr, rdma.WCLocQPOpErr)
			})
		})
	}
}

// foreign registers e's memory in another protection domain.
func foreign(t *testing.T, e *end) rdma.MR {
	t.Helper()
	pd, err := e.dev.AllocPD()
	must(t, err)
	closeAtEnd(t, "protection domain", pd)
	m, err := pd.RegMR(mem.All(e.mem), rdma.MROptions{Access: access})
	must(t, err)
	closeAtEnd(t, "memory region", m)
	return m
}

func testRemoteKeys(t *testing.T, h *harness) {
	restricted := func(t *testing.T, b *end, w *rdma.SendWR, access rdma.Access) {
		t.Helper()
		m, err := b.pd.RegMR(mem.All(b.mem), rdma.MROptions{Access: access})
		must(t, err)
		closeAtEnd(t, "memory region", m)
		w.RKey = m.Info().RKey
	}
	for name, spoil := range map[string]func(t *testing.T, b *end, w *rdma.SendWR){
		"no such key":      func(_ *testing.T, _ *end, w *rdma.SendWR) { w.RKey ^= 0x5a5a00 },
		"before the start": func(_ *testing.T, b *end, w *rdma.SendWR) { w.RemoteAddr = b.info.Addr - 1 },
		"beyond the end":   func(_ *testing.T, b *end, w *rdma.SendWR) { w.RemoteAddr = b.info.Addr + 2*half - 63 },
		"deregistered": func(t *testing.T, b *end, w *rdma.SendWR) {
			m, err := b.pd.RegMR(mem.All(b.mem), rdma.MROptions{Access: access})
			must(t, err)
			w.RKey = m.Info().RKey
			must(t, m.Close())
		},
		"of another domain": func(t *testing.T, b *end, w *rdma.SendWR) { w.RKey = foreign(t, b).Info().RKey },
		"write to what is read-only": func(t *testing.T, b *end, w *rdma.SendWR) {
			restricted(t, b, w, rdma.AccessRemoteRead)
		},
		"read what may not be read": func(t *testing.T, b *end, w *rdma.SendWR) {
			w.Opcode = rdma.WRRDMARead
			restricted(t, b, w, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
		},
		"what is for atomics": func(t *testing.T, b *end, w *rdma.SendWR) {
			restricted(t, b, w, rdma.AccessLocalWrite|rdma.AccessRemoteAtomic)
		},
		"not by its IOVA": func(t *testing.T, b *end, w *rdma.SendWR) {
			m, err := b.pd.RegMR(mem.All(b.mem), rdma.MROptions{Access: access, IOVA: new(uint64)})
			must(t, err)
			closeAtEnd(t, "memory region", m)
			w.RKey = m.Info().RKey // RKey for the CPU's address
		},
		"what is local": func(t *testing.T, b *end, w *rdma.SendWR) { restricted(t, b, w, rdma.AccessLocalWrite) },
	} {
		t.Run(name, func(t *testing.T) {
			h.shapes(t, options{}, func(t *testing.T, a, b *end) {
				w := a.write(b, 2, 4096, 64)
				spoil(t, b, &w)
				broken(t, a, b, w, rdma.WCRemAccessErr)
			})
		})
	}
}

// testPeerForbids checks that the access flags of a queue pair limit its peer, even if the memory
// region permits the operation.
func testPeerForbids(t *testing.T, h *harness) {
	for _, tt := range []struct {
		allows rdma.Access
		op     rdma.WROpcode
	}{{rdma.AccessRemoteRead, rdma.WRRDMAWrite}, {rdma.AccessRemoteWrite, rdma.WRRDMARead}} {
		t.Run(tt.op.String(), func(t *testing.T) {
			a, b := h.pair(t, options{connect: rdma.ConnectOptions{Access: tt.allows}})
			w := a.write(b, 1, 0, 64)
			w.Opcode = tt.op
			a.post(t, w)
			wc := await(t, a.scq, 1)[0]
			wantStatus(t, &wc, 1, a.qp, rdma.WCRemInvReqErr, rdma.WCRemAccessErr)
			wantState(t, a.qp, rdma.QPSErr)
		})
	}
}

// testNoReceive checks that a send to a peer without a posted receive fails.
func testNoReceive(t *testing.T, h *harness) {
	h.shapes(t, options{connect: rdma.ConnectOptions{RNRRetry: 1, RNRTimer: rdma.RNRTimer(1)}}, func(t *testing.T, a, b *end) {
		w := a.write(b, 2, 0, 8)
		w.Opcode = rdma.WRRDMAWriteWithImm
		a.post(t, a.send(1, 0, 8), w)
		wcs := await(t, a.scq, 2)
		wantStatus(t, &wcs[0], 1, a.qp, rdma.WCRNRRetryExcErr)
		wantErr(t, "no receive", wcs[0].Err(), errdefs.ErrBusy)
		wantStatus(t, &wcs[1], 2, a.qp, rdma.WCWRFlushErr)
		wantState(t, a.qp, rdma.QPSErr)
	})
}

// testLateReceive checks that with unlimited retries a send waits for its receive.
func testLateReceive(t *testing.T, h *harness) {
	h.shapes(t, options{connect: rdma.ConnectOptions{RNRTimer: rdma.RNRTimer(1)}}, func(t *testing.T, a, b *end) {
		a.post(t, a.send(1, 0, 8), a.send(2, 8, 8))
		none(t, a.scq)
		b.postRecv(t, b.recv(1, 0, 8))
		ok(t, a.scq, 1)
		ok(t, b.rcq, 1)
		none(t, a.scq)
		b.postRecv(t, b.recv(2, 8, 8))
		ok(t, a.scq, 1)
		ok(t, b.rcq, 1)
		same(t, "late receives", b.far()[:16], a.near()[:16])
	})
}

func testTooLongForReceive(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	b.postRecv(t, b.recv(1, 0, 8), b.recv(2, 0, 100))
	a.post(t, a.send(1, 0, 9), a.send(2, 0, 9))
	wcs := await(t, a.scq, 2)
	wantStatus(t, &wcs[0], 1, a.qp, rdma.WCRemInvReqErr, rdma.WCRemOpErr)
	wantStatus(t, &wcs[1], 2, a.qp, rdma.WCWRFlushErr)
	wcs = await(t, b.rcq, 2)
	wantStatus(t, &wcs[0], 1, b.qp, rdma.WCLocLenErr, rdma.WCLocQPOpErr)
	wantStatus(t, &wcs[1], 2, b.qp, rdma.WCWRFlushErr)
	wantState(t, a.qp, rdma.QPSErr)
	wantState(t, b.qp, rdma.QPSErr)
}

// testPeerGone checks that requests to a peer that no longer responds fail, and do so quickly with
// a short timeout.
func testPeerGone(t *testing.T, h *harness) {
	quick := options{connect: rdma.ConnectOptions{AckTimeout: rdma.AckTimeout(12), RetryCount: 3}}
	for name, disconnect := range map[string]func(t *testing.T, b *end){
		"closed": func(t *testing.T, b *end) { must(t, b.qp.Close()) },
		"reset":  func(t *testing.T, b *end) { b.reset(t) },
		"error":  func(t *testing.T, b *end) { must(t, b.qp.Modify(rdma.QPAttr{State: rdma.QPSErr})) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := h.pair(t, quick)
			a.post(t, a.write(b, 0, 0, 8))
			ok(t, a.scq, 1)
			disconnect(t, b)
			start := time.Now()
			a.post(t, a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
			wcs := await(t, a.scq, 2)
			wantStatus(t, &wcs[0], 1, a.qp, rdma.WCRetryExcErr)
			if err := wcs[0].Err(); err == nil || errors.Is(err, errdefs.ErrBroken) {
				t.Errorf("a peer that is gone is no earlier failure: %v", err)
			}
			wantStatus(t, &wcs[1], 2, a.qp, rdma.WCWRFlushErr)
			if d := time.Since(start); d < quick.connect.AckTimeout {
				t.Errorf("the peer was given up after %v", d)
			}
			wantState(t, a.qp, rdma.QPSErr)
		})
	}
}

// testErrorFlushes checks that moving a queue pair to the error state completes all posted
// requests.
func testErrorFlushes(t *testing.T, h *harness) {
	h.shapes(t, options{connect: rdma.ConnectOptions{RNRTimer: rdma.RNRTimer(0)}}, func(t *testing.T, a, b *end) {
		// The first request waits for a receive, and the others wait for the first.
		for i := range 10 {
			w := a.send(uint64(i), 0, 8)
			if i%2 == 1 {
				w.Flags = 0
			}
			a.post(t, w)
		}
		none(t, a.scq)
		if a != b { // a loopback would use the receives
			for i := range 10 {
				a.postRecv(t, a.recv(uint64(i), 0, 8))
			}
		}
		must(t, a.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
		for i, wc := range await(t, a.scq, 10) {
			wantStatus(t, &wc, uint64(i), a.qp, rdma.WCWRFlushErr)
		}
		if a != b {
			for i, wc := range await(t, a.rcq, 10) {
				wantStatus(t, &wc, uint64(i), a.qp, rdma.WCWRFlushErr)
			}
		}
		none(t, a.scq)
		none(t, a.rcq)
	})
}

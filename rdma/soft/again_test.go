package soft_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// warm returns a rig whose queue pair has reached its peer, with a mover that is busy: what is posted next is one transfer, and
// all of it but the first request may start as the one before did.
func warm(t *testing.T) (*rig, *slowMover) {
	t.Helper()
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	t.Cleanup(m.letGo)
	m.letGo()
	post(t, r.qp, r.write(0, 0, 4096, 8))
	good(t, r.cq, 1)
	m.shut()
	r.keepBusy(t, m)
	return r, m
}

// plainRuns returns how many there were.
func (m *slowMover) plainRuns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plain
}

// TestRequestsAreCheckedEachByItself: a request behind others that went well is refused for what is wrong with it, whatever
// memory those before it were allowed to use, and what is behind it is flushed.
func TestRequestsAreCheckedEachByItself(t *testing.T) {
	const end = 1 << 20
	type keys struct{ stranger, readable, source rdma.MRInfo }
	for name, tt := range map[string]struct {
		bad  func(r *rig, k *keys) rdma.SendWR
		want rdma.WCStatus
	}{
		"nothing is wrong":     {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, 3000, 4096, 8) }, rdma.WCSuccess},
		"beyond remote memory": {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, end-4, 4096, 8) }, rdma.WCRemAccessErr},
		"before remote memory": {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, -4, 4096, 8) }, rdma.WCRemAccessErr},
		"beyond local memory":  {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, 4096, end-4, 8) }, rdma.WCLocProtErr},
		"read beyond memory":   {func(r *rig, _ *keys) rdma.SendWR { return r.move(rdma.WRRDMARead, 6, end-4, 0, 8) }, rdma.WCRemAccessErr},
		"second entry beyond":  {func(r *rig, _ *keys) rdma.SendWR { return withEntry(r.write(6, 0, 4096, 512), r.info.SGE(end-4, 512)) }, rdma.WCLocProtErr},
		"together beyond": {func(r *rig, _ *keys) rdma.SendWR {
			return withEntry(r.write(6, end-512, 4096, 512), r.info.SGE(0, 512))
		}, rdma.WCRemAccessErr},
		"remote key of another": {func(r *rig, k *keys) rdma.SendWR { return to(r.write(6, 0, 4096, 8), k.stranger, 2048) }, rdma.WCRemAccessErr},
		"local key of another":  {func(r *rig, k *keys) rdma.SendWR { return from(r.write(6, 3000, 4096, 8), k.stranger, 2048) }, rdma.WCLocProtErr},
		"no such remote key": {func(r *rig, _ *keys) rdma.SendWR {
			w := r.write(6, 0, 4096, 8)
			w.RKey += 64 << 8 // has the same place among those that are known
			return w
		}, rdma.WCRemAccessErr},
		"no such local key": {func(r *rig, _ *keys) rdma.SendWR {
			w := r.write(6, 3000, 4096, 8)
			w.SGEs[0].LKey += 64 << 8
			return w
		}, rdma.WCLocProtErr},
		"local for remote key": {func(r *rig, _ *keys) rdma.SendWR {
			w := r.write(6, 0, 4096, 8)
			w.RKey = r.info.LKey
			return w
		}, rdma.WCRemAccessErr},
		"write to what may be read": {func(r *rig, k *keys) rdma.SendWR { return to(r.write(6, 0, 4096, 8), k.readable, 2048) }, rdma.WCRemAccessErr},
		"read into what may be read": {func(r *rig, k *keys) rdma.SendWR {
			return to(from(r.move(rdma.WRRDMARead, 6, 0, 0, 8), k.source, 2048), k.readable, 2048)
		}, rdma.WCLocProtErr},
		"longer than remote memory":       {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, 0, 0, end+1) }, rdma.WCLocProtErr},
		"address that wraps to the start": {func(r *rig, _ *keys) rdma.SendWR { return r.write(6, -1<<63, 0, 8) }, rdma.WCRemAccessErr},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := warm(t)
			pd, err := r.dev.AllocPD()
			check(t, err)
			closing(t, pd)
			k := &keys{
				stranger: register(t, pd, region(t, 4096), access),
				readable: register(t, r.pd, region(t, 4096), rdma.AccessRemoteRead),
				source:   register(t, r.pd, region(t, 4096), 0),
			}
			// All keys are known when the bad request comes: those of the other domain by its own queue pair.
			own := to(from(r.write(90, 0, 0, 8), k.stranger, 1024), k.stranger, 0)
			own.Flags = 0
			post(t, r.newQPOf(t, pd, rigDepth, rdma.ConnectOptions{}), own, own)
			idle(t, r.cq)
			post(t, r.qp,
				to(r.move(rdma.WRRDMARead, 1, 0, 1000, 8), k.readable, 0), r.move(rdma.WRRDMARead, 2, 4096, 1512, 8), r.write(3, 2000, 4096, 8),
				from(r.write(4, 2512, 8, 8), k.source, 0), r.write(5, 8192, 4096, 8),
				tt.bad(r, k), r.write(7, 12288, 4096, 8))
			idle(t, r.cq)
			m.letGo()
			for i, wc := range await(t, r.cq, 7) {
				want := rdma.WCSuccess
				if i == 5 {
					want = tt.want
				} else if i > 5 && tt.want != rdma.WCSuccess {
					want = rdma.WCWRFlushErr
				}
				if wc.WRID != uint64(i+1) || wc.Status != want || wc.QPNum != r.qp.Num() {
					t.Errorf("completion %d: %+v, want %s", i, wc, want)
				}
			}
			if m.plainRuns() == 0 {
				t.Error("no request was started as the one before")
			}
		})
	}
}

func withEntry(w rdma.SendWR, s rdma.SGE) rdma.SendWR {
	w.SGEs = append(w.SGEs, s)
	return w
}

// TestKeysAreForgotten: memory that was deregistered is not reached by its keys, also when the request before it in the same
// chain is as good as those that used them.
func TestKeysAreForgotten(t *testing.T) {
	for name, bad := range map[string]func(w rdma.SendWR, i rdma.MRInfo, off int64) rdma.SendWR{"remote": to, "local": from} {
		t.Run(name, func(t *testing.T) {
			r, m := warm(t)
			gone, err := r.pd.RegMR(mem.All(region(t, 4096)), access)
			check(t, err)
			info := gone.Info()
			first, second, third := r.write(1, 0, 4096, 8), bad(r.write(2, 1024, 4096, 8), info, 0), bad(r.write(3, 2048, 4096, 8), info, 2048)
			post(t, r.qp, first, second, third)
			ended := make(chan error, 1)
			idle(t, r.cq)
			go func() { ended <- gone.Close() }()
			select {
			case err := <-ended:
				t.Fatalf("deregistered under requests that were accepted: %v", err)
			case <-time.After(10 * time.Millisecond):
			}
			m.letGo()
			good(t, r.cq, 3)
			check(t, <-ended)
			if m.plainRuns() == 0 {
				t.Error("no request was started as the one before")
			}
			post(t, r.qp, first, second)
			wcs := await(t, r.cq, 2)
			if check(t, wcs[0].Err()); wcs[1].Status != rdma.WCRemAccessErr && wcs[1].Status != rdma.WCLocProtErr {
				t.Errorf("the key of memory that is gone: %+v", wcs[1])
			}
		})
	}
}

// TestPlainRuns: of a run of requests those complete that ask for it, in order, and the queue has its places back.
func TestPlainRuns(t *testing.T) {
	for _, op := range []rdma.WROpcode{rdma.WRRDMAWrite, rdma.WRRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			r, m := warm(t)
			for round := range 3 {
				var wrs []rdma.SendWR
				for i := range rigDepth {
					w := r.move(op, uint64(i), int64(i)*1024, 1<<19+int64(i)*1024, 8)
					if i%4 != 3 {
						w.Flags = 0
					}
					wrs = append(wrs, w)
				}
				post(t, r.qp, wrs...)
				if round == 0 {
					idle(t, r.cq)
				}
				m.letGo()
				for i, wc := range good(t, r.cq, rigDepth/4) {
					if wc.WRID != uint64(4*i+3) || op == rdma.WRRDMARead && wc.ByteLen != 8 {
						t.Errorf("completion %d: %+v", i, wc)
					}
				}
				idle(t, r.cq)
			}
			if n := m.plainRuns(); n < 4 { // each ends where a request asks for a completion
				t.Errorf("%d runs", n)
			}
			for i := range rigDepth {
				far, near := r.mem.Bytes()[i*1024:][:8], r.mem.Bytes()[1<<19+i*1024:][:8]
				if !bytes.Equal(far, near) {
					t.Fatalf("request %d has not moved its bytes", i)
				}
			}
		})
	}
}

// TestPlainRunFails: every request of a run completes when the mover fails it, with the cause, and when the queue pair failed
// while it was under way, whether it asks for a completion or not.
func TestPlainRunFails(t *testing.T) {
	bus := errors.New("the GPU fell off the bus")
	for _, moverFails := range []bool{true, false} {
		r, m := warm(t)
		var wrs []rdma.SendWR
		for i := range 6 {
			w := r.write(uint64(i), int64(i)*1024, 1<<19, 8)
			if i != 4 {
				w.Flags = 0
			}
			wrs = append(wrs, w)
		}
		post(t, r.qp, wrs...)
		idle(t, r.cq)
		m.mu.Lock()
		m.release() // those that kept the mover busy
		m.mu.Unlock()
		m.holds(t, 1)
		first := rdma.WCWRFlushErr
		if moverFails {
			first = rdma.WCGeneralErr
			m.mu.Lock()
			m.err = bus
			m.mu.Unlock()
		} else {
			check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
		}
		idle(t, r.cq)
		m.letGo()
		for i, wc := range await(t, r.cq, 6) {
			want := rdma.WCWRFlushErr
			if i == 0 {
				want = first
			}
			if wc.WRID != uint64(i) || wc.Status != want || errors.Is(wc.Err(), bus) != moverFails {
				t.Errorf("mover fails: %t; completion %d: %+v, want %s", moverFails, i, wc, want)
			}
		}
		idle(t, r.cq)
		if m.plainRuns() == 0 {
			t.Error("no request was started as the one before")
		}
		if s := state(t, r.qp); s != rdma.QPSErr {
			t.Errorf("the queue pair is in %s", s)
		}
	}
}

// TestPeerIsAskedAgain: requests do not start as those before did once the peer has failed, though these are under way.
func TestPeerIsAskedAgain(t *testing.T) {
	r, m := warm(t)
	a, b := r.newQP(t, rdma.ConnectOptions{}), r.newQP(t, rdma.ConnectOptions{})
	join(t, r, a, b, rdma.ConnectOptions{AckTimeout: rdma.AckTimeout(1), RetryCount: 1})
	for i := range 2 { // the first finds the peer
		post(t, a, r.write(uint64(i), int64(i)*1024, 1<<19, 8))
		idle(t, r.cq)
	}
	check(t, b.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	post(t, a, r.write(2, 2048, 1<<19, 8))
	idle(t, r.cq)
	m.letGo()
	for i, wc := range await(t, r.cq, 3) {
		want := rdma.WCSuccess
		if i == 2 {
			want = rdma.WCRetryExcErr
		}
		if wc.WRID != uint64(i) || wc.Status != want {
			t.Errorf("completion %d: %+v, want %s", i, wc, want)
		}
	}
	if m.plainRuns() == 0 {
		t.Error("no request was started as the one before")
	}
}

// TestPeerAnswersAgain: requests that started as those before did count as received, so that a peer that was away for a while
// takes the next one.
func TestPeerAnswersAgain(t *testing.T) {
	r, m := warm(t)
	for i := range 4 {
		post(t, r.qp, r.write(uint64(i), int64(i)*1024, 1<<19, 8))
	}
	idle(t, r.cq)
	check(t, r.dev.SetPort(1, false))
	post(t, r.qp, r.write(4, 4096, 1<<19, 8))
	idle(t, r.cq)
	check(t, r.dev.SetPort(1, true))
	m.letGo()
	good(t, r.cq, 5)
	if m.plainRuns() == 0 {
		t.Error("no request was started as the one before")
	}
}

// TestWhatAQueuePairMayDo: a queue pair that may only be written to is not read from, though it allows writes and other queue
// pairs read the same memory.
func TestWhatAQueuePairMayDo(t *testing.T) {
	r, m := warm(t)
	other := register(t, r.pd, r.mem, access)
	q := r.newQP(t, rdma.ConnectOptions{Access: rdma.AccessRemoteWrite})
	post(t, q, r.write(0, 0, 1<<19, 8))
	idle(t, r.cq)
	read := func(wrid uint64, near int64) rdma.SendWR {
		return from(to(r.move(rdma.WRRDMARead, wrid, 0, 0, 8), other, 1<<18), other, near)
	}
	post(t, r.qp, read(1, 1024), read(2, 2048))
	idle(t, r.cq)
	post(t, q, r.write(3, 3072, 1<<19, 8), r.write(4, 4096, 1<<19, 8), read(5, 5120))
	idle(t, r.cq)
	m.letGo()
	for _, wc := range await(t, r.cq, 6) {
		want := rdma.WCSuccess
		if wc.WRID == 5 {
			want = rdma.WCRemInvReqErr
		}
		if wc.Status != want {
			t.Errorf("%+v, want %s", wc, want)
		}
	}
	if m.plainRuns() == 0 {
		t.Error("no request was started as the one before")
	}
}

// TestPlainRequestsHoldTheirQueuePair: a queue pair is not reset while its bytes move, also when only another had told what its
// requests need.
func TestPlainRequestsHoldTheirQueuePair(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m, DrainTimeout: 20 * time.Millisecond}, rdma.ConnectOptions{})
	t.Cleanup(m.letGo)
	q := r.newQP(t, rdma.ConnectOptions{})
	m.letGo()
	post(t, q, r.write(0, 0, 4096, 8), r.write(1, 1024, 4096, 8))
	good(t, r.cq, 2)
	m.shut()
	r.keepBusy(t, m)
	post(t, r.qp, r.write(2, 2048, 4096, 8), r.write(3, 3072, 4096, 8))
	idle(t, r.cq)
	post(t, q, r.write(4, 5120, 4096, 8))
	idle(t, r.cq)
	if err := q.Modify(rdma.QPAttr{State: rdma.QPSReset}); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("reset while bytes move: %v", err)
	}
	m.letGo()
	check(t, q.Modify(rdma.QPAttr{State: rdma.QPSReset}))
	good(t, r.cq, 2)
}

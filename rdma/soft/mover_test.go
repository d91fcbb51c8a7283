package soft_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestCompletionsWaitForBytes checks that no request completes before the mover is done.
func TestCompletionsWaitForBytes(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	defer m.releaseAll()
	if n, err := r.qp.PostRecv([]rdma.RecvWR{{WRID: 9, SGEs: []rdma.SGE{r.info.SGE(0, 8)}}}); n != 1 || err != nil {
		t.Fatal(err)
	}
	s := r.move(rdma.WRSend, 2, 0, 4096, 8)
	post(t, r.qp, r.write(1, 64, 4096, 8), s)
	m.holds(t, 1)
	// An empty request does not overtake requests with bytes.
	post(t, r.qp, r.write(3, 0, 0, 0))
	idle(t, r.cq)
	m.releaseAll()
	seen := make(map[uint64]bool)
	for _, wc := range good(t, r.cq, 4) {
		seen[wc.WRID] = true
		if wc.WRID == 3 && len(seen) != 4 {
			t.Error("the empty request completed before the others")
		}
	}
	for _, at := range []int{0, 64} {
		if !bytes.Equal(r.mem.Bytes()[at:at+8], r.mem.Bytes()[4096:4104]) {
			t.Errorf("the bytes at %d are not there", at)
		}
	}
}

// TestMoverFails checks that the mover's error is the cause of every request of the transfer, and
// that the queue pair fails.
func TestMoverFails(t *testing.T) {
	m := newSlowMover(1)
	m.err = errors.New("the GPU fell off the bus")
	m.open = true
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	post(t, r.qp, r.write(1, 0, 4096, 8), r.write(2, 64, 4096, 8))
	wcs := await(t, r.cq, 2)
	if wcs[0].Status != rdma.WCGeneralErr || !errors.Is(wcs[0].Err(), m.err) || errors.Is(wcs[0].Err(), errdefs.ErrBroken) {
		t.Errorf("first completion: %v", wcs[0].Err())
	}
	if wcs[1].Status != rdma.WCWRFlushErr {
		t.Errorf("second completion: %v", wcs[1].Err())
	}
	if s := state(t, r.qp); s != rdma.QPSErr {
		t.Errorf("the queue pair is in %s", s)
	}
}

// TestNothingStartsBehindAFailure checks that requests after one that will fail move no bytes, even
// while earlier ones are in progress.
func TestNothingStartsBehindAFailure(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	defer m.releaseAll()
	before := bytes.Clone(r.mem.Bytes()[64:72])
	bad := r.write(2, 0, 4096, 8)
	bad.RKey++
	post(t, r.qp, r.write(1, 0, 4096, 8), bad)
	m.holds(t, 1)
	idle(t, r.cq)
	post(t, r.qp, r.write(3, 64, 4096, 8))
	idle(t, r.cq)
	m.releaseAll()
	wcs := await(t, r.cq, 3)
	for i, want := range []rdma.WCStatus{rdma.WCSuccess, rdma.WCRemAccessErr, rdma.WCWRFlushErr} {
		if wcs[i].WRID != uint64(i+1) || wcs[i].Status != want {
			t.Errorf("completion %d: %+v", i, wcs[i])
		}
	}
	if !bytes.Equal(r.mem.Bytes()[64:72], before) {
		t.Error("bytes moved behind a failure")
	}
}

// TestErrorFlushesWhatIsUnderWay checks that moving a queue pair to the error state also flushes
// requests in progress, after their bytes have arrived.
func TestErrorFlushesWhatIsUnderWay(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	defer m.releaseAll()
	if n, err := r.qp.PostRecv([]rdma.RecvWR{{WRID: 8, SGEs: []rdma.SGE{r.info.SGE(0, 8)}}, {WRID: 9}}); n != 2 || err != nil {
		t.Fatal(err)
	}
	w := r.write(1, 64, 4096, 8)
	w.Flags = 0
	post(t, r.qp, w, r.move(rdma.WRSend, 2, 0, 4096, 8))
	m.holds(t, 1)
	check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	idle(t, r.cq)
	m.releaseAll()
	seen := make(map[uint64]bool)
	for _, wc := range await(t, r.cq, 4) {
		if wc.Status != rdma.WCWRFlushErr {
			t.Errorf("%+v", wc)
		}
		seen[wc.WRID] = true
	}
	if len(seen) != 4 {
		t.Errorf("completions of %v", seen)
	}
	idle(t, r.cq)
}

// TestErrorBeforeAStart checks a queue pair that enters the error state after the engine has decided
// to start its next request. The requests must not be flushed while the mover has the first one.
func TestErrorBeforeAStart(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m, Schedule: &soft.Schedule{Manual: true}}, rdma.ConnectOptions{})
	first := r.write(0, 64, 4096, 8)
	first.Flags = 0
	post(t, r.qp, first, r.write(1, 128, 4096, 8))
	if !r.p.Step() || len(m.blocked) != 1 {
		t.Fatalf("%d transfers were started", len(m.blocked))
	}
	check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	var wcs [3]rdma.WC
	if begun := r.p.Begin(t, r.qp); begun {
		n, err := r.cq.Poll(wcs[:])
		t.Errorf("%d requests completed while the bytes of the first were in progress: %v", n, err)
	}
	m.releaseAll()
	for r.p.Step() {
	}
	n, err := r.cq.Poll(wcs[:])
	check(t, err)
	if n != 2 {
		t.Fatalf("%d completions of 2 requests", n)
	}
	for i, wc := range wcs[:n] {
		if wc.WRID != uint64(i) || wc.Status != rdma.WCWRFlushErr {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
}

// TestReceivesFlushInOrder checks that a receive with a message in progress completes before later
// ones, even if the queue pair fails meanwhile.
func TestReceivesFlushInOrder(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	defer m.releaseAll()
	a, b := r.newQP(t, rdma.ConnectOptions{}), r.newQP(t, rdma.ConnectOptions{})
	join(t, r, a, b, rdma.ConnectOptions{})
	if n, err := b.PostRecv([]rdma.RecvWR{{WRID: 8, SGEs: []rdma.SGE{r.info.SGE(0, 8)}}, {WRID: 9}}); n != 2 || err != nil {
		t.Fatal(err)
	}
	s := r.move(rdma.WRSend, 1, 0, 4096, 8)
	s.Flags = 0
	post(t, a, s)
	m.holds(t, 1)
	check(t, b.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	idle(t, r.cq)
	m.releaseAll()
	for i, wc := range await(t, r.cq, 2) {
		if wc.WRID != uint64(8+i) || wc.Status != rdma.WCWRFlushErr {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
}

// TestCloseWaitsForBytes checks that closing a region or a queue pair on either side, and resetting
// one, wait for the mover. After too long they return ErrBusy, and the object is still open.
func TestCloseWaitsForBytes(t *testing.T) {
	reset := rdma.QPAttr{State: rdma.QPSReset}
	for name, end := range map[string]func(r *rig, a, b rdma.QP) error{
		"memory region":   func(r *rig, _, _ rdma.QP) error { return r.mr.Close() },
		"requester":       func(_ *rig, a, _ rdma.QP) error { return a.Close() },
		"responder":       func(_ *rig, _, b rdma.QP) error { return b.Close() },
		"requester reset": func(_ *rig, a, _ rdma.QP) error { return a.Modify(reset) },
		"responder reset": func(_ *rig, _, b rdma.QP) error { return b.Modify(reset) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newSlowMover(1)
				r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
				defer m.releaseAll()
				a, b := r.newQP(t, rdma.ConnectOptions{}), r.newQP(t, rdma.ConnectOptions{})
				join(t, r, a, b, rdma.ConnectOptions{})
				post(t, a, r.write(1, 0, 4096, 8))
				m.holds(t, 1)
				for range 2 {
					start := time.Now()
					if err := end(r, a, b); !errors.Is(err, errdefs.ErrBusy) || time.Since(start) != 10*time.Second {
						t.Fatalf("with bytes in flight: %v after %v", err, time.Since(start))
					}
				}
				ended := make(chan error, 1)
				go func() { ended <- end(r, a, b) }()
				time.Sleep(9 * time.Second)
				m.releaseAll()
				check(t, <-ended)
				check(t, end(r, a, b))
			})
		})
	}
}

// TestRequestsLandInOrder checks that a mover that makes the copies of a transfer in any order
// gives the same bytes as one request after the other.
func TestRequestsLandInOrder(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			m := newSlowMover(seed)
			r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
			defer m.releaseAll()
			// Use few places, so that requests collide. Some sizes and places share blocks.
			const window = 64 << 10
			model := bytes.Clone(r.mem.Bytes()[:window])
			place := func(n int64) int64 {
				if rng.IntN(2) == 0 {
					return rng.Int64N((window-n)/512) * 512
				}
				return rng.Int64N(window - n)
			}
			for round := range 10 {
				var wrs []rdma.SendWR
				for i := range rigDepth {
					n := []int64{1, 100, 512, 4096, 9000}[rng.IntN(5)]
					far, near := place(n), place(n)
					// A request that overlaps itself is undefined.
					for far < near+n && near < far+n {
						far, near = place(n), place(n)
					}
					op := rdma.WRRDMAWrite
					dst, src := far, near
					if rng.IntN(2) == 0 {
						op, dst, src = rdma.WRRDMARead, near, far
					}
					w := r.move(op, uint64(i), far, near, uint32(n))
					if cut := rng.Int64N(n + 1); rng.IntN(3) == 0 {
						w.SGEs = []rdma.SGE{r.info.SGE(near, uint32(cut)), r.info.SGE(near+cut, uint32(n-cut))}
					}
					wrs = append(wrs, w)
					copy(model[dst:dst+n], bytes.Clone(model[src:src+n]))
				}
				post(t, r.qp, wrs...)
				if round == 5 {
					m.releaseAll()
				}
				if round >= 5 {
					good(t, r.cq, rigDepth)
					continue
				}
				m.mu.Lock()
				for len(m.blocked) > 0 {
					m.release()
				}
				m.mu.Unlock()
				for got := 0; got < rigDepth; {
					var wcs [rigDepth]rdma.WC
					n, err := r.cq.Poll(wcs[:])
					check(t, err)
					got += n
					m.mu.Lock()
					m.release()
					m.mu.Unlock()
				}
			}
			if m.overlap {
				t.Error("a transfer overlaps itself")
			}
			if !bytes.Equal(model, r.mem.Bytes()[:window]) {
				t.Error("the bytes differ from those of sequential execution")
			}
		})
	}
}

// TestMemoryIsHeld checks that memory is not released while its bytes move.
func TestMemoryIsHeld(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m, DrainTimeout: 20 * time.Millisecond}, rdma.ConnectOptions{})
	other, err := r.pd.RegMR(mem.All(region(t, 4096)), rdma.MROptions{Access: access})
	check(t, err)
	info := other.Info()
	for n := range 3 {
		second := from(r.write(1, 4096, 0, 8), info, 0)
		post(t, r.qp, r.write(0, 0, 8192, 8), second)
		m.holds(t, 2)
		for _, mr := range []rdma.MR{r.mr, other} {
			if err := mr.Close(); !errors.Is(err, errdefs.ErrBusy) {
				t.Fatalf("memory of round %d: %v", n, err)
			}
		}
		m.releaseAll()
		good(t, r.cq, 2)
		m.shut()
	}
	check(t, other.Close())
	post(t, r.qp, from(r.write(1, 4096, 0, 8), info, 0))
	if wc := await(t, r.cq, 1)[0]; wc.Status != rdma.WCLocProtErr {
		t.Errorf("the key of deregistered memory: %+v", wc)
	}
}

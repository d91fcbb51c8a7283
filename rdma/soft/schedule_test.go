package soft_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestScheduleIsDrawn checks that requests of different queue pairs complete in several orders,
// that requests of one queue pair stay in order, and that a seed always gives the same order.
func TestScheduleIsDrawn(t *testing.T) {
	orders := make(map[string]bool)
	for seed := range uint64(30) {
		first := drawOrder(t, seed)
		if again := drawOrder(t, seed); !slices.Equal(first, again) {
			t.Errorf("seed %d gives %v and %v", seed, first, again)
		}
		next := make(map[uint64]uint64)
		for _, wrid := range first {
			qp, n := wrid/100, wrid%100
			if n != next[qp] {
				t.Errorf("seed %d: %v", seed, first)
			}
			next[qp]++
		}
		orders[fmt.Sprint(first)] = true
	}
	if len(orders) < 20 {
		t.Errorf("30 seeds gave %d orders", len(orders))
	}
}

func drawOrder(t *testing.T, seed uint64) []uint64 {
	t.Helper()
	r := newRig(t, soft.Options{Schedule: &soft.Schedule{Seed: seed, Manual: true}}, rdma.ConnectOptions{})
	qps := []rdma.QP{r.qp, r.newQP(t, rdma.ConnectOptions{}), r.newQP(t, rdma.ConnectOptions{})}
	for i, q := range qps {
		for n := range 4 {
			post(t, q, r.write(uint64(i*100+n), int64(i*4096), 1<<19, 8))
		}
	}
	var order []uint64
	wcs := make([]rdma.WC, 16)
	for r.p.Step() {
		n, err := r.cq.Poll(wcs)
		check(t, err)
		for i := range n {
			check(t, wcs[i].Err())
			order = append(order, wcs[i].WRID)
		}
	}
	if len(order) != 12 {
		t.Fatalf("%d completions", len(order))
	}
	return order
}

// TestInterleavings checks queue pairs with separate memory. Under every order of steps, with
// posting, polling and failures in between, they must leave the same bytes as if each ran alone.
func TestInterleavings(t *testing.T) {
	const pairs, own, rounds = 3, 32 << 10, 60
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m := newSlowMover(seed)
		m.open = true
		r := newRig(t, soft.Options{Mover: m, Schedule: &soft.Schedule{Seed: seed, Manual: true}}, rdma.ConnectOptions{})
		model := bytes.Clone(r.mem.Bytes())
		var qps []rdma.QP
		for range pairs {
			qps = append(qps, r.newQP(t, rdma.ConnectOptions{}))
		}
		posted, done := make([]uint64, pairs), make([]uint64, pairs)
		poll := func() {
			wcs := make([]rdma.WC, 1+rng.IntN(4))
			n, err := r.cq.Poll(wcs)
			check(t, err)
			for _, wc := range wcs[:n] {
				check(t, wc.Err())
				i := slices.IndexFunc(qps, func(q rdma.QP) bool { return q.Num() == wc.QPNum })
				if wc.WRID != done[i] {
					t.Fatalf("seed %d: queue pair %d completed %d before %d", seed, i, wc.WRID, done[i])
				}
				done[i]++
			}
		}
		for range rounds {
			i := rng.IntN(pairs)
			if posted[i]-done[i] < rigDepth {
				n := 1 + rng.Int64N(4096)
				base := int64(i) * own
				far, near := base+rng.Int64N(own/2-n), base+own/2+rng.Int64N(own/2-n)
				op, dst, src := rdma.WRRDMAWrite, far, near
				if rng.IntN(2) == 0 {
					op, dst, src = rdma.WRRDMARead, near, far
				}
				w := r.move(op, posted[i], far, near, uint32(n))
				w.Flags |= rdma.SendFence // the request may use bytes of an earlier read
				post(t, qps[i], w)
				posted[i]++
				copy(model[dst:dst+n], model[src:src+n])
			}
			for range rng.IntN(4) {
				r.p.Step()
			}
			poll()
		}
		for r.p.Step() {
			poll()
		}
		for range pairs * rigDepth {
			poll()
		}
		if !slices.Equal(posted, done) {
			t.Fatalf("seed %d: posted %v, done %v", seed, posted, done)
		}
		if !bytes.Equal(model, r.mem.Bytes()) {
			t.Fatalf("seed %d: wrong bytes", seed)
		}
	}
}

// TestMissingFence checks that a request that uses the bytes of an earlier read needs SendFence.
// Without it some orders of steps give old bytes; with it none does. A write at the peer never
// overtakes the read of its bytes.
func TestMissingFence(t *testing.T) {
	const host, gpu, other = 0, 1 << 19, 1 << 18
	stale := func(fence rdma.SendFlags) (n int) {
		for seed := range uint64(40) {
			r := newRig(t, soft.Options{Schedule: &soft.Schedule{Seed: seed, Manual: true}}, rdma.ConnectOptions{})
			old, brought := bytes.Clone(r.mem.Bytes()[host:host+64]), bytes.Clone(r.mem.Bytes()[gpu:gpu+64])
			onto := r.write(2, gpu, other, 64) // overwrites the source of the read
			use := r.write(3, other+4096, host, 64)
			use.Flags |= fence
			post(t, r.qp, r.move(rdma.WRRDMARead, 1, gpu, host, 64), use, onto)
			for r.p.Step() {
			}
			good(t, r.cq, 3)
			switch got := r.mem.Bytes()[other+4096:][:64]; {
			case bytes.Equal(got, old):
				n++
			case !bytes.Equal(got, brought):
				t.Errorf("seed %d: neither the old bytes nor the new", seed)
			}
			if !bytes.Equal(r.mem.Bytes()[host:host+64], brought) {
				t.Errorf("seed %d: the read saw a write behind it", seed)
			}
		}
		return n
	}
	if n := stale(0); n == 0 {
		t.Error("no order of steps showed that the fence was missing")
	}
	if n := stale(rdma.SendFence); n != 0 {
		t.Errorf("%d orders of steps overtook the fence", n)
	}
}

// TestLongReadIsNotOvertaken checks the same for a read of so many pieces that the mover gets page
// numbers.
func TestLongReadIsNotOvertaken(t *testing.T) {
	const gpu, step, piece = 1 << 19, 16 << 10, 8 << 10
	for seed := range uint64(20) {
		r := newRig(t, soft.Options{Schedule: &soft.Schedule{Seed: seed, Manual: true}}, rdma.ConnectOptions{})
		want := bytes.Clone(r.mem.Bytes()[gpu:])
		read := r.move(rdma.WRRDMARead, 1, gpu, 0, 512)
		for i := range int64(4) {
			read.SGEs = append(read.SGEs, r.info.SGE((i+1)*step, piece))
		}
		post(t, r.qp, read, r.write(2, gpu+512+piece, 1<<18, 8))
		for r.p.Step() {
		}
		good(t, r.cq, 2)
		for i := range 4 {
			if !bytes.Equal(r.mem.Bytes()[(i+1)*step:][:piece], want[512+i*piece:][:piece]) {
				t.Fatalf("seed %d: the read saw a write behind it", seed)
			}
		}
	}
}

// TestInterleavedFailure checks a request with a wrong key under every order of steps. It must
// flush all later requests of its queue pair, whatever other queue pairs do. The queue pair must
// work again after a reset.
func TestInterleavedFailure(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 11))
		r := newRig(t, soft.Options{Schedule: &soft.Schedule{Seed: seed, Manual: true}}, rdma.ConnectOptions{})
		q := r.newQP(t, rdma.ConnectOptions{})
		for range 3 {
			bad := rng.IntN(8)
			for i := range 8 {
				w := r.write(uint64(i), int64(i)*64, 1<<19, 64)
				if i == bad {
					w.RKey++
				}
				post(t, q, w)
				post(t, r.qp, r.write(100, 8192, 1<<19, 64))
			}
			if rng.IntN(2) == 0 {
				for range rng.IntN(20) {
					r.p.Step()
				}
			} else {
				for r.p.Step() {
				}
				wantFlushed(t, seed, r.cq, q, bad)
			}
			check(t, q.Modify(rdma.QPAttr{State: rdma.QPSReset}))
			for r.p.Step() {
			}
			for n := 1; n > 0; {
				var err error
				n, err = r.cq.Poll(make([]rdma.WC, 16))
				check(t, err)
			}
			check(t, rdmatest.Loopback(r.dev, q, rdma.ConnectOptions{}))
		}
	}
}

// TestResetBehindAFault checks that a reset removes a request in progress that fails without bytes,
// and that the queue pair is usable again.
func TestResetBehindAFault(t *testing.T) {
	for steps := range 6 {
		plan := fault.New(1, fault.Nth(soft.OpWrite, 1).Fail(nil))
		r := newRig(t, soft.Options{Faults: plan, Schedule: &soft.Schedule{Seed: 1, Manual: true}}, rdma.ConnectOptions{})
		for i := range 4 {
			post(t, r.qp, r.write(uint64(i), 0, 4096, 8))
		}
		for range steps {
			r.p.Step()
		}
		check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}))
		check(t, rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{}))
		if steps < 3 {
			plan.Clear()
		}
		post(t, r.qp, r.write(50, 0, 4096, 8), r.write(51, 0, 4096, 8))
		for r.p.Step() {
		}
		for i, wc := range await(t, r.cq, 2) {
			if wc.WRID != uint64(50+i) {
				t.Errorf("after %d steps: completion %+v", steps, wc)
			}
		}
	}
}

func wantFlushed(t *testing.T, seed uint64, cq rdma.CQ, q rdma.QP, bad int) {
	t.Helper()
	wcs := make([]rdma.WC, 64)
	n, err := cq.Poll(wcs)
	check(t, err)
	next := 0
	for _, wc := range wcs[:n] {
		if wc.QPNum != q.Num() {
			check(t, wc.Err())
			continue
		}
		want := rdma.WCSuccess
		if next == bad {
			want = rdma.WCRemAccessErr
		} else if next > bad {
			want = rdma.WCWRFlushErr
		}
		if wc.WRID != uint64(next) || wc.Status != want {
			t.Fatalf("seed %d: request %d of which %d is wrong: %+v", seed, next, bad, wc)
		}
		next++
	}
	if next != 8 {
		t.Fatalf("seed %d: %d completions of 8", seed, next)
	}
}

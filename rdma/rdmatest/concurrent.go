package rdmatest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// crowd is a set of goroutines that share two queue pairs and their completion queues.
type crowd struct {
	t    *testing.T
	stop atomic.Bool
	wg   sync.WaitGroup
	seen [crowdChains]atomic.Int32 // number of completions by chain
	got  atomic.Int64
}

const (
	posters     = 4
	chainsEach  = 50
	links       = 5 // requests of a chain
	crowdChains = posters * chainsEach
	crowdPiece  = 64 // bytes
)

func (c *crowd) fail(format string, args ...any) {
	c.t.Errorf(format, args...)
	c.stop.Store(true)
}

// post posts the chains of one poster, each with a completion for its last request.
func (c *crowd) post(poster int, from, to *end) {
	for chain := range chainsEach {
		wrs := make([]rdma.SendWR, links)
		for i := range wrs {
			wrs[i] = from.write(to, uint64(poster*chainsEach+chain), int64((poster*links+i)*crowdPiece), crowdPiece)
			if i != links-1 {
				wrs[i].Flags = 0
			}
		}
		for len(wrs) > 0 && !c.stop.Load() {
			n, err := from.qp.PostSend(wrs)
			if err != nil && !errors.Is(err, errdefs.ErrBusy) {
				c.fail("post: %v", err)
			}
			if wrs = wrs[n:]; err != nil {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
}

// poll counts completions until every chain has one.
func (c *crowd) poll(q rdma.CQ) {
	deadline := time.Now().Add(patience)
	wcs := make([]rdma.WC, 7)
	for c.got.Load() < crowdChains && !c.stop.Load() {
		n, err := q.Poll(wcs)
		if err != nil {
			c.fail("poll: %v", err)
		}
		for i := range n {
			if err := wcs[i].Err(); err != nil {
				c.fail("%v", err)
				return
			}
			c.seen[wcs[i].WRID].Add(1)
		}
		if c.got.Add(int64(n)); n == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			c.fail("%d completions of %d", c.got.Load(), crowdChains)
		}
	}
}

// testConcurrent checks that every request is executed once if several goroutines post to the same
// queue pairs and poll the same queue.
func testConcurrent(t *testing.T, h *harness) {
	cq := h.cq(t, 0, 256, nil)
	a, b := h.end(t, 0, options{cq: cq}), h.end(t, 1, options{})
	connect(t, a, b)
	loop := h.end(t, 0, options{cq: cq})
	must(t, Loopback(loop.dev, loop.qp, loop.o.connect))
	ends := [][2]*end{{a, b}, {loop, loop}}

	c := &crowd{t: t}
	for p := range posters {
		c.wg.Go(func() { c.post(p, ends[p%2][0], ends[p%2][1]) })
	}
	for range 2 {
		c.wg.Go(func() { c.poll(cq) })
	}
	c.wg.Wait()
	for i := range c.seen {
		if n := c.seen[i].Load(); n != 1 {
			t.Errorf("chain %d completed %d times", i, n)
		}
	}
	for p := range posters {
		from, to := p*links*crowdPiece, (p+1)*links*crowdPiece
		same(t, "writes of many", ends[p%2][1].far()[from:to], ends[p%2][0].near()[from:to])
	}
}

// testChainsStayWhole checks that chains of concurrent goroutines are not interleaved.
func testChainsStayWhole(t *testing.T, h *harness) {
	const each = 10
	caps := defaultCaps
	caps.MaxSendWR = posters * each * links
	a, b := h.pair(t, options{caps: caps})
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for chain := range each {
				wrs := make([]rdma.SendWR, links)
				for i := range wrs {
					wrs[i] = a.write(b, uint64(p*each+chain), 0, 1)
				}
				if n, err := a.qp.PostSend(wrs); n != links || err != nil {
					t.Errorf("posted %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	for wcs := ok(t, a.scq, caps.MaxSendWR); len(wcs) > 0; wcs = wcs[links:] {
		for _, wc := range wcs[:links] {
			if wc.WRID != wcs[0].WRID {
				t.Fatalf("a request of chain %d is within chain %d", wc.WRID, wcs[0].WRID)
			}
		}
	}
}

// testConcurrentControl creates and closes objects during transfers of another queue pair.
func testConcurrentControl(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	r := memory(t, 64<<10)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				if err := comeAndGo(a, r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 200 {
		a.post(t, a.write(b, uint64(i), 0, 4096))
		ok(t, a.scq, 1)
	}
	stop.Store(true)
	wg.Wait()
	same(t, "write", b.far()[:4096], a.near()[:4096])
}

func comeAndGo(e *end, r *mem.Region) error {
	m, err := e.pd.RegMR(mem.All(r), rdma.MROptions{Access: access})
	if err != nil {
		return err
	}
	cq, err := e.dev.CreateCQ(rdma.CQOptions{Entries: 4})
	if err != nil {
		return errors.Join(err, m.Close())
	}
	qp, err := e.pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: 4, MaxSendSGE: 1}})
	if err != nil {
		return errors.Join(err, cq.Close(), m.Close())
	}
	return errors.Join(qp.Close(), cq.Close(), m.Close())
}

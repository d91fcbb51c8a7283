package remote_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// has reports whether a server has a block.
func (p *peer) has(t *testing.T, f block.Format, key block.Key) bool {
	t.Helper()
	p.mu.Lock()
	host := p.host
	p.mu.Unlock()
	if host == nil { // it is stopped
		return false
	}
	s, err := host.Space(t.Context(), auth.DefaultTenant, f)
	must(t, err)
	defer s.Release()
	return s.Contains(key)
}

// A pin lasts longer than the longest lease of the server, because the lease is renewed. After the
// release the block is evicted.
func TestPinsOutlastLeasesOfTheServer(t *testing.T) {
	testkit.Grow(t, 300*time.Millisecond, func(leaseMax time.Duration) error { return pinFor(t, leaseMax) })
}

// pinFor pins a block for several times the longest lease. It returns an error if the lease is lost,
// as when the machine does not run the renewal in time.
func pinFor(t *testing.T, leaseMax time.Duration) error {
	t.Helper()
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 1, 1<<22)
	ps[0].stop(t)
	ps[0].leaseMax, ps[0].size = leaseMax, 16*f.Layout.ImageBytes()
	ps[0].start(t)
	tr := open(t, ps.config(f))
	image := tiertest.Buffer(t, f.Layout.ImageBytes())
	next := 0
	put := func() {
		tiertest.Seal(t, f, image.Bytes(), tiertest.Key(next), 0)
		must(t, tr.Put(t.Context(), tiertest.Key(next), image))
		next++
	}
	put()
	held := []block.Key{tiertest.Key(0)}
	n, err := tr.Retain(t.Context(), held)
	must(t, err)
	if n != 1 {
		t.Fatalf("%d blocks are retained", n)
	}
	for end := time.Now().Add(3 * leaseMax); time.Now().Before(end); time.Sleep(leaseMax / 20) {
		put()
		if !ps[0].has(t, f, held[0]) {
			return fmt.Errorf("a retained block is gone; %+v", tr.PeerStats())
		}
	}
	tr.Release(held)
	for end := time.Now().Add(testkit.Patience()); ps[0].has(t, f, held[0]); put() {
		if time.Now().After(end) {
			t.Fatal("a released block is not evicted")
		}
	}
	if st := tr.PeerStats(); st.LostLeases != 0 {
		return fmt.Errorf("%d leases are lost", st.LostLeases)
	}
	return nil
}

// A lease whose connection has ended is counted, and not renewed any more.
func TestLeaseIsLostWithItsServer(t *testing.T) {
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 1, 1<<22)
	ps[0].stop(t)
	ps[0].leaseMax = 100 * time.Millisecond
	ps[0].start(t)
	tr := open(t, ps.config(f))
	image := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, image.Bytes(), tiertest.Key(0), 0)
	must(t, tr.Put(t.Context(), tiertest.Key(0), image))
	n, err := tr.Retain(t.Context(), []block.Key{tiertest.Key(0)})
	must(t, err)
	if n != 1 {
		t.Fatalf("%d blocks are retained", n)
	}
	ps[0].stop(t)
	for end := time.Now().Add(testkit.Patience()); tr.PeerStats().LostLeases == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a lost lease is not counted")
		}
	}
	tr.Release([]block.Key{tiertest.Key(0)})
}

// A batch of blocks takes one lookup, and one request for each new block.
func TestPutManyAsksOnce(t *testing.T) {
	const blocks = 32
	f := tiertest.NewFormat(t)
	ps := newPeers(t, 1, 1<<24)
	tr := open(t, ps.config(f))
	var images []mem.Extent
	var keys []block.Key
	for i := range blocks {
		key := tiertest.Key(i)
		keys = append(keys, key)
		image := tiertest.Buffer(t, f.Layout.ImageBytes())
		tiertest.Seal(t, f, image.Bytes(), key, 0)
		images = append(images, image)
	}
	put := func(tr *remote.Tier, from, to int) int64 {
		before, errs := requests(tr), make([]error, to-from)
		tr.PutMany(t.Context(), keys[from:to], images[from:to], errs)
		for _, err := range errs {
			must(t, err)
		}
		return requests(tr) - before
	}
	if n := put(tr, 0, blocks/2); n != 1+blocks/2 {
		t.Errorf("%d new blocks took %d requests", blocks/2, n)
	}
	if n := put(tr, 0, blocks/2); n != 1 {
		t.Errorf("%d stored blocks took %d requests", blocks/2, n)
	}
	if n := put(tr, 0, blocks); n != 1+blocks/2 {
		t.Errorf("%d blocks, half of them new, took %d requests", blocks, n)
	}
}

// Leased blocks of a server that is left out because it is slow are read: a load has counted on
// them. If it does not answer, they are misses.
func TestLeasedBlocksOfASlowServer(t *testing.T) {
	ps := newPeers(t, 4, 1<<24)
	x := newFixture(t, ps, func(c *remote.Config) {
		c.Breaker = breaker.Options{Delay: time.Hour, MaxDelay: time.Hour}
		c.Latency = breaker.LatencyOptions{Factor: 4, Least: 50 * time.Millisecond}
	}, ps.members()...)
	for i := range 40 {
		x.put(i)
	}
	slow := ps.with(t, x.f, tiertest.Key(0))[0]
	keys, states := tiertest.Keys(0), make([]tier.State, 1)
	if n, err := x.Retain(t.Context(), keys); n != 1 || err != nil {
		t.Fatalf("%d blocks are retained, %v", n, err)
	}
	defer x.Release(keys)
	for range 10 {
		for i := range 40 {
			must(t, x.Lookup(t.Context(), tiertest.Keys(i), states))
		}
	}
	ps[slow].delay.Store(int64(400 * time.Millisecond))
	for end := time.Now().Add(testkit.Patience()); x.PeerStats().Servers[slow].State == "closed"; {
		for i := range 40 {
			must(t, x.Lookup(t.Context(), tiertest.Keys(i), states))
		}
		if time.Now().After(end) {
			t.Fatalf("a slow server is used: %+v", x.PeerStats().Servers)
		}
	}
	must(t, x.Get(t.Context(), keys[0], x.buf))
	must(t, x.Lookup(t.Context(), keys, states))
	if states[0] != tier.Absent {
		t.Errorf("a block of a slow server is %v to those that have not leased it", states[0])
	}
	ps[slow].stop(t)
	for range 2 {
		if err := x.Get(t.Context(), keys[0], x.buf); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("a leased block of a server that has stopped: %v", err)
		}
	}
	if s := x.PeerStats().Servers[slow]; s.Failures == 0 || s.Refused == 0 {
		t.Errorf("the server that has stopped: %+v", s)
	}
}

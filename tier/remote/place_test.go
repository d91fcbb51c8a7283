package remote_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// directory is a list of members that a test changes.
type directory struct {
	mu        sync.Mutex
	list      []metadata.Member
	changed   chan struct{}
	epoch     uint64
	refreshed func() error // the work of Refresh
}

// Epoch implements metadata.Versioned.
func (d *directory) Epoch() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.epoch
}

// Refresh implements metadata.Versioned.
func (d *directory) Refresh(context.Context, uint64) error { return d.refreshed() }

// List implements metadata.Members.
func (d *directory) List() ([]metadata.Member, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.list, d.changed
}

func (d *directory) set(list ...metadata.Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed != nil {
		close(d.changed)
	}
	d.list, d.changed = list, make(chan struct{})
}

// members returns the servers as members. Their zones are in their hellos only.
func (ps peers) members() (list []metadata.Member) {
	for _, p := range ps {
		list = append(list, metadata.Member{Name: p.name, Address: p.name, Weight: 1})
	}
	return list
}

// with returns the servers that have a block.
func (ps peers) with(t *testing.T, f block.Format, key block.Key) (at []int) {
	t.Helper()
	for i, p := range ps {
		if p.has(t, f, key) {
			at = append(at, i)
		}
	}
	return at
}

// reads returns the reads of each server that found a block.
func (ps peers) reads() (n []int64) {
	for _, p := range ps {
		n = append(n, p.host.Usage(auth.DefaultTenant).Hits)
	}
	return n
}

// fixture is a tier with blocks on servers whose list changes.
type fixture struct {
	*remote.Tier
	t   *testing.T
	f   block.Format
	ps  peers
	dir *directory
	buf mem.Extent
}

func newFixture(t *testing.T, ps peers, change func(*remote.Config), members ...metadata.Member) *fixture {
	t.Helper()
	x := &fixture{t: t, f: tiertest.NewFormat(t), ps: ps, dir: new(directory)}
	x.dir.set(members...)
	c := ps.config(x.f)
	c.Servers, c.Members = "", x.dir
	if change != nil {
		change(&c)
	}
	x.Tier, x.buf = open(t, c), tiertest.Buffer(t, x.f.Layout.ImageBytes())
	return x
}

func (x *fixture) put(i int) {
	x.t.Helper()
	tiertest.Seal(x.t, x.f, x.buf.Bytes(), tiertest.Key(i), 0)
	must(x.t, x.Put(x.t.Context(), tiertest.Key(i), x.buf))
}

func (x *fixture) get(i int) {
	x.t.Helper()
	if err := x.Get(x.t.Context(), tiertest.Key(i), x.buf); err != nil {
		x.t.Fatalf("block %d, which the servers %v have: %v", i, x.ps.with(x.t, x.f, tiertest.Key(i)), err)
	}
	must(x.t, tiertest.Check(x.f, x.buf.Bytes(), tiertest.Key(i), 0))
}

// present checks that n blocks are found and can be leased and read.
func (x *fixture) present(n int) {
	x.t.Helper()
	var keys []block.Key
	for i := range n {
		keys = append(keys, tiertest.Key(i))
	}
	states := make([]tier.State, n)
	must(x.t, x.Lookup(x.t.Context(), keys, states))
	if at := slices.Index(states, tier.Absent); at >= 0 {
		x.t.Fatalf("block %d is absent, and the servers %v have it", at, x.ps.with(x.t, x.f, keys[at]))
	}
	got, err := x.Retain(x.t.Context(), keys)
	must(x.t, err)
	defer x.Release(keys[:got])
	if got != n {
		x.t.Fatalf("%d of %d blocks are leased; the servers %v have the next", got, n, x.ps.with(x.t, x.f, keys[got]))
	}
	for i := range n {
		x.get(i)
	}
}

// TestHotRunsGetReplicas reads a run until all servers have it. Then its home may be lost.
func TestHotRunsGetReplicas(t *testing.T) {
	ps := newPeers(t, 4, 1<<22)
	for _, p := range ps {
		p.stop(t)
		p.hotRate = 10
		p.start(t)
	}
	members := ps.members()
	x := newFixture(t, ps, func(c *remote.Config) { c.Zone = "9" }, members...)
	for i := range 40 {
		x.put(i)
	}
	home := ps.with(t, x.f, tiertest.Key(0))
	if len(home) != 1 {
		t.Fatalf("a run that is not hot is at the servers %v", home)
	}
	for end := time.Now().Add(testkit.Patience()); len(ps.with(t, x.f, tiertest.Key(0))) < 4; time.Sleep(time.Millisecond) {
		if x.get(0); time.Now().After(end) {
			t.Fatalf("the servers %v have a run that is read all the time", ps.with(t, x.f, tiertest.Key(0)))
		}
	}
	if got := x.PeerStats().Filled; got != 3 {
		t.Errorf("%d replicas are counted, want 3", got)
	}
	for i := 1; i < 40; i++ {
		if at := ps.with(t, x.f, tiertest.Key(i)); len(at) != 1 {
			t.Fatalf("run %d, which is not hot, is at the servers %v", i, at)
		}
	}
	if e, at := x.explain(0); at != home[0] || strings.Count(e.Reason, " of its hot run") != 3 || !strings.Contains(e.Reason, ": replica 3 of its hot run") {
		t.Errorf("a run with replicas: %+v", e)
	}
	before := ps.reads()
	for range 200 {
		x.get(0)
	}
	for i, n := range ps.reads() {
		if n-before[i] > 120 {
			t.Errorf("server %d has %d of 200 reads of a run with 4 replicas", i, n-before[i])
		}
	}
	ps[home[0]].stop(t)
	for range 50 {
		x.get(0)
	}
	ps[home[0]].start(t)
	x.present(1)
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		err := x.Delete(t.Context(), tiertest.Key(0))          // the breaker of the home may be open
		if errors.Is(err, errdefs.ErrNotFound) || err == nil { // the home lost it
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if at := ps.with(t, x.f, tiertest.Key(0)); len(at) > 0 {
		t.Errorf("after Delete the servers %v have the block", at)
	}
}

// TestReplicasOfTheZoneAreReadFirst reads a hot run from a client in the zone of one replica.
func TestReplicasOfTheZoneAreReadFirst(t *testing.T) {
	ps := newPeers(t, 3, 1<<22)
	for _, p := range ps {
		p.stop(t)
		p.hotRate = 10
		p.start(t)
	}
	probe := newFixture(t, ps, nil, ps.members()...)
	probe.put(0)
	local := (ps.with(t, probe.f, tiertest.Key(0))[0] + 1) % 3 // not the home
	x := newFixture(t, ps, func(c *remote.Config) { c.Zone = ps[local].zone }, ps.members()...)
	for end := time.Now().Add(testkit.Patience()); len(ps.with(t, x.f, tiertest.Key(0))) < 3; time.Sleep(time.Millisecond) {
		probe.get(0)
		if x.get(0); time.Now().After(end) {
			t.Fatalf("the servers %v have a run that is read all the time", ps.with(t, x.f, tiertest.Key(0)))
		}
	}
	// A slow read counts for a second. Then the server is tried again.
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(100 * time.Millisecond) {
		before := ps.reads()
		for range 100 {
			x.get(0)
		}
		n := ps.reads()[local] - before[local]
		if n > 90 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the server of the client's zone has %d of 100 reads", n)
		}
	}
}

// TestServersJoin adds a server: no block is lost, and its share of them moves to it.
func TestServersJoin(t *testing.T) {
	const blocks, ramp = 120, placement.RampSteps * time.Second
	ps, clock := newPeers(t, 3, 1<<24), clockwork.NewFakeClock()
	x := newFixture(t, ps, func(c *remote.Config) { c.Ramp, c.Clock = ramp, clock }, ps.members()[:2]...)
	for i := range blocks {
		x.put(i)
	}
	x.dir.set(ps.members()...)
	for range placement.RampSteps {
		x.present(blocks)
		clock.Advance(ramp / placement.RampSteps)
	}
	x.present(blocks) // within the time of previous homes
	moved := 0
	for i := range blocks {
		if ps[2].has(t, x.f, tiertest.Key(i)) {
			moved++
		}
	}
	if moved < blocks/4 || moved > blocks/2 {
		t.Errorf("%d of %d blocks moved to the third server", moved, blocks)
	}
	if got := x.PeerStats(); got.Filled != int64(moved) || len(got.Servers) != 3 {
		t.Errorf("%d moved blocks are counted, of %d; %d servers", got.Filled, moved, len(got.Servers))
	}
	x.put(blocks) // at any server
	x.get(blocks)
}

// TestNewServersHaveLittleAtFirst checks the ramp: at its begin the new server has few runs.
func TestNewServersHaveLittleAtFirst(t *testing.T) {
	ps := newPeers(t, 2, 1<<24)
	x := newFixture(t, ps, func(c *remote.Config) { c.Ramp = time.Hour }, ps.members()[:1]...)
	x.put(0)
	x.dir.set(ps.members()...)
	for i := range 100 {
		x.put(i)
	}
	n := ps[1].host.Usage(auth.DefaultTenant).Blocks
	if n > 20 { // a 16th of the weight is 6
		t.Errorf("a server that just joined gets %d of 100 blocks", n)
	}
}

// TestServersDrain lets a server leave: it gets no new blocks, its blocks are read and move.
func TestServersDrain(t *testing.T) {
	const blocks = 60
	ps := newPeers(t, 3, 1<<24)
	list := ps.members()
	x := newFixture(t, ps, nil, list...)
	for i := range blocks {
		x.put(i)
	}
	drained := ps[1].host.Usage(auth.DefaultTenant).Blocks
	if drained == 0 {
		t.Fatal("the server has no blocks")
	}
	leaving := slices.Clone(list)
	leaving[1].Draining = true
	x.dir.set(leaving...)
	for i := range blocks {
		x.put(blocks + i)
	}
	if n := ps[1].host.Usage(auth.DefaultTenant).Blocks; n != drained {
		t.Errorf("a server that drains has %d blocks more", n-drained)
	}
	x.present(blocks)
	x.dir.set(list[0], list[2])
	x.present(2 * blocks)
	if n := len(x.PeerStats().Servers); n != 2 {
		t.Errorf("%d servers after one left", n)
	}
	ps[1].stop(t)
	x.present(2 * blocks)
}

// TestBlocksOfALostServerGoToTheNext stores and reads blocks while a server is gone, and after.
func TestBlocksOfALostServerGoToTheNext(t *testing.T) {
	const blocks = 30
	ps := newPeers(t, 3, 1<<24)
	x := newFixture(t, ps, func(c *remote.Config) {
		c.Breaker = breaker.Options{Failures: 1, Delay: 50 * time.Millisecond, MaxDelay: 50 * time.Millisecond}
	}, ps.members()...)
	x.put(0)
	lost := ps.with(t, x.f, tiertest.Key(0))[0]
	ps[lost].stop(t)
	for i := range blocks {
		tiertest.Seal(t, x.f, x.buf.Bytes(), tiertest.Key(i), 0)
		for end := time.Now().Add(testkit.Patience()); x.Put(t.Context(), tiertest.Key(i), x.buf) != nil; {
			if time.Now().After(end) {
				t.Fatalf("block %d of a lost server is not stored at another one", i)
			}
		}
	}
	ps[lost].start(t)
	time.Sleep(100 * time.Millisecond) // the breaker lets a probe pass
	x.present(blocks)
	if ps[lost].host.Usage(auth.DefaultTenant).Blocks == 0 {
		t.Error("the server gets no blocks after it came back")
	}
}

// TestSlowServersAreLeftOut checks that a server that answers, but much later than the others, gets
// no requests except for probes, and is used again when it is fast.
func TestSlowServersAreLeftOut(t *testing.T) {
	ps := newPeers(t, 4, 1<<24)
	x := newFixture(t, ps, func(c *remote.Config) {
		c.Breaker = breaker.Options{Delay: 50 * time.Millisecond, MaxDelay: 50 * time.Millisecond}
		c.Latency = breaker.LatencyOptions{Factor: 4, Least: 50 * time.Millisecond}
	}, ps.members()...)
	for i := range 40 {
		x.put(i)
	}
	states := make([]tier.State, 1)
	for range 10 {
		for i := range 40 {
			must(t, x.Lookup(t.Context(), tiertest.Keys(i), states))
		}
	}
	ps[2].delay.Store(int64(400 * time.Millisecond))
	open := func() (bool, int64) {
		s := x.PeerStats().Servers[2]
		return s.State != "closed", s.Timeouts
	}
	for end := time.Now().Add(testkit.Patience()); ; {
		for i := range 40 {
			must(t, x.Lookup(t.Context(), tiertest.Keys(i), states))
		}
		if left, timeouts := open(); left && timeouts == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a slow server is used: %+v", x.PeerStats().Servers)
		}
	}
	ps[2].delay.Store(0)
	for end := time.Now().Add(testkit.Patience()); ; {
		for i := range 40 {
			must(t, x.Lookup(t.Context(), tiertest.Keys(i), states))
		}
		if left, _ := open(); !left {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a server that is fast again is not used: %+v", x.PeerStats().Servers[2])
		}
	}
}

// TestAListWithoutServersAtFirst opens a tier before its servers are known: all blocks are misses,
// and are found when servers are known. The first ones are not new. One that joins them is.
func TestAListWithoutServersAtFirst(t *testing.T) {
	ps := newPeers(t, 2, 1<<24)
	x := newFixture(t, ps, func(c *remote.Config) { c.Ramp = time.Hour })
	if notes := strings.Join(x.Notes(), " "); !strings.Contains(notes, "no block server is known") {
		t.Errorf("notes %q", notes)
	}
	keys, states := tiertest.Keys(0, 1), make([]tier.State, 2)
	must(t, x.Lookup(t.Context(), keys, states))
	n, err := x.Retain(t.Context(), keys)
	if n != 0 || err != nil || states[0] != tier.Absent {
		t.Errorf("%d blocks are retained, %v; state %v", n, err, states[0])
	}
	if err := x.Get(t.Context(), keys[0], x.buf); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("read: %v", err)
	}
	tiertest.Seal(t, x.f, x.buf.Bytes(), keys[0], 0)
	if err := x.Put(t.Context(), keys[0], x.buf); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("store: %v", err)
	}
	errs := make([]error, 1)
	x.PutMany(t.Context(), keys[:1], []mem.Extent{x.buf}, errs)
	if !errors.Is(errs[0], tier.ErrUnavailable) {
		t.Errorf("store of several: %v", errs[0])
	}
	if err := x.Delete(t.Context(), keys[0]); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("delete: %v", err)
	}
	why := make([]tier.Explanation, 1)
	must(t, x.Explain(t.Context(), keys[:1], why))
	if why[0].State != tier.Absent || !strings.Contains(why[0].Error, "no block server is known") {
		t.Errorf("%+v", why[0])
	}
	if st, p := x.Stats(), x.PeerStats(); !errors.Is(st.Failure, errdefs.ErrNotFound) || st.Misses != 2 || p.Unavailable < 5 || len(p.Servers) != 0 {
		t.Errorf("%+v, %+v", st, p)
	}
	x.dir.set(ps.members()[:1]...)
	x.put(0)
	x.present(1)
	x.dir.set(ps.members()...) // the second server is new
	for i := range 100 {
		x.put(i)
	}
	x.present(100)
	if n := ps[1].host.Usage(auth.DefaultTenant).Blocks; n > 20 { // a 16th of the weight is 6
		t.Errorf("a server that just joined has %d of 100 blocks", n)
	}
}

// TestConnectedClientsRefreshTheirList adds a server while a connection stays open. The client's
// directory is late, and a result makes the client read it.
func TestConnectedClientsRefreshTheirList(t *testing.T) {
	ps := newPeers(t, 2, 1<<24)
	list := ps.members()
	var x *fixture
	var late atomic.Bool
	late.Store(true)
	x = newFixture(t, ps, func(c *remote.Config) {
		d, ok := c.Members.(*directory)
		if !ok {
			t.Fatal("the list is no directory")
		}
		d.epoch = 7
		d.refreshed = func() error {
			if late.Load() {
				return errors.New("the directory does not answer")
			}
			d.set(list...)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.epoch = 9
			return nil
		}
	}, list[0])
	x.put(0)
	x.present(1)
	ps[0].epoch.Store(9)
	x.present(1)
	if n := len(x.PeerStats().Servers); n != 1 {
		t.Fatalf("%d servers, of 1", n)
	}
	late.Store(false)
	for end := time.Now().Add(testkit.Patience()); len(x.PeerStats().Servers) != 2; time.Sleep(time.Millisecond) {
		if x.present(1); time.Now().After(end) {
			t.Fatal("a client with an old list and an open connection does not learn of a change")
		}
	}
	if n := x.PeerStats().Servers[0].Client.Connections; n != 1 {
		t.Errorf("%d connections to the first server", n)
	}
}

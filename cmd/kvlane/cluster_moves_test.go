package main

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A server of five is killed, and one is added: the share of the blocks that moves is within 20% of
// the ideal one, and no other block moves. Each block has a run of its own.
func TestClusterMovesTheIdealShare(t *testing.T) {
	const blocks, servers = 2000, 5 // the share of a server has a standard error of 4.5%
	const ramp, steps = time.Minute, 4
	clock := clockwork.NewFakeClock()
	etcd := etcdtest.Start(t, etcdtest.Versions[1])
	at := "etcd://" + etcd.Addr + "/test"
	var all []*blockServer
	for range servers {
		all = append(all, member(t, etcd.Addr))
	}
	waitForStates(t, at, "up up up up up")
	f := tiertest.NewFormat(t)
	tr, err := remote.Open(new(etcdFlags).with(t.Context()), remote.Config{
		Servers: at, Formats: block.Formats{f}, Ramp: ramp, Clock: clock,
		Timeout: testkit.Patience() / 4, Latency: breaker.LatencyOptions{Least: time.Hour}, // no server is slow
	})
	must(t, err)
	defer func() { must(t, tr.Close(t.Context())) }()
	buf := tiertest.Buffer(t, f.Layout.ImageBytes())
	// store stores the blocks that are missing, and returns their number.
	store := func() (stored int) {
		t.Helper()
		for i := range blocks {
			key := tiertest.Key(i)
			err := tr.Get(t.Context(), key, buf)
			if err == nil {
				continue
			}
			if !errors.Is(err, errdefs.ErrNotFound) {
				t.Fatal(err)
			}
			tiertest.Seal(t, f, buf.Bytes(), key, 0)
			must(t, tr.Put(t.Context(), key, buf))
			stored++
		}
		return stored
	}
	// counts returns the blocks of each member.
	counts := func() map[string]int {
		r, n := statusOf(t, at), make(map[string]int)
		for i := range r.Members {
			n[r.Members[i].Address] = int(r.Members[i].Blocks)
		}
		return n
	}
	near := func(what string, moved int) {
		t.Helper()
		if ideal := blocks / servers; moved < ideal*8/10 || moved > ideal*12/10 {
			t.Errorf("%s: %d of %d blocks moved, the ideal is %d", what, moved, blocks, ideal)
		}
	}
	if n := store(); n != blocks {
		t.Fatalf("%d blocks are stored, of %d", n, blocks)
	}
	before := counts()

	lost := before[all[0].addr]
	must(t, all[0].Process.Kill())
	_ = all[0].Wait() // it was killed
	waitForStates(t, at, "up up up up")
	waitForServers(t, tr, servers-1)
	moved := store()
	near("killed", moved)
	sum, killed := 0, counts()
	for name, n := range killed {
		if sum += n; n < before[name] {
			t.Errorf("member %s has %d blocks, and had %d", name, n, before[name])
		}
	}
	if moved != lost || sum != blocks {
		t.Errorf("%d blocks were stored again after a loss of %d; the members have %d", moved, lost, sum)
	}

	added := member(t, etcd.Addr)
	waitForStates(t, at, "up up up up up")
	waitForServers(t, tr, servers)
	for range steps + 1 { // the last one with the full weight, while the previous homes are known
		if n := store(); n > 0 {
			t.Errorf("%d blocks are lost while a server joins", n)
		}
		clock.Advance(ramp / steps)
	}
	after := counts()
	near("added", after[added.addr])
	if filled := tr.PeerStats().Filled; filled != int64(after[added.addr]) {
		t.Errorf("%d blocks were filled, the new member has %d", filled, after[added.addr])
	}
	for name, n := range killed {
		if after[name] != n {
			t.Errorf("member %s has %d blocks, and had %d before another one joined", name, after[name], n)
		}
	}
	for _, s := range append(all[1:], added) {
		_, err := s.end(t, syscall.SIGTERM)
		must(t, err)
	}
}

// waitForServers waits until a client has a list of n servers.
func waitForServers(t *testing.T, tr *remote.Tier, n int) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); len(tr.PeerStats().Servers) != n; time.Sleep(10 * time.Millisecond) {
		_ = tr.Stats() // it uses the present list
		if time.Now().After(end) {
			t.Fatalf("the client has %d servers, want %d", len(tr.PeerStats().Servers), n)
		}
	}
}

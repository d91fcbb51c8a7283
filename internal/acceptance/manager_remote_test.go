package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier/remote"
)

// blockServer starts a block server in memory. stop may be called twice.
func blockServer(t *testing.T) (addr string, stop func()) {
	t.Helper()
	addr, _, stop = blockServerOf(t)
	return addr, stop
}

// blockServerOf is blockServer, and also returns the host of the server's blocks.
func blockServerOf(t *testing.T) (addr string, host *blockhost.Host, stop func()) {
	t.Helper()
	host, err := blockhost.New(blockhost.Options{CapacityBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := auth.NewServer(auth.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{Host: host, Auth: credentials})
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if err := errors.Join(s.Close(context.Background()), host.Close(context.Background())); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return at.String(), host, stop
}

// prompt returns the names of the blocks of prompt p. They are less than a run.
func prompt(p int) []kvlane.Block {
	var names []string
	for i := range cachePages {
		names = append(names, fmt.Sprintf("%d.%d", p, i))
	}
	return blocks(names...)
}

const managerPrompts = 8

// storeAndReload stores prompts by a Manager with two workers, in several jobs. Another Manager
// with other workers, as after a restart on another host, finds the blocks in the shared tier of a
// pipeline, and loads them from the middle of the prompts. set sets the shared tier. It returns
// that Manager.
func storeAndReload(t *testing.T, pipeline string, set func(*kvlane.Config)) (*kvlane.Manager, []*worker) {
	t.Helper()
	open := func() (*kvlane.Manager, []*worker) {
		var ranks []kvlane.Config
		for r := range 2 {
			c := testConfig(t)
			c.Model.KVHeads, c.Model.TPSize, c.Model.TPRank = 2, 2, r
			c.Store.Pipeline = pipeline
			if c.Store.Dirs = nil; strings.Contains(pipeline, "file") {
				c.Store.Dirs = []string{t.TempDir()}
			}
			set(&c)
			ranks = append(ranks, c)
		}
		m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: ranks})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return m, []*worker{newWorker(t, ranks[0]), newWorker(t, ranks[1])}
	}
	m, workers := open()
	for p := range managerPrompts {
		names := prompt(p)
		if _, err := m.Lookup(t.Context(), names); err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]kvlane.Block{names[:1], names[1:4], names[4:]} {
			j, err := m.Store(part)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workers {
				w.store(t, j)
			}
			if err := j.End(); err != nil {
				t.Fatal(err)
			}
		}
	}
	m, workers = open()
	for p := range managerPrompts {
		names := prompt(p)
		states, err := m.Lookup(t.Context(), names)
		if want := slices.Repeat([]manager.State{manager.InRemote}, len(names)); err != nil || !slices.Equal(states, want) {
			t.Fatalf("prompt %d: %v, %v", p, states, err)
		}
		j, err := m.Load(t.Context(), names[2:5])
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			if failed := w.load(t, j); failed != nil {
				t.Errorf("prompt %d: a worker fails at %v", p, failed)
			}
		}
		if err := j.End(); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats(); s.Unanchored != 0 || s.FromFiles != 3*managerPrompts {
		t.Errorf("%+v", s)
	}
	return m, workers
}

// lostPrompts returns the number of prompts with blocks that a Manager does not find.
func lostPrompts(t *testing.T, m *kvlane.Manager) (lost int) {
	t.Helper()
	for p := range managerPrompts {
		states, err := m.Lookup(t.Context(), prompt(p))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(states, manager.Absent) {
			lost++
		}
	}
	return lost
}

func TestManagerOverBlockServers(t *testing.T) {
	for _, pipeline := range []string{"cache|remote", "cache|file|remote"} {
		t.Run(strings.ReplaceAll(pipeline, "|", " "), func(t *testing.T) {
			var addrs []string
			var hosts []*blockhost.Host
			var stops []func()
			for range 3 {
				addr, host, stop := blockServerOf(t)
				addrs, hosts, stops = append(addrs, addr), append(hosts, host), append(stops, stop)
			}
			m, workers := storeAndReload(t, pipeline, func(c *kvlane.Config) { c.Store.Remote = strings.Join(addrs, ",") })
			for _, w := range workers {
				for _, below := range w.e.Tiers() {
					if r, ok := below.(*remote.Tier); ok && r.PeerStats().Unanchored != 0 {
						t.Errorf("%+v", r.PeerStats())
					}
				}
			}
			gone := 0 // blocks in the stopped servers. One server has a prompt of both workers.
			for i, stop := range stops {
				for _, u := range hosts[i].Usages() {
					gone += int(u.Blocks)
				}
				stop()
				if lost, want := lostPrompts(t, m), gone/(cachePages*len(workers)); lost != want {
					t.Errorf("without %d of 3 servers, which had %d blocks, %d prompts are lost, not %d", i+1, gone, lost, want)
				}
			}
			if gone != managerPrompts*cachePages*len(workers) {
				t.Errorf("the servers had %d blocks", gone)
			}
		})
	}
}

// A Manager's blocks are in a bucket. While its server is down they are misses.
func TestManagerOverABucket(t *testing.T) {
	s3test.Setenv(t)
	for _, pipeline := range []string{"cache|object", "cache|file|object"} {
		t.Run(strings.ReplaceAll(pipeline, "|", " "), func(t *testing.T) {
			s := s3test.Start(t, "versitygw")
			m, _ := storeAndReload(t, pipeline, func(c *kvlane.Config) {
				c.Store.Object, c.Store.ObjectEndpoint = "s3://"+s3test.Bucket+"/test", s.URL()
			})
			if lost := lostPrompts(t, m); lost > 0 {
				t.Errorf("%d of %d prompts are lost", lost, managerPrompts)
			}
			s.Stop()
			if lost := lostPrompts(t, m); lost != managerPrompts {
				t.Errorf("without the bucket's server, %d of %d prompts are lost", lost, managerPrompts)
			}
			s.Start(t)
			for end := time.Now().Add(testkit.Patience()); lostPrompts(t, m) > 0; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the blocks are not found again: %+v", m.Stats())
				}
			}
		})
	}
}

// A caller that starts in the middle of a prompt gives anchors.
func TestManagerWithGivenAnchors(t *testing.T) {
	one, _ := blockServer(t)
	two, _ := blockServer(t)
	c := testConfig(t)
	c.Store.Dirs, c.Store.Remote = nil, one+","+two
	m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: []kvlane.Config{c}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	names := prompt(0)
	anchors := slices.Repeat(names[:1], 2)
	if err := m.SetAnchors(names[3:5], anchors); err != nil {
		t.Fatal(err)
	}
	if err := m.SetAnchors(names, anchors); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("fewer anchors than blocks: %v", err)
	}
	j, err := m.Store(names[3:6], names[2])
	if err != nil {
		t.Fatal(err)
	}
	if want := newWorker(t, c).keys(append(anchors, names[5])); !slices.Equal(j.Anchors, want) {
		t.Errorf("anchors %v, want %v", j.Anchors, want)
	}
	if s := m.Stats(); s.Unanchored != 1 {
		t.Errorf("%d blocks without an anchor, want 1", s.Unanchored)
	}
	if err := j.End(0, 1, 2); err != nil {
		t.Fatal(err)
	}
}

// Admission measures block servers and decides their hits. A probe finds out when they are faster.
func TestAdmissionOfBlockServers(t *testing.T) {
	c := testConfig(t)
	addr, _ := blockServer(t)
	c.Store.Remote = addr
	w := newWorker(t, c)
	keys := w.keys(prompt(0))
	worth := func() int {
		l, err := w.e.LeasePrefix(t.Context(), keys, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if l.Len() != len(keys) || l.Tier(0) == "file" {
			t.Fatalf("%d blocks are leased, from %s", l.Len(), l.Tier(0))
		}
		return w.e.Worth(l, 1000, 0)
	}
	drop := func() {
		for {
			stay, err := w.e.Drop(t.Context(), keys)
			if err != nil {
				t.Fatal(err)
			}
			if stay == 0 {
				return
			}
		}
	}
	w.store(t, &kvlane.Job{Blocks: prompt(0)})
	for _, f := range w.e.Tiers()[1:2] { // only the server keeps the blocks
		for _, key := range keys {
			if err := f.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		w.e.ReportComputed(1000, time.Nanosecond)
		drop()
		if n := worth(); n != len(keys) {
			t.Fatalf("%d blocks of a server are worth loading before that is known", n)
		}
		if failed := w.load(t, &kvlane.Job{Blocks: prompt(0)}); failed != nil {
			t.Fatal(failed)
		}
	}
	drop()
	if n := worth(); n != 0 {
		t.Errorf("%d blocks of a server are worth loading that are computed in no time", n)
	}
	if s := w.e.Store().Stats().Admission; s.RemoteRate <= 0 || s.FileRate != 0 || s.MemoryRate != 0 || s.Probes != 1 {
		t.Errorf("%+v", s)
	}
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) { // the probe reads blocks into the cache
		if hits, err := w.e.Lookup(t.Context(), keys); err == nil && hits[0].Tier == "cache" {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a probe read no block")
		}
	}
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/replay"
)

// remoteServer is a block server of this process with a fixed address.
type remoteServer struct {
	addr     string
	capacity int64 // zero: 1 GiB
	host     *blockhost.Host
	server   *server.Server

	devices     *registry.Devices // nil: without RDMA
	set         *registry.Set
	gateway     *gateway.Gateway
	credentials auth.ServerOptions
	remote      int64 // requests by RDMA, of all starts
}

func newRemoteServer(t *testing.T) *remoteServer {
	t.Helper()
	s := &remoteServer{addr: "127.0.0.1:0"}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

// start starts the server without blocks.
func (s *remoteServer) start(t *testing.T) {
	t.Helper()
	credentials, err := auth.NewServer(s.credentials)
	must(t, err)
	s.startRDMA(t)
	if s.host, err = blockhost.New(blockhost.Options{CapacityBytes: cmp.Or(s.capacity, 1<<30)}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		if s.server, err = server.New(server.Options{Host: s.host, Auth: credentials, RDMA: s.gateway}); err != nil {
			t.Fatal(err)
		}
		addr, err := s.server.Listen(context.Background(), s.addr)
		if err == nil {
			s.addr = addr.String()
			return
		}
		if time.Now().After(end) { // connections of the previous server may still have the address
			t.Fatal(err)
		}
	}
}

// stop ends all connections and loses all blocks.
func (s *remoteServer) stop(t *testing.T) {
	t.Helper()
	if err := s.server.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := s.host.Close(context.Background()); err != nil {
		t.Error(err)
	}
	s.stopRDMA(t)
}

// The only server loses its blocks and restarts 20 times during a replay: misses, but no errors and
// no wrong bytes.
func TestReplayWhileTheServerRestarts(t *testing.T) {
	s := newRemoteServer(t)
	args := []string{
		"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", "60", "--cache-bytes", "1MiB",
		"--pipeline", "cache|remote", "--remote", s.addr, "--remote-timeout-ms", "200",
	}
	replayDuringRestarts(t.Context(), t, args, 25*time.Millisecond, func() {
		s.stop(t)
		time.Sleep(5 * time.Millisecond)
		s.start(t)
	})
}

// replayReport runs a replay with a report in JSON.
func replayReport(ctx context.Context, t *testing.T, args ...string) (r replay.Report) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(ctx, args, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &r); code != exitOK || err != nil {
		t.Fatalf("%q: exit code %d, %v, standard error %q", args, code, err, errs.String())
	}
	return r
}

// replayDuringRestarts runs replays while restart is called 20 times, and until a replay lost hits:
// on a busy machine 20 restarts may pass before a replay reaches the server.
func replayDuringRestarts(ctx context.Context, t *testing.T, args []string, pause time.Duration, restart func()) {
	t.Helper()
	run := func() replay.Report { return replayReport(ctx, t, args...) }
	run() // it fills the server
	whole := run()
	done, end := make(chan struct{}), time.Now().Add(testkit.Patience())
	restarts, runs := 0, 0
	var lost atomic.Int64
	go func() {
		defer close(done)
		for ; restarts < 20 || lost.Load() == 0 && time.Now().Before(end); restarts++ {
			time.Sleep(pause)
			restart()
		}
	}()
	ended := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	start := time.Now()
	for ; !ended(); runs++ {
		r := run()
		lost.Add(max(0, whole.PrefixHits-r.PrefixHits))
		t.Logf("replay %d: %d hits of %d without restarts, %d mismatches, %d load and %d dump errors", runs, r.PrefixHits, whole.PrefixHits, r.Mismatches, r.LoadErrors, r.DumpErrors)
		if r.Mismatches+r.DumpErrors != 0 { // a leased block that was lost is a load error, and is computed
			t.Errorf("replay %d has failed dumps or wrong bytes", runs)
		}
	}
	t.Logf("%d restarts in %d replays cost %d hits, %v", restarts, runs, lost.Load(), time.Since(start))
	if lost.Load() == 0 {
		t.Error("no restart caused a miss")
	}
	hitsReturn(ctx, t, args, whole.PrefixHits)
}

// hitsReturn runs replays until one has at least so many hits.
func hitsReturn(ctx context.Context, t *testing.T, args []string, hits int64) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; {
		r := replayReport(ctx, t, args...)
		if r.Mismatches != 0 {
			t.Errorf("%d mismatches", r.Mismatches)
		}
		if r.PrefixHits >= hits {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d hits, were %d", r.PrefixHits, hits)
		}
	}
}

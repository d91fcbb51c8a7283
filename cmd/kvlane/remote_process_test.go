package main

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
)

// remoteReplay returns arguments of a replay over a block server.
func remoteReplay(addr string, more ...string) []string {
	return append([]string{
		"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", "60", "--cache-bytes", "1MiB",
		"--pipeline", "cache|remote", "--remote", addr,
	}, more...)
}

// The process of the server is stopped and continued during replays: misses, but no failed dumps, no
// wrong bytes, and no replay that waits for the server longer than its deadlines.
func TestReplayWhileTheServerIsStopped(t *testing.T) {
	s := startBlockd(t, command(t), "127.0.0.1:0", "--cache-bytes", "256MiB")
	args := remoteReplay(s.addr, "--remote-timeout-ms", "100")
	replayReport(t.Context(), t, args...) // it fills the server
	whole := replayReport(t.Context(), t, args...)
	if whole.HitsByTier["remote"] == 0 {
		t.Fatalf("no block is found in the server: %v", whole.HitsByTier)
	}
	s.pause(t)
	start := time.Now()
	r := replayReport(t.Context(), t, args...)
	stopped := time.Since(start)
	if r.HitsByTier["remote"] != 0 || r.Mismatches+r.DumpErrors+r.LoadErrors != 0 {
		t.Errorf("with a stopped server: hits %v, %d mismatches, %d dump and %d load errors", r.HitsByTier, r.Mismatches, r.DumpErrors, r.LoadErrors)
	}
	// The breaker opens after three failures, each of 100 ms and a fence of 200 ms. Then probes fail.
	if most := 10*time.Second + testkit.Patience()/4; stopped > most {
		t.Errorf("the replay took %v, want at most %v", stopped, most)
	}
	must(t, s.Process.Signal(syscall.SIGCONT))
	done, end := make(chan struct{}), time.Now().Add(testkit.Patience())
	var lost atomic.Int64
	go func() {
		defer close(done)
		for n := 0; n < 4 || lost.Load() == 0 && time.Now().Before(end); n++ { // in mid-replay
			time.Sleep(40 * time.Millisecond)
			s.pause(t)
			time.Sleep(300 * time.Millisecond)
			_ = s.Process.Signal(syscall.SIGCONT) // the end of the process shows later
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		r := replayReport(t.Context(), t, args...)
		if r.Mismatches+r.DumpErrors != 0 {
			t.Errorf("%d mismatches, %d dump errors", r.Mismatches, r.DumpErrors)
		}
		lost.Add(max(0, whole.PrefixHits-r.PrefixHits))
	}
	if lost.Load() == 0 {
		t.Error("no hit was lost while the server was stopped")
	}
	hitsReturn(t.Context(), t, args, whole.PrefixHits)
	_, err := s.end(t, syscall.SIGTERM)
	must(t, err)
}

// Three identities with images of different lengths share a server with memory for half of their
// blocks. Replays in turn find some, and no wrong bytes.
func TestThreeIdentitiesShareAServer(t *testing.T) {
	testkit.SkipRace(t, "other tests replay to a server too")
	heads := []int{1, 2, 4}
	replays := func(addr string) []replay.Report {
		var reports []replay.Report
		for _, n := range heads {
			reports = append(reports, replayReport(t.Context(), t, remoteReplay(addr, "--kv-heads", strconv.Itoa(n))...))
		}
		return reports
	}
	large := newRemoteServer(t)
	replays(large.addr)
	bytes := large.host.Usage(auth.DefaultTenant).Bytes
	small := &remoteServer{addr: "127.0.0.1:0", capacity: bytes / 2}
	small.start(t)
	t.Cleanup(func() { small.stop(t) })
	for round := range 3 {
		for i, r := range replays(small.addr) {
			if r.Mismatches+r.DumpErrors != 0 || round > 0 && r.HitsByTier["remote"] == 0 {
				t.Errorf("round %d, identity %d: %d mismatches, %d dump errors, hits %v", round, i, r.Mismatches, r.DumpErrors, r.HitsByTier)
			}
		}
	}
	u := small.host.Usage(auth.DefaultTenant)
	if u.Evictions == 0 || u.Bytes > bytes/2 {
		t.Errorf("with %d bytes of memory: %+v", bytes/2, u)
	}
}

// Replays use servers with tokens and with certificates of clients. Without a credential there are
// misses, and a note.
func TestReplayWithCredentials(t *testing.T) {
	trace, err := filepath.Abs(conversation)
	must(t, err)
	t.Chdir(t.TempDir())
	credentialFiles(t)
	must(t, os.WriteFile("token", []byte("0123456789abcdef\n"), 0o600))
	for name, c := range map[string]struct{ server, client []string }{
		"token":       {[]string{"--tokens", "tokens"}, []string{"--remote-token", "token"}},
		"certificate": {[]string{"--tls-client-ca", "clients.pem"}, []string{"--remote-cert", "server.pem", "--remote-key", "server.key"}},
	} {
		p := interruptible(t, append([]string{"blockd", "--listen", "127.0.0.1:0", "--cache-bytes", "64MiB", "--tls-cert", "server.pem", "--tls-key", "server.key"}, c.server...)...)
		addr := p.word(t, "block server ")
		addr = addr[:len(addr)-len("; interrupt to end\n")]
		good := remoteReplay(addr, append([]string{"--remote-ca", "server.pem", "--remote-timeout-ms", longMS}, c.client...)...)
		good[1] = trace
		replayReport(t.Context(), t, good...)
		if r := replayReport(t.Context(), t, good...); r.HitsByTier["remote"] == 0 || r.Mismatches != 0 || len(r.Notes) != 0 {
			t.Errorf("%s: hits %v, %d mismatches, notes %q", name, r.HitsByTier, r.Mismatches, r.Notes)
		}
		bad := remoteReplay(addr, "--remote-ca", "server.pem")
		bad[1] = trace
		if r := replayReport(t.Context(), t, bad...); r.HitsByTier["remote"] != 0 || r.Mismatches+r.DumpErrors != 0 || len(r.Notes) == 0 {
			t.Errorf("without a %s: hits %v, %d mismatches, %d dump errors, notes %q", name, r.HitsByTier, r.Mismatches, r.DumpErrors, r.Notes)
		}
		p.stop()
	}
}

package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/tier/remote"
)

// member starts a block server that registers in etcd.
func member(t *testing.T, etcd string, more ...string) *blockServer {
	t.Helper()
	return startBlockd(t, command(t), "127.0.0.1:0", append([]string{"--cache-bytes", "256MiB", "--etcd", etcd, "--cluster", "test", "--drain", "500ms"}, more...)...)
}

// statusOf returns the status of a cluster.
func statusOf(t *testing.T, members string) (r clusterReport) {
	t.Helper()
	code, stdout, stderr := execute(t, "cluster", "status", members, "--json")
	if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	return r
}

// states returns the sorted states of the members.
func states(r *clusterReport) string {
	var all []string
	for i := range r.Members {
		all = append(all, r.Members[i].State)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func waitForStates(t *testing.T, members, want string) clusterReport {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(50 * time.Millisecond) {
		r := statusOf(t, members)
		if states(&r) == want {
			return r
		}
		if time.Now().After(end) {
			t.Fatalf("the members are %q, want %q", states(&r), want)
		}
	}
}

// remoteTier returns the figures of the block servers: OverrunUS is the longest time by which a
// request ended after its deadline.
func remoteTier(r *replay.Report) (tier replay.TierReport) {
	if i := slices.IndexFunc(r.Tiers, func(t replay.TierReport) bool { return t.Name == remote.Name }); i >= 0 {
		tier = r.Tiers[i]
	}
	return tier
}

// blameless returns the first error of a replay that contains none of the texts, or "".
func blameless(r *replay.Report, texts ...string) string {
	for _, sample := range r.ErrorSamples {
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(sample, text) }) {
			return sample
		}
	}
	return ""
}

// waitForText waits until a server's answer has a text.
func waitForText(t *testing.T, url, text string) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(50 * time.Millisecond) {
		answer := served(t, url)
		if strings.Contains(answer, text) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no %s:\n%s", url, text, answer)
		}
	}
}

// A member that does not answer is counted, and named with the reason.
func TestClusterStatusOfASilentMember(t *testing.T) {
	code, stdout, stderr := execute(t, "cluster", "status", "127.0.0.1:1")
	if code != exitOK || !strings.HasPrefix(stdout, "! 1 member; 1 does not answer\n") || strings.Count(stdout, "the connection has ended") != 1 ||
		!strings.Contains(stdout, "127.0.0.1:1 does not answer: ") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// Servers register, are drained by an operator and by an interruption, and leave.
func TestClusterStatusAndDrain(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			etcd := etcdtest.Start(t, version)
			at := "etcd://" + etcd.Addr + "/test"
			if code, _, stderr := execute(t, "cluster", "status", at); code != exitFailure || !strings.Contains(stderr, "start a server with --etcd") {
				t.Errorf("a cluster without members: exit code %d, %s", code, stderr)
			}
			page := freeAddress(t)
			one, two := member(t, etcd.Addr, "--zone", "east"), member(t, etcd.Addr, "--weight", "3", "--metrics-addr", page)
			r := waitForStates(t, at, "up up")
			for i := range r.Members {
				m := &r.Members[i]
				want := memberStatus{
					Name: m.Address, Address: m.Address, State: "up", Boot: m.Boot, Joined: m.Joined, CapacityBytes: 256 << 20,
					Weight: 3, Share: 0.75, MostShare: 1,
				}
				if m.Address == one.addr {
					want.Weight, want.Share, want.Zone = 1, 0.25, "east"
				}
				if *m != want || m.Boot == "" || m.Joined == nil {
					t.Errorf("member %+v, want %+v", *m, want)
				}
			}
			if code, _, stderr := execute(t, "cluster", "drain", at, one.addr); code != exitOK {
				t.Errorf("drain: exit code %d, %s", code, stderr)
			}
			drained := waitForStates(t, at, "draining up")
			if drained.Epoch <= r.Epoch {
				t.Errorf("epoch %d after %d", drained.Epoch, r.Epoch)
			}
			replayReport(t.Context(), t, remoteReplay(at)...)
			r = statusOf(t, at)
			for i := range r.Members {
				if m := &r.Members[i]; (m.Blocks == 0) != (m.Address == one.addr) {
					t.Errorf("member %s, %s, has %d blocks", m.Address, m.State, m.Blocks)
				}
			}
			code, stdout, _ := execute(t, "cluster", "status", at)
			if code != exitOK || !strings.Contains(stdout, "draining") || !strings.Contains(stdout, "2 members, epoch") {
				t.Errorf("exit code %d, %s", code, stdout)
			}
			if code, _, stderr := execute(t, "cluster", "drain", at, one.addr, "--undo"); code != exitOK {
				t.Errorf("undo: exit code %d, %s", code, stderr)
			}
			waitForStates(t, at, "up up")
			must(t, one.Process.Signal(syscall.SIGTERM))
			waitForStates(t, at, "draining up") // it serves on
			waitForText(t, "http://"+page+"/status.json", `["`+one.addr+`","east","1","0.0%","draining",`)
			must(t, one.Wait())
			waitForStates(t, at, "up")
			_, err := two.end(t, syscall.SIGTERM)
			must(t, err)
		})
	}
}

// The status page of a server shows a member that drains, one that has left, and one that was
// killed.
func TestClusterPageInABrowser(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Versions[1])
	at := "etcd://" + etcd.Addr + "/test"
	page := freeAddress(t)
	own := member(t, etcd.Addr, "--zone", "a", "--metrics-addr", page)
	drained, left, killed := member(t, etcd.Addr, "--zone", "b"), member(t, etcd.Addr, "--zone", "b"), member(t, etcd.Addr, "--zone", "c", "--weight", "2")
	waitForStates(t, at, "up up up up")
	if code, _, stderr := execute(t, "cluster", "drain", at, drained.addr); code != exitOK {
		t.Fatalf("drain: exit code %d, %s", code, stderr)
	}
	_, err := left.end(t, syscall.SIGTERM)
	must(t, err)
	must(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed
	waitForStates(t, at, "draining up")
	replayReport(t.Context(), t, remoteReplay(at)...)
	waitForText(t, "http://"+page+"/status.json", "lost ")
	document := browse(t, "http://"+page+"/")
	// cells returns a pattern for the cells of a row, the first ones.
	cells := func(texts ...string) *regexp.Regexp {
		return regexp.MustCompile(`<td[^>]*>` + strings.Join(texts, `</td>\s*<td[^>]*>`))
	}
	const date = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d</td>`
	for _, want := range []*regexp.Regexp{
		cells(regexp.QuoteMeta(own.addr), "a", "1", "100.0%", "up", date),
		cells(regexp.QuoteMeta(drained.addr), "b", "1", "0.0%", "draining", date),
		cells(regexp.QuoteMeta(left.addr), "b", "1", "0.0%", "left "+date),
		cells(regexp.QuoteMeta(killed.addr), "c", "2", "0.0%", "lost "+date),
	} {
		if !want.MatchString(document) {
			t.Errorf("the page lacks %s:\n%s", want, document)
		}
	}
	for _, s := range []*blockServer{own, drained} {
		_, err := s.end(t, syscall.SIGTERM)
		must(t, err)
	}
}

// One of five servers is killed, one is paused, one is added, and etcd is killed and restarted,
// each during a replay: no wrong byte, no request beyond its deadline, no block that a server does
// not send while it runs, and hits return. Only the paused server needs a short deadline, in which
// others may not answer on a busy machine.
func TestReplayWhileTheClusterChanges(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Versions[1])
	at := "etcd://" + etcd.Addr + "/test"
	early := replayReport(t.Context(), t, remoteReplay(at)...)
	if notes := strings.Join(early.Notes, " "); early.Mismatches+early.DumpErrors+early.LoadErrors != 0 || !strings.Contains(notes, "start a server with --etcd") {
		t.Errorf("without servers: %d dump and %d load errors; notes %q", early.DumpErrors, early.LoadErrors, notes)
	}
	var servers []*blockServer
	for range 5 {
		servers = append(servers, member(t, etcd.Addr))
	}
	waitForStates(t, at, "up up up up up")
	args := remoteReplay(at, "--remote-timeout-ms", "30000")
	args[slices.Index(args, "--limit")+1] = "300"
	speed := []string{"--speed", "20"} // about 5 s
	// A dump drops blocks while many are being written, so the first replays do not store all.
	var whole replay.Report
	for end := time.Now().Add(testkit.Patience()); ; {
		whole = replayReport(t.Context(), t, args...)
		if servers := remoteTier(&whole); whole.HitsByTier["remote"] > 0 && servers.WrittenBytes == 0 && servers.Errors == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the servers do not have all blocks: hits %v, %+v", whole.HitsByTier, whole.Tiers)
		}
	}
	during := func(what string, change func()) replay.Report {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Second)
			change()
		}()
		start := time.Now()
		r := replayReport(t.Context(), t, append(slices.Clone(args), speed...)...)
		<-done
		if r.Mismatches+r.DumpErrors != 0 {
			t.Errorf("%s: %d mismatches, %d dump errors", what, r.Mismatches, r.DumpErrors)
		}
		// A request ends 200 ms after its deadline at the latest, or when the machine runs its goroutine.
		if d := time.Duration(remoteTier(&r).OverrunUS) * time.Microsecond; d > 200*time.Millisecond+testkit.Patience()/4 {
			t.Errorf("%s: a request ended %v after its deadline", what, d)
		}
		// Three failures of 300 ms open a breaker, and probes fail.
		if d := time.Since(start); d > 20*time.Second+testkit.Patience()/4 {
			t.Errorf("%s: the replay took %v", what, d)
		}
		return r
	}
	recovers := func(what string) {
		t.Helper()
		for end := time.Now().Add(testkit.Patience()); ; {
			r := replayReport(t.Context(), t, args...)
			if r.Mismatches+r.DumpErrors != 0 {
				t.Errorf("%s: %d mismatches, %d dump errors", what, r.Mismatches, r.DumpErrors)
			}
			if r.PrefixHits >= whole.PrefixHits && r.LoadErrors == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d hits, were %d", what, r.PrefixHits, whole.PrefixHits)
			}
		}
	}
	// incomplete checks a replay whose servers all run, and reports whether it may be repeated. On a busy
	// machine a server may be much slower than the others, and is left out: its blocks are misses.
	end := time.Now().Add(2 * testkit.Patience())
	incomplete := func(what string, r replay.Report) bool {
		t.Helper()
		if other := blameless(&r); other != "" {
			t.Errorf("%s: a block was not sent: %s", what, other)
		}
		if r.PrefixHits < whole.PrefixHits && time.Now().After(end) {
			t.Fatalf("%s: %d hits, were %d", what, r.PrefixHits, whole.PrefixHits)
		}
		return r.PrefixHits < whole.PrefixHits
	}
	for incomplete("unchanged", during("unchanged", func() {})) {
	}

	// The server with most blocks.
	r := statusOf(t, at)
	most := slices.MaxFunc(r.Members, func(a, b memberStatus) int { return int(a.Blocks) - int(b.Blocks) })
	killed := slices.IndexFunc(servers, func(s *blockServer) bool { return s.addr == most.Address })
	lost := during("killed", func() { _ = servers[killed].Process.Kill() }) // Wait has the error
	_ = servers[killed].Wait()                                              // it was killed
	// The server does not send the blocks that a request had leased. Later requests find none there.
	if other := blameless(&lost, most.Address); other != "" {
		t.Errorf("a block of another server was not sent: %s", other)
	}
	if lost.PrefixHits >= whole.PrefixHits {
		t.Errorf("%d hits without a server with %d blocks", lost.PrefixHits, most.Blocks)
	}
	waitForStates(t, at, "up up up up") // the lease has ended
	recovers("killed")

	paused := servers[(killed+1)%5]
	args = append(args, "--remote-timeout-ms", "100")
	silent := during("paused", func() { _ = paused.Process.Signal(syscall.SIGSTOP) }) // the status shows it
	args = args[:len(args)-2]
	if other := blameless(&silent, paused.addr, "no answer within 100ms"); other != "" {
		t.Errorf("a block was not sent: %s", other)
	}
	if r := statusOf(t, at); states(&r) != "down up up up" && states(&r) != "up up up" {
		t.Errorf("with a paused server the members are %q", states(&r))
	}
	must(t, paused.Process.Signal(syscall.SIGCONT))
	waitForStates(t, at, "up up up up") // it registers again
	recovers("paused")

	var added *blockServer
	incomplete("added", during("added", func() { added = member(t, etcd.Addr) }))
	waitForStates(t, at, "up up up up up")
	recovers("added")

	for incomplete("etcd killed", during("etcd killed", etcd.Kill)) {
		etcd.Start(t)
		waitForStates(t, at, "up up up up up")
	}
	speed[1] = "5" // about 20 s: clients connect within 6 s after etcd is back
	cold := during("started without etcd", func() {
		time.Sleep(7 * time.Second) // the command has given up its first read
		etcd.Start(t)
	})
	if cold.HitsByTier["remote"] == 0 || blameless(&cold) != "" || !strings.Contains(strings.Join(cold.Notes, " "), "no block server is known") {
		t.Errorf("hits %v and errors %q after etcd came back, notes %q", cold.HitsByTier, cold.ErrorSamples, cold.Notes)
	}
	speed[1] = "20"
	waitForStates(t, at, "up up up up up")
	restart := func() {
		etcd.Kill()
		time.Sleep(time.Second)
		etcd.Start(t)
	}
	for incomplete("etcd restarted", during("etcd restarted", restart)) {
		waitForStates(t, at, "up up up up up")
	}
	waitForStates(t, at, "up up up up up")
	recovers("etcd restarted")
	for _, s := range append(servers, added) {
		if s != servers[killed] {
			_, err := s.end(t, syscall.SIGTERM)
			must(t, err)
		}
	}
}

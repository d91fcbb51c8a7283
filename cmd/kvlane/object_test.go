package main

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/replay"
)

// longMS is a deadline of a request of which a test expects a hit, also on a busy machine.
const longMS = "60000"

// bucketURL returns the arguments for a bucket of a server. Each prefix has its own blocks.
func bucketURL(s *s3test.Server, prefix string) []string {
	return []string{"--object", "s3://" + s3test.Bucket + "/" + prefix, "--object-endpoint", s.URL(), "--object-timeout-ms", longMS}
}

// objectReplay is a replay of requests on the simulated device.
func objectReplay(args ...string) []string {
	return append([]string{"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", "24", "--cache-bytes", "1MiB"}, args...)
}

// A replay has the same hits with an object tier as with files, on both servers.
func TestObjectReplayIsExact(t *testing.T) {
	s3test.Setenv(t)
	want := replayReport(t.Context(), t, objectReplay("--pipeline", "cache|file", "--file-dir", t.TempDir())...).PrefixHits
	for _, server := range []string{"versitygw", "moto"} {
		t.Run(server, func(t *testing.T) {
			s := s3test.Start(t, server)
			blocks := newRemoteServer(t)
			for n, args := range [][]string{
				{"--pipeline", "cache|file|object", "--file-dir", t.TempDir()},
				{"--pipeline", "cache|object", "--layerwise"},
				{"--pipeline", "cache|remote|object", "--remote", blocks.addr, "--remote-timeout-ms", longMS},
				{"--pipeline", "object"},
			} {
				if server == "moto" && n != 1 { // it is slow
					continue
				}
				r := replayReport(t.Context(), t, append(objectReplay(args...), bucketURL(s, string(rune('a'+n)))...)...)
				if r.PrefixHits != want || want == 0 || r.Mismatches+r.LoadErrors+r.DumpErrors != 0 {
					t.Errorf("%q: %d hits, want %d; %d mismatches, %d load errors, %d dump errors", args, r.PrefixHits, want, r.Mismatches, r.LoadErrors, r.DumpErrors)
				}
			}
		})
	}
}

// Two processes share blocks through a bucket, one after the other and concurrently.
func TestObjectProcessesShareBlocks(t *testing.T) {
	s3test.Setenv(t)
	s := s3test.Start(t, "versitygw")
	args := append(objectReplay("--pipeline", "cache|object"), bucketURL(s, "shared")...)
	bin := command(t)
	first := start(t, bin, args...).report(t)
	one, two := start(t, bin, args...), start(t, bin, args...)
	for _, r := range []*replay.Report{one.report(t), two.report(t)} {
		if r.Mismatches+r.LoadErrors+r.DumpErrors != 0 || r.PrefixHits <= first.PrefixHits {
			t.Errorf("%d hits of %d blocks, after %d of the first process; %d mismatches, %d load and %d dump errors",
				r.PrefixHits, r.DistinctBlocks, first.PrefixHits, r.Mismatches, r.LoadErrors, r.DumpErrors)
		}
	}
}

// The server is killed, paused and restarted during replays: no wrong byte, no failed dump, no end.
// Afterwards hits return.
func TestObjectReplayWhileTheServerFails(t *testing.T) {
	s3test.Setenv(t)
	s := s3test.Start(t, "versitygw")
	args := append(objectReplay("--pipeline", "cache|object"), append(bucketURL(s, "faults"), "--object-timeout-ms", "300")...)
	whole := replayReport(t.Context(), t, args...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5 {
			time.Sleep(60 * time.Millisecond)
			s.Stop()
			time.Sleep(40 * time.Millisecond)
			s.Start(t)
			time.Sleep(60 * time.Millisecond)
			s.Pause()
			time.Sleep(400 * time.Millisecond)
			s.Resume()
		}
	}()
	for ended := false; !ended; {
		r := replayReport(t.Context(), t, args...)
		t.Logf("%d hits of %d, %d load errors", r.PrefixHits, whole.PrefixHits, r.LoadErrors)
		if r.Mismatches+r.DumpErrors != 0 { // a leased block that was lost is a load error, and is computed
			t.Errorf("%d mismatches, %d dump errors", r.Mismatches, r.DumpErrors)
		}
		select {
		case <-done:
			ended = true
		default:
		}
	}
	hitsReturn(t.Context(), t, args, whole.PrefixHits)
}

// A block server keeps its blocks in a bucket. Another one without memory of them serves them after
// the first was killed. A server without its bucket serves its memory.
func TestObjectBehindABlockServer(t *testing.T) {
	s3test.Setenv(t)
	s := s3test.Start(t, "versitygw")
	bin := command(t)
	flags := []string{"--cache-bytes", "256MiB", "--object", "s3://" + s3test.Bucket + "/servers", "--object-endpoint", s.URL()}
	server := startBlockd(t, bin, "127.0.0.1:0", flags...)
	replayed := func() *replay.Report {
		return start(t, bin, objectReplay("--pipeline", "cache|remote", "--remote", server.addr)...).report(t)
	}
	first := replayed()
	if _, err := server.end(t, syscall.SIGTERM); err != nil { // it writes all blocks
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		server = startBlockd(t, bin, "127.0.0.1:0", flags...)
		r := replayed()
		if r.Mismatches+r.LoadErrors+r.DumpErrors != 0 || r.PrefixHits <= first.PrefixHits {
			t.Errorf("%d hits, %d before; %d mismatches, %d load and %d dump errors", r.PrefixHits, first.PrefixHits, r.Mismatches, r.LoadErrors, r.DumpErrors)
		}
		if sig == syscall.SIGTERM {
			s.Stop()
			if r := replayed(); r.Mismatches+r.DumpErrors != 0 {
				t.Errorf("without the bucket: %d mismatches, %d dump errors", r.Mismatches, r.DumpErrors)
			}
		}
		_, _ = server.end(t, sig) // a killed process has an error
	}
	if code, _, stderr := execute(t, "blockd", "--object", "bucket"); code != exitUsage || !strings.Contains(stderr, "s3://BUCKET/PREFIX") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// kvlane store shows, verifies and shrinks the folders of a bucket.
func TestObjectStoreCommands(t *testing.T) {
	s3test.Setenv(t)
	for _, server := range []string{"versitygw", "moto"} {
		t.Run(server, func(t *testing.T) {
			s := s3test.Start(t, server)
			url := "s3://" + s3test.Bucket + "/store"
			run := func(want int, args ...string) string {
				t.Helper()
				args = append(append([]string{"store"}, args...), url, "--object-endpoint", s.URL())
				code, stdout, stderr := execute(t, args...)
				if code != want {
					t.Fatalf("%q: exit code %d, want %d: %s%s", args, code, want, stdout, stderr)
				}
				return stdout + stderr
			}
			run(exitFailure, "stat")
			for _, heads := range []string{"1", "2"} { // two identities
				replayReport(t.Context(), t, append(objectReplay("--pipeline", "cache|object", "--kv-heads", heads, "--limit", "6"), bucketURL(s, "store")...)...)
			}
			var stats []struct {
				storedStat
				Identity *block.Identity `json:"identity"`
			}
			if err := json.Unmarshal([]byte(run(exitOK, "stat", "--json")), &stats); err != nil || len(stats) != 2 {
				t.Fatalf("%d folders, %v", len(stats), err)
			}
			blocks := stats[0].Blocks + stats[1].Blocks
			lines := strings.Split(strings.TrimSpace(run(exitOK, "ls", "--json")), "\n")
			if blocks == 0 || len(lines) != int(blocks) {
				t.Errorf("%d blocks are listed, %d counted", len(lines), blocks)
			}
			if out := run(exitOK, "verify"); strings.Count(out, "every block is sound") != 2 {
				t.Errorf("verify: %s", out)
			}
			if stats[0].Identity == nil {
				t.Error("the marker has no identity")
			}
			if server == "versitygw" {
				damageObject(t, s)
				if out := run(exitFailure, "verify"); !strings.Contains(out, "damaged") {
					t.Errorf("verify of a damaged object: %s", out)
				}
			}
			run(exitUsage, "verify", "--repair")
			run(exitUsage, "gc", "--quarantine")
			var collected []collectedBlocks
			total := stats[0].Bytes + stats[1].Bytes
			if err := json.Unmarshal([]byte(run(exitOK, "gc", "--json", "--max-bytes", "100KiB")), &collected); err != nil {
				t.Fatal(err)
			}
			var before, after int64
			for _, c := range collected {
				before, after = before+c.BytesBefore, after+c.BytesAfter
			}
			if before != total || after > 100<<10 {
				t.Errorf("%d bytes were collected to %d, want %d to 100 KiB", before, after, total)
			}
			run(exitOK, "gc", "--max-age", "1000h")
			time.Sleep(1100 * time.Millisecond) // times have seconds
			run(exitOK, "gc", "--max-age", "1ms")
			if out := run(exitOK, "ls"); strings.Count(out, "no blocks") != 2 {
				t.Errorf("after gc: %s", out)
			}
		})
	}
	if code, _, stderr := execute(t, "store", "gc", t.TempDir(), "--max-age", "1h"); code != exitUsage {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// damageObject flips a bit of one object.
func damageObject(t *testing.T, s *s3test.Server) {
	t.Helper()
	names := s.Objects(t)
	at := slices.IndexFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".json") })
	s.FlipBit(t, names[at], 5000)
}

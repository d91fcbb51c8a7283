package main

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier/log"
)

// A replay that is killed while it dumps to a log, directly or not, leaves no torn block: the same replay on it finds no
// wrong byte, and the log has all blocks afterwards.
func TestKilledReplayLeavesAWholeLog(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process is killed many times; not with -short")
	}
	kills := 9
	if testkit.Required("crash") {
		kills = 45
	}
	bin := command(t)
	partly := 0
	for n, options := range [][]string{
		{"--direct", "always", "--log-fsync", "never"},
		{"--direct", "always", "--log-fsync", "interval", "--layerwise"},
		{"--direct", "off"},
	} {
		logArgs := func(dir string) []string {
			return append([]string{
				"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", "15", "--pipeline", "log", "--log-dir", dir,
				"--layers", "4", "--kv-heads", "4", "--head-size", "128", "--cache-bytes", "16MiB", "--concurrency", "4",
			}, options...)
		}
		rng := rand.New(rand.NewPCG(20261128, uint64(n)))
		whole := start(t, bin, logArgs(t.TempDir())...).report(t)
		for range kills / 3 {
			dir := t.TempDir()
			c := start(t, bin, logArgs(dir)...)
			waitForSegment(t, dir)
			time.Sleep(time.Duration(rng.Float64() * whole.Seconds * float64(time.Second) / 3))
			_ = c.Process.Kill() // it may have ended
			_ = c.Wait()
			in, err := log.Inspect(t.Context(), dir)
			if err != nil {
				t.Error(err)
			}
			if in.Blocks > 0 && in.Blocks < whole.DistinctBlocks {
				partly++
			}
			wantWholeLog(t, bin, dir, logArgs(dir), whole)
			if t.Failed() {
				t.Fatal(options)
			}
		}
	}
	t.Logf("%d of %d replays were killed between their first block and their last", partly, kills)
	if partly == 0 {
		t.Error("no replay was killed while it dumped")
	}
}

// waitForSegment waits until a log has a segment.
func waitForSegment(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience()); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if names, _ := filepath.Glob(filepath.Join(dir, "seg-*")); len(names) > 0 { // the pattern is right
			return
		}
	}
	t.Fatal("the replay dumps nothing")
}

// wantWholeLog does the replay to its end and checks the log.
func wantWholeLog(t *testing.T, bin, dir string, args []string, whole *replay.Report) {
	t.Helper()
	r := start(t, bin, args...).report(t)
	if !r.Complete || r.Mismatches != 0 || r.Corrupt != 0 || r.LoadErrors != 0 || r.BlockAccesses != whole.BlockAccesses {
		t.Errorf("after the kill: %+v", r)
	}
	cufile := slices.ContainsFunc(r.Paths, func(p replay.PathReport) bool { return p.Path == stream.PathCuFile.String() && p.Bytes > 0 })
	if cufile != slices.Contains(args, "always") {
		t.Errorf("by cuFile: %t, with %v", cufile, args)
	}
	verify := start(t, bin, "store", "verify", dir)
	if err := verify.Wait(); err != nil {
		t.Errorf("store verify: %v\n%s\n%s", err, &verify.stdout, &verify.stderr)
	}
	if in, err := log.Inspect(t.Context(), dir); err != nil || in.Blocks != whole.DistinctBlocks {
		t.Errorf("the log holds %+v, %v; want %d blocks", in, err, whole.DistinctBlocks)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier/file"
)

// conversation is the whole conversation trace.
const conversation = "../../replay/testdata/mooncake-conversation.jsonl.gz"

// command returns the path of this test binary and sets the environment so that its processes run
// main as the kvlane command.
func command(t *testing.T) string {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(commandEnv, "1")
	return bin
}

// child is a running process of the command.
type child struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(t *testing.T, bin string, args ...string) *child {
	t.Helper()
	c := &child{Cmd: exec.CommandContext(t.Context(), bin, args...)}
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// report waits for a replay and returns its JSON report.
func (c *child) report(t *testing.T) *replay.Report {
	t.Helper()
	if err := c.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(c.Args[1:], " "), err, &c.stderr)
	}
	var r replay.Report
	if err := json.Unmarshal(c.stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q", err, &c.stdout)
	}
	return &r
}

// A replay that is killed at any moment leaves a directory that never returns a torn block. The
// same replay on this directory finds no wrong byte, the temporary files are removed, and verify
// finds no fault.
func TestKilledReplayLeavesNoTornBlock(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process is killed many times, which takes half a minute; not with -short")
	}
	const killsPerDir, seed = 2, 20261121
	kills := 12
	if testkit.Required("crash") {
		kills = 52
	}
	tries := 6 * kills
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	bin := command(t)
	whole := start(t, bin, crashArgs(t.TempDir(), 0)...).report(t)
	var killed, tried int
	var swept int64
	for n := 0; killed < kills && tried < tries; n++ {
		dir, args := t.TempDir(), []string(nil)
		for k := range killsPerDir {
			args = crashArgs(dir, n+k)
			c := start(t, bin, args...)
			moment := rng.Int64N(whole.DistinctBlocks) // for the first replay of a directory; the second finds blocks in it
			if tried++; killAt(t, c, dir, moment) {
				killed++
				t.Logf("directory %d: killed with %d blocks", n, moment)
			}
		}
		swept += afterKill(t, bin, dir, args, whole)
		if t.Failed() {
			t.Fatalf("directory %d, options %v", n, args)
		}
	}
	t.Logf("%d of %d replays were killed, %d temporary files were swept", killed, tried, swept)
	if killed < kills || swept == 0 {
		t.Errorf("the test needs %d kills, some of them during a write", kills)
	}
}

// crashArgs returns the arguments of one of several replays of the same requests. Their planes are
// whole leaves, so that streams compute the checksums.
func crashArgs(dir string, variant int) []string {
	args := []string{
		"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", "30", "--file-dir", dir,
		"--layers", "2", "--kv-heads", "1", "--head-size", "128", "--cache-bytes", "16MiB",
	}
	variants := [][]string{
		{},
		{"--pipeline", "file", "--direct", "always", "--concurrency", "4"},
		{"--concurrency", "4"},
		{"--layerwise"},
		{"--pipeline", "file", "--direct", "always", "--fsync", "file", "--layerwise"},
		{"--concurrency", "4", "--layerwise"},
		{"--fsync", "file", "--concurrency", "2"},
	}
	return append(args, variants[variant%len(variants)]...)
}

// killAt kills the replay up to 3 ms after its directory contains the given number of blocks. It
// reports whether the replay was still running.
func killAt(t *testing.T, c *child, dir string, blocks int64) bool {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	var err error
	for wait := true; wait; {
		select {
		case err = <-ended:
			ended <- err
			wait = false
		case <-time.After(time.Millisecond):
			names, _ := filepath.Glob(filepath.Join(dir, "??", "*")) // the pattern is valid
			wait = int64(len(names)) <= blocks
		}
	}
	time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
	_ = c.Process.Kill() // the process may have ended
	err = <-ended
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		if st, ok := ee.Sys().(syscall.WaitStatus); ok && st.Signal() == syscall.SIGKILL {
			return true
		}
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", c.Args, err, &c.stderr)
	}
	return false
}

// afterKill runs the same replay to its end and checks the directory. It returns the number of
// removed temporary files.
func afterKill(t *testing.T, bin, dir string, args []string, whole *replay.Report) (swept int64) {
	t.Helper()
	r := start(t, bin, args...).report(t)
	if !r.Complete || r.Mismatches != 0 || r.Corrupt != 0 || r.LoadErrors != 0 {
		t.Errorf("after the kills: %+v", r)
	}
	cufile := slices.ContainsFunc(r.Paths, func(p replay.PathReport) bool { return p.Path == stream.PathCuFile.String() && p.Bytes > 0 })
	if direct := slices.Contains(args, "--direct"); cufile != direct {
		t.Errorf("by cuFile: %t, want %t: %+v", cufile, direct, r.Paths)
	}
	if r.BlockAccesses != whole.BlockAccesses || r.DistinctBlocks != whole.DistinctBlocks {
		t.Errorf("the replay had %d accesses to %d blocks, want %d to %d", r.BlockAccesses, r.DistinctBlocks, whole.BlockAccesses, whole.DistinctBlocks)
	}
	verify := start(t, bin, "store", "verify", dir)
	if err := verify.Wait(); err != nil {
		t.Errorf("store verify: %v\n%s\n%s", err, &verify.stdout, &verify.stderr)
	}
	in, err := file.Inspect(t.Context(), dir)
	if err != nil || in.Temporary != 0 || in.Quarantined != 0 || in.Blocks != whole.DistinctBlocks {
		t.Errorf("the directory contains %+v, %v; want %d blocks and no other file", in, err, whole.DistinctBlocks)
	}
	for _, tr := range r.Tiers {
		swept += tr.Swept
	}
	return swept
}

// An interrupted replay stops in order and reports the requests that it has replayed.
func TestInterruptedReplayReports(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process is interrupted; not with -short")
	}
	bin := command(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		dir := t.TempDir()
		c := start(t, bin, "replay", conversation, "--device", "sim", "--json", "--file-dir", dir, "--cache-bytes", "16MiB")
		waitForBlocks(t, dir)
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		err := c.Wait()
		var r replay.Report
		if jerr := json.Unmarshal(c.stdout.Bytes(), &r); jerr != nil {
			t.Fatalf("%v: %v, %v in %q\n%s", sig, err, jerr, &c.stdout, &c.stderr)
		}
		if c.ProcessState.ExitCode() != exitFailure || r.Complete || r.BlockAccesses == 0 || !strings.Contains(c.stderr.String(), "replay stopped") {
			t.Errorf("%v: exit code %d, %d accesses, standard error %q", sig, c.ProcessState.ExitCode(), r.BlockAccesses, &c.stderr)
		}
		if v, err := file.Verify(t.Context(), dir, nil); err != nil || !v.Clean() || v.Blocks == 0 {
			t.Errorf("%v: the directory holds %+v, %v", sig, v, err)
		}
	}
}

// waitForBlocks waits until the directory contains a block.
func waitForBlocks(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience()); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if in, err := file.Inspect(t.Context(), dir); err == nil && in.Blocks > 0 {
			return
		}
	}
	t.Fatal("the replay stores no blocks")
}

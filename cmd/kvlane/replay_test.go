package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/replay"
)

const goodLine = `{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}` + "\n"

// traceFile writes a trace file and returns its name.
func traceFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// small appends flags that make a replay cheap.
func small(args ...string) []string {
	return append(args, "--device", "sim", "--cache-bytes", "1MiB")
}

// Programs read the fields of the JSON report, so their names are an interface.
func TestReplayJSON(t *testing.T) {
	code, stdout, stderr := execute(t, small("replay", traceFile(t, goodLine+goodLine), "--json")...)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, standard error %q", code, stderr)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	for name, want := range map[string]any{
		"requests": 2.0, "block_accesses": 4.0, "distinct_blocks": 2.0, "prefix_hits": 2.0, "mismatches": 0.0,
		"bytes_verified": 2.0 * 8192, "complete": true, "hit_rate": 0.5, "load_errors": 0.0, "dump_errors": 0.0,
	} {
		if r[name] != want {
			t.Errorf("%s is %v, want %v", name, r[name], want)
		}
	}
	if tiers, _ := r["hits_by_tier"].(map[string]any); tiers["cache"] != 2.0 {
		t.Errorf("hits_by_tier is %v", r["hits_by_tier"])
	}
	for _, name := range []string{"load_us", "dump_us"} {
		if us, _ := r[name].(map[string]any); us["p50"] == nil || us["p99"] == nil {
			t.Errorf("%s is %v", name, r[name])
		}
	}
	paths, _ := r["paths"].([]any)
	for _, p := range paths {
		if p, _ := p.(map[string]any); p["path"] == "" || p["bytes"] == nil || p["gbps"] == nil {
			t.Errorf("path %v", p)
		}
	}
	if seconds, _ := r["seconds"].(float64); len(paths) != 2 || seconds <= 0 {
		t.Errorf("%d paths, %v seconds", len(paths), r["seconds"])
	}
}

func TestReplayTable(t *testing.T) {
	args := small("replay", traceFile(t, goodLine+goodLine), "--layerwise", "--concurrency", "2", "--file-dir", t.TempDir(),
		"--preset", "llama-3.2-1b", "--tp", "8", "--progress", "--metrics-addr", "127.0.0.1:0", "--cache-bytes", "8MiB")
	code, stdout, stderr := execute(t, args...)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"✓ 2 requests in ", "requested, 2 of them distinct", "✓ all requests replayed", "✓ all dumped blocks stored", "dump  ", "p99", "GB/s", "cache  ", "file  ", "llama-3.2-1b: 16 layers, bfloat16, 8 KV heads of 64, rank 0 of 8", "block     64 KiB: 16 tokens", "In full: 8 MiB, 2 MiB per id"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in the table:\n%s", want, stdout)
		}
	}
	for _, want := range []string{"replay  50%", "http://127.0.0.1:"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not on standard error: %q", want, stderr)
		}
	}
}

// A missed threshold means exit code 1, and the report shows the actual value. An invalid threshold
// is wrong usage.
func TestReplayThresholds(t *testing.T) {
	args := small("replay", traceFile(t, goodLine+goodLine), "--threshold", "hit_rate>=0.5", "--threshold", "load_p99<1h")
	if code, stdout, stderr := execute(t, args...); code != exitOK || !strings.Contains(stdout, "\n  ✓ hit_rate>=0.5 (0.5)\n") {
		t.Errorf("met: exit code %d: %s\n%s", code, stderr, stdout)
	}
	args = append(args, "--threshold", "hit_rate>0.9")
	code, stdout, stderr := execute(t, args...)
	if code != exitFailure || !strings.HasPrefix(stdout, "✗ 2 requests") || !strings.Contains(stdout, "\n  ✗ hit_rate>0.9 (0.5)\n") || !strings.Contains(stderr, "threshold missed: hit_rate>0.9 (0.5)\n") {
		t.Errorf("missed: exit code %d: %s\n%s", code, stderr, stdout)
	}
	code, stdout, _ = execute(t, append(args, "--json")...)
	var r replay.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitFailure || len(r.Thresholds) != 3 || !r.Thresholds[0].Met || r.Thresholds[2].Met {
		t.Errorf("with --json: exit code %d, %v, %+v", code, err, r.Thresholds)
	}
	for _, text := range []string{"hit_rate", "luck>1", "load_p99<5", "lag_p99<1s"} {
		if code, stdout, stderr := execute(t, small("replay", traceFile(t, goodLine), "--threshold", text)...); code != exitUsage || stdout != "" || !strings.Contains(stderr, "--threshold: ") {
			t.Errorf("%s: exit code %d: %s", text, code, stderr)
		}
	}
}

// The JSON report names the machine, the time, the command and the version, as that of a benchmark
// does.
func TestReplayReportsItsMachine(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	code, stdout, stderr := execute(t, small("replay", traceFile(t, goodLine), "--json")...)
	var r replay.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	m := r.Machine
	if r.Device != m.Driver+": "+m.Device || !m.Simulated || m.CPUs == 0 || m.Date.Before(began) || m.Command != commandLine() || r.Version == "" {
		t.Errorf("%q, version %q, %+v", r.Device, r.Version, m)
	}
}

// With --speed a replay keeps the times of the trace, and reports how late requests were.
func TestReplayAtASpeed(t *testing.T) {
	trace := traceFile(t, goodLine+strings.Replace(goodLine, `"timestamp": 0`, `"timestamp": 400`, 1))
	start := time.Now()
	code, stdout, stderr := execute(t, small("replay", trace, "--speed", "4", "--threshold", "lag_p50<1h")...)
	if took := time.Since(start); code != exitOK || took < 100*time.Millisecond {
		t.Errorf("exit code %d after %v: %s", code, took, stderr)
	}
	if !strings.Contains(stdout, "at 4 times the speed of the trace") || !strings.Contains(stdout, "\n  lag  ") {
		t.Errorf("the report does not contain it:\n%s", stdout)
	}
	for _, speed := range []string{"-1", "NaN", "Inf"} {
		if code, _, stderr := execute(t, small("replay", trace, "--speed", speed)...); code != exitUsage || !strings.Contains(stderr, "--speed") {
			t.Errorf("--speed %s: exit code %d: %s", speed, code, stderr)
		}
	}
}

// A replay on the CPU has a single path, which verifies blocks of whole leaves during the copy. A
// second replay finds the blocks of the first.
func TestReplayOnTheHost(t *testing.T) {
	dir := t.TempDir()
	for run, tier := range []string{"", "file"} {
		code, stdout, stderr := execute(t, "replay", traceFile(t, goodLine), "--json", "--device", "host", "--cache-bytes", "4MiB", "--file-dir", dir,
			"--layers", "2", "--kv-heads", "1", "--head-size", "128")
		var r replay.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" {
			t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
		}
		if hits := int64(2 * run); r.PrefixHits != hits || r.VerifiedOnWay != hits || r.HitsByTier[tier] != hits || r.Mismatches != 0 || len(r.Notes) != 0 {
			t.Errorf("run %d: %+v", run, r)
		}
		for _, p := range r.Paths {
			if p.Path != "kernel" {
				t.Errorf("run %d: path %+v", run, p)
			}
		}
	}
}

// The report counts the blocks verified by the stream and by the CPU. The kernel path verifies
// blocks of whole leaves during the copy, unless --verify forbids it.
func TestReplayReportsHowBlocksWereVerified(t *testing.T) {
	for _, c := range []struct {
		verify, headSize string
		onWay, byCPU     int64
	}{{"device", "128", 2, 0}, {"device", "32", 0, 2}, {"always", "128", 2, 2}, {"fill", "128", 0, 0}} {
		args := small("replay", traceFile(t, goodLine+goodLine), "--json", "--layers", "2", "--kv-heads", "1", "--head-size", c.headSize, "--verify", c.verify, "--path", "kernel")
		code, stdout, stderr := execute(t, args...)
		var r replay.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" {
			t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
		}
		if r.VerifiedOnWay != c.onWay || r.VerifiedByCPU != c.byCPU || r.PrefixHits != 2 {
			t.Errorf("--verify %s, head size %s: of %d blocks, %d were verified on their way and %d by the CPU", c.verify, c.headSize, r.PrefixHits, r.VerifiedOnWay, r.VerifiedByCPU)
		}
		for _, p := range r.Paths {
			if (p.Summed == p.Bytes) != (c.onWay > 0 || c.verify == "fill" && p.Direction == "dump") {
				t.Errorf("--verify %s, head size %s: %+v", c.verify, c.headSize, p)
			}
		}
	}
}

// A replay refuses bad input before it creates files. The error names the fault and its place.
func TestReplayRefusesBadInput(t *testing.T) {
	good := traceFile(t, goodLine)
	line := func(text string) []string { return []string{"replay", traceFile(t, goodLine+text+"\n")} }
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string // parts of the message
	}{
		{"no trace", []string{"replay"}, exitUsage, []string{"accepts 1 arg(s), received 0"}},
		{"trace that is not there", []string{"replay", "no-such-file"}, exitFailure, []string{"no-such-file"}},
		{"empty trace", []string{"replay", traceFile(t, "")}, exitFailure, []string{"trace.jsonl: the trace is empty"}},
		{"not JSON", line("nonsense"), exitFailure, []string{"trace.jsonl:2: ", "not JSON"}},
		{"missing field", line(`{"timestamp":1,"input_length":2,"output_length":3}`), exitFailure, []string{"trace.jsonl:2: hash_ids is missing"}},
		{"negative length", line(`{"timestamp":1,"input_length":-2,"output_length":3,"hash_ids":[]}`), exitFailure, []string{"trace.jsonl:2: input_length is -2"}},
		{"negative id", line(`{"timestamp":1,"input_length":2,"output_length":3,"hash_ids":[4,-5]}`), exitFailure, []string{"trace.jsonl:2: hash_ids[1] is -5"}},
		{"request longer than the pages", []string{"replay", good, "--pages", "1"}, exitFailure, []string{"trace.jsonl:1: hash_ids has 2 blocks", "1 pages"}},
		{"geometry that does not divide", []string{"replay", good, "--kv-heads", "8", "--tp", "3"}, exitUsage, []string{"kv heads 8 do not divide by tensor-parallel size 3"}},
		{"unknown preset", []string{"replay", good, "--preset", "gpt-5"}, exitUsage, []string{"--preset", `"gpt-5"`, "llama-3.1-8b"}},
		{"everything wrong at once", []string{
			"replay", good, "--layers", "0", "--path", "teleport", "--pages", "-1", "--limit", "-1", "--concurrency", "0",
			"--verify", "never", "--fsync", "often", "--device", "tpu", "--file-bytes", "-1KiB",
		}, exitUsage, []string{"-1KiB"}},
		{"everything wrong at once but the syntax", []string{
			"replay", good, "--layers", "0", "--path", "teleport", "--pages", "-1", "--limit", "-1", "--concurrency", "0",
			"--verify", "never", "--fsync", "often", "--device", "tpu", "--cache-bytes", "1",
		}, exitUsage, []string{"layers 0", "teleport", "--pages -1: must", "--limit -1: must", "--concurrency 0: must", `"never"`, `"often"`, `"tpu"`, "cache of 1 bytes"}},
		{"device that does not exist", []string{"replay", good, "--device-index", "3"}, exitFailure, []string{"device 3"}},
		{"metrics address", []string{"replay", good, "--metrics-addr", "nowhere"}, exitUsage, []string{`--metrics-addr: "nowhere" is neither HOST:PORT nor unix:/PATH`}},
		{"metrics address of others", []string{"replay", good, "--metrics-addr", "192.0.2.1:1"}, exitFailure, []string{"192.0.2.1:1"}},
		{"presets and a trace", []string{"replay", good, "--list-presets"}, exitUsage, []string{"unknown command"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "blocks")
			args := append([]string{}, c.args...)
			if !slices.Contains(args, "--device") {
				args = append(args, "--device", "sim")
			}
			code, stdout, stderr := execute(t, append(args, "--file-dir", dir)...)
			if code != c.code || stdout != "" {
				t.Errorf("exit code %d, want %d; standard output %q", code, c.code, stdout)
			}
			for _, w := range c.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("%q is not in the message:\n%s", w, stderr)
				}
			}
			if c.code == exitUsage || strings.Contains(stderr, "trace") {
				if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) && !strings.Contains(stderr, "pages") {
					t.Errorf("the directory was made all the same: %v", err)
				}
			}
		})
	}
}

func TestReplayRefusesADirectoryOfOthers(t *testing.T) {
	dir, trace := t.TempDir(), traceFile(t, goodLine)
	if code, _, stderr := execute(t, small("replay", trace, "--file-dir", dir)...); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	code, _, stderr := execute(t, small("replay", trace, "--file-dir", dir, "--head-size", "128")...)
	if code != exitFailure || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "head size: expected 128, found 64") {
		t.Errorf("a directory of another identity: exit code %d: %s", code, stderr)
	}
	marker := filepath.Join(dir, "kvlane.json")
	text, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(marker, []byte(strings.NewReplacer(`"version": 1`, `"version": 99`, `"sum"`, `"its"`).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = execute(t, small("replay", trace, "--file-dir", dir)...)
	if code != exitFailure || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "version: expected 1 or 2, found 99") {
		t.Errorf("a directory of another version: exit code %d: %s", code, stderr)
	}
	if err := os.WriteFile(marker, text, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := execute(t, small("replay", trace, "--file-dir", dir)...)
	if code != exitOK || !strings.Contains(stdout, "from file  2 ") {
		t.Errorf("the refusals cost something: exit code %d\n%s", code, stdout)
	}
}

// executeOn runs a replay on a file system with injected faults.
func executeOn(t *testing.T, plan *fault.Plan, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newReplayCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(dirfs.With(t.Context(), faultfs.New(dirfs.OS(), plan, nil)))
	return out.String(), err
}

func TestReplayOnAFullOrReadOnlyDirectory(t *testing.T) {
	for _, c := range []struct {
		name  string
		errno unix.Errno
		want  string
	}{{"full", unix.ENOSPC, "no space left"}, {"read-only", unix.EROFS, "read-only"}} {
		t.Run(c.name, func(t *testing.T) {
			dir, trace := t.TempDir(), traceFile(t, goodLine+goodLine)
			if code, _, stderr := execute(t, small("replay", trace, "--limit", "1", "--file-dir", dir)...); code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			more := traceFile(t, goodLine+strings.Replace(goodLine, "[0, 1]", "[0, 1, 2]", 1))
			plan := fault.New(1, fault.After("write", 0).Fail(c.errno))
			stdout, err := executeOn(t, plan, small(more, "--file-dir", dir)...)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) || !errors.Is(err, c.errno) {
				t.Errorf("got %v, want %q with the directory", err, c.want)
			}
			if !strings.Contains(stdout, "✓ no wrong byte in ") || !strings.Contains(stdout, "1 block not stored") {
				t.Errorf("the report does not contain the fault:\n%s", stdout)
			}
			code, stdout, _ := execute(t, "store", "verify", dir)
			if code != exitOK || !strings.Contains(stdout, "blocks              2,") {
				t.Errorf("the earlier blocks are missing or damaged: exit code %d\n%s", code, stdout)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "1.5GiB": 3 << 29, "2GB": 2e9, "8g": 8 << 30, " 12 MiB ": 12 << 20, "7b": 7, "1TiB": 1 << 40,
		"6.4e7": 64e6, "64000000.0": 64e6, "9007199254740993": 1<<53 + 1,
	} {
		var n int64
		if err := (sizeValue{&n}).Set(text); err != nil || n != want {
			t.Errorf("%q is %d (%v), want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "1x", "1e30", "NaN", "Inf", "12 34"} {
		n := int64(5)
		if err := (sizeValue{&n}).Set(text); err == nil || n != 5 {
			t.Errorf("%q was taken for %d", text, n)
		}
	}
	for n, want := range map[int64]string{0: "0", 1000: "1000B", 4096: "4KiB", 3 << 29: "1536MiB", 1 << 40: "1TiB"} {
		if got := (sizeValue{&n}).String(); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

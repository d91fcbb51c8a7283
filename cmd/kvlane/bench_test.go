package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/testkit"
)

// tinyBench returns the arguments of a copy benchmark that takes a few milliseconds.
func tinyBench(more ...string) []string {
	return append([]string{
		"bench", "copy", "--device", "sim", "--bytes", "64KiB", "--pool", "256KiB", "--large", "128KiB", "--sizes", "4KiB,16KiB", "--reps", "2",
		"--paths", "kernel,auto,one-copy-each", "--host", "scattered", "--directions", "h2d,d2h",
	}, more...)
}

func TestBenchFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"direction":           {[]string{"--directions", "up"}, exitUsage, `"up"`},
		"host side":           {[]string{"--host", "sorted"}, exitUsage, `"sorted"`},
		"path of files":       {[]string{"--paths", "posix"}, exitUsage, `"posix"`},
		"limit without a run": {[]string{"--fail-above", "10%"}, exitUsage, "--fail-above has no effect without --compare FILE"},
		"noise":               {[]string{"--compare", "/nonexistent", "--noise", "loud"}, exitUsage, `"loud"`},
		"count":               {[]string{"--counts", "0"}, exitUsage, "0 blocks"},
		"earlier run":         {[]string{"--compare", "/nonexistent"}, exitFailure, "--compare"},
		"checksums of lists":  {[]string{"--sums", "--lists"}, exitUsage, "omit --lists"},
		"peer on a simulator": {[]string{"--peer-index", "1"}, exitFailure, "--peer-index"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, stderr := execute(t, tinyBench(c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, want %d; standard error %q, want %q", code, c.code, stderr, c.want)
			}
		})
	}
}

// A value that a list repeats is measured once, even if it is written differently.
func TestDefectRepeatedValueIsMeasuredTwice(t *testing.T) {
	testkit.SkipRace(t, "the benchmark's own package runs it")
	fromCache := func(more ...string) []string {
		return tinyFile(t.TempDir(), append(more, "--from", "page-cache", "--work", "read", "--order", "sequential")...)
	}
	for _, c := range []struct {
		once, twice []string
	}{
		{fromCache(), fromCache("--sizes", "4096")},
		{tinyStore("--work", "load", "--forms", "whole"), tinyStore("--blocks", "2,1,2", "--requests", "1", "--work", "load,load", "--forms", "whole,whole")},
	} {
		var points [2]struct {
			Points []json.RawMessage `json:"points"`
		}
		for i, args := range [][]string{c.once, c.twice} {
			code, stdout, stderr := executeWhole(t, append(args, "--json")...)
			if err := json.Unmarshal([]byte(stdout), &points[i]); code != exitOK || err != nil {
				t.Fatalf("%v: exit code %d, %v: %s", args, code, err, stderr)
			}
		}
		if once, twice := len(points[0].Points), len(points[1].Points); once == 0 || twice != once {
			t.Errorf("%v: %d points, want %d", c.twice, twice, once)
		}
	}
}

func TestPercent(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "10%": 0.1, "0.25": 0.25, " 3 %": -1, "-1%": -1, "NaN": -1, "x": -1} {
		if got, err := parsePercent(text); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestBenchWritesAndCompares(t *testing.T) {
	testkit.SkipRace(t, "the benchmark's own package runs it")
	dir := t.TempDir()
	file := filepath.Join(dir, "run.json")
	code, stdout, stderr := execute(t, tinyBench("--without", "staged", "--without", "kernel", "--out", file)...)
	if code != exitOK || !strings.Contains(stdout, "Every byte correct") {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(b, &r); err != nil || len(r.Points) != 3*2*2 || r.Setup.Planner == "" || strings.Join(r.Setup.Without, " ") != "staged kernel" {
		t.Fatalf("report %+v, %v", r, err)
	}

	for _, p := range r.Points {
		if p.Path == bench.Auto && (p.Traveled == "staged" || p.Traveled == "kernel") {
			t.Errorf("auto did without %v and traveled by %s", r.Setup.Without, p.Traveled)
		}
	}

	// A comparison with the same run finds no change. Compared with a run that was twice as fast,
	// everything is slower.
	show := []string{"bench", "copy", "--from", file, "--compare", file, "--fail-above", "1%"}
	if code, _, stderr := execute(t, "bench", "copy", "--from", "/nonexistent"); code != exitFailure || !strings.Contains(stderr, "--from") {
		t.Errorf("a missing run: exit code %d: %s", code, stderr)
	}
	if code, stdout, _ := execute(t, show...); code != exitOK || !strings.Contains(stdout, "of 12 points 0 slower, 0 faster") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	less := r
	less.Points = r.Points[:5]
	fewer := filepath.Join(dir, "fewer.json")
	if err := writeFile(fewer, &less); err != nil {
		t.Fatal(err)
	}
	const unjudged = "7 of 12 points of the earlier run were not measured, so not compared\n"
	if code, stdout, stderr := execute(t, "bench", "copy", "--from", fewer, "--compare", file, "--fail-above", "1%"); code != exitOK || stderr != file+": "+unjudged || !strings.Contains(stdout, "! "+unjudged) {
		t.Errorf("fewer points: exit code %d, %s:\n%s", code, stderr, stdout)
	}
	if code, _, stderr := execute(t, "bench", "copy", "--from", fewer, "--compare", file, "--json"); code != exitOK || strings.Count(stderr, unjudged) != 1 {
		t.Errorf("fewer points, aside: exit code %d, %s", code, stderr)
	}
	for i := range r.Points {
		p := &r.Points[i]
		p.GBps, p.LowGBps, p.HighGBps = 100*p.GBps, 100*p.GBps, 100*p.GBps
	}
	faster := filepath.Join(dir, "faster.json")
	if err := writeFile(faster, &r); err != nil {
		t.Fatal(err)
	}
	show[slices.Index(show, "--compare")+1] = faster
	if code, _, stderr := execute(t, show...); code != exitFailure || !strings.Contains(stderr, "points are more than 1% slower") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// An output file that cannot be written is detected before the first measurement, and its old
// content is kept.
func TestDefectOutputIsFoundOutAfterTheRun(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept.json")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"copy": tinyBench("--reps", "1000000"), "store": tinyStore("--budget", "1h"), "file": tinyFile(dir, "--budget", "1h"),
		"transfer": {"bench", "transfer", "--segment", "127.0.0.1:1", "--duration", "1h"},
	} {
		for _, c := range [][]string{{"--out", "/nonexistent/x"}, {"--out", dir}} {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
			defer cancel()
			var stdout, stderr bytes.Buffer
			code := run(ctx, append(args[:len(args):len(args)], c...), &stdout, &stderr)
			if code != exitFailure || stdout.Len() > 0 || ctx.Err() != nil || !strings.HasPrefix(stderr.String(), "kvlane: write ") {
				t.Fatalf("%s %v: exit code %d, %v: %s", name, c, code, ctx.Err(), stderr.String()) // stop at the first failure, because such a run takes long
			}
		}
	}
	fresh := filepath.Join(dir, "fresh.json")
	if err := checkOutput(fresh); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fresh); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file exists before the report is complete: %v", err)
	}
	if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
		t.Errorf("an earlier report is %q, %v", b, err)
	}
}

// The runs in docs/runs are compressed.
func TestBenchReadsCommittedRuns(t *testing.T) {
	testkit.SkipRace(t, "one goroutine reads them")
	const run, again = "../../docs/runs/latency-h100-U1.json.gz", "../../docs/runs/latency-h100-U2.json.gz"
	if code, stdout, stderr := execute(t, "bench", "copy", "--from", run, "--compare", again); code != exitOK || !strings.Contains(stdout, "of 30 points ") {
		t.Errorf("exit code %d, %s:\n%s", code, stderr, stdout)
	}
	stores, err := filepath.Glob("../../docs/runs/store-*.json.gz")
	if err != nil || len(stores) == 0 {
		t.Fatalf("%q, %v", stores, err)
	}
	for _, file := range stores {
		if code, _, stderr := execute(t, tinyStore("--work", "load", "--compare", file)...); code != exitOK {
			t.Errorf("%s: exit code %d, %s", file, code, stderr)
		}
	}
	broken := filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(broken, []byte("\x1f\x8b is no gzip at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := execute(t, "bench", "copy", "--from", broken); code != exitFailure || !strings.Contains(stderr, "--from "+broken+": gzip") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// The error of --without names exactly the paths that the flag accepts.
func TestDefectWithoutOffersOtherPaths(t *testing.T) {
	for _, path := range []string{"nope", "posix", "nic", "none"} {
		want := fmt.Sprintf("--without: unknown path %q: must be one of copy-engine, kernel, staged\nSee", path)
		if code, _, stderr := execute(t, tinyBench("--without", path)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	}
}

// An interrupted benchmark prints the results so far, and its error reports only the interrupt.
func TestDefectInterruptedBenchPrintsNothing(t *testing.T) {
	testkit.SkipRace(t, "the benchmarks' own tests interrupt them too")
	out := filepath.Join(t.TempDir(), "run.json")
	p := interruptible(t, "bench", "transfer", "--mode", "target", "--protocol", "auto", "--name", "127.0.0.1:0", "--buffer-size", "1MiB")
	target, _, _ := strings.Cut(p.word(t, "segment "), ": ")
	for name, args := range map[string][]string{
		"copy":     tinyBench("--reps", "3000", "--sizes", "256,512,1KiB,2KiB,4KiB,8KiB", "--out", out, "--compare", "../../docs/runs/copy-h200-W.json.gz"),
		"file":     tinyFile(t.TempDir(), "--budget", "1m", "--sizes", "4KiB,8KiB,16KiB,32KiB,64KiB"),
		"store":    tinyStore("--budget", "1m", "--blocks", "1,2,3,4,5,6,7,8", "--work", "load"),
		"transfer": {"bench", "transfer", "--segment", target, "--protocol", "auto", "--buffer-size", "1MiB", "--block-size", "4KiB", "--batch-size", "1,2,4,8,16,32,64,128", "--threads", "1", "--duration", "500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			for wait := 250 * time.Millisecond; ; wait *= 2 { // until the benchmark has measured something
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(wait, cancel)
				var stdout, stderr bytes.Buffer
				code := run(ctx, args, &stdout, &stderr)
				cancel()
				if strings.Contains(stderr.String(), "refuses O_DIRECT") {
					testkit.Skip(t, "direct-io", stderr.String())
				}
				lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n") // notices may precede the last line
				if code != exitFailure || !strings.HasPrefix(lines[len(lines)-1], "kvlane: interrupted: ") || wait > testkit.Patience()/4 {
					t.Fatalf("after %v: exit code %d, %s:\n%s", wait, code, stderr.String(), stdout.String())
				}
				if strings.HasPrefix(stdout.String(), "✗ INCOMPLETE: interrupted") {
					break
				}
			}
		})
	}
	if r, err := readReport(t.Context(), "--from", out); err != nil || r.Incomplete != bench.Interrupted || len(r.Points) == 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// If a directory has another geometry, the error names that geometry, and the flags that it
// suggests open the directory.
func TestDefectErrorNamesTheStoredGeometry(t *testing.T) {
	testkit.SkipRace(t, "other tests replay with files and logs")
	trace := traceFile(t, goodLine)
	for name, c := range map[string]struct {
		made, given string // flags
		want        string
		give        string // the suggested flags; "": none
	}{
		"another split":        {"--kv-heads 4 --tp 1", "--kv-heads 4 --tp 2", `model "small", bfloat16, 2 layers, KV heads 0 to 3 of 64 elements, 16 tokens a block`, "--tp=1"},
		"another rank":         {"--kv-heads 4 --tp 2 --tp-rank 1", "--kv-heads 4 --tp 2", "KV heads 2 to 3 of 64", "--tp-rank=1"},
		"split, rank and type": {"--kv-heads 4 --tp 4 --tp-rank 3 --dtype fp8", "--kv-heads 4 --tp 2", "fp8_e4m3, 2 layers, KV heads 3 to 3", "--dtype=fp8_e4m3 --tp=4 --tp-rank=3"},
		"other numbers":        {"--layers 3 --head-size 128 --block-tokens 32", "", "3 layers, KV heads 0 to 0 of 128 elements, 32 tokens", "--layers=3 --head-size=128 --block-tokens=32"},
		"other heads":          {"--kv-heads 3", "--kv-heads 2", "KV heads 0 to 2", "--kv-heads=3"},
		"ranks of one head":    {"--kv-heads 2 --tp 2", "--kv-heads 2", "KV heads 0 to 0", "--tp=2"},
		"heads and split":      {"--kv-heads 8 --tp 4 --tp-rank 1", "--kv-heads 2", "KV heads 2 to 3", "--kv-heads=8 --tp=4 --tp-rank=1"},
		"latents":              {"--mla", "", "KV heads 0 to 0", "--mla=true"},
		"another model":        {"", "--preset llama-3.1-8b", `model "small"`, ""},
	} {
		for _, dir := range []string{"--file-dir", "--log-dir"} {
			args := func(flags string) []string {
				return append([]string{"replay", trace, "--device", "sim", "--cache-bytes", "16MiB"}, strings.Fields(flags)...)
			}
			at := filepath.Join(t.TempDir(), "blocks")
			if code, _, stderr := execute(t, append(args(c.made), dir, at)...); code != exitOK {
				t.Fatalf("%s: exit code %d: %s", name, code, stderr)
			}
			code, _, stderr := execute(t, append(args(c.given), dir, at)...)
			if code != exitFailure || !strings.Contains(stderr, c.want) {
				t.Errorf("%s, %s: exit code %d, want %q:\n%s", name, dir, code, c.want, stderr)
			}
			_, give, _ := strings.Cut(stderr, "tokens a block: give ")
			if give, _, _ = strings.Cut(give, " for that"); give != c.give {
				t.Errorf("%s, %s: it suggests %q, want %q", name, dir, give, c.give)
			}
			if c.give == "" {
				continue
			}
			if code, _, stderr := execute(t, append(args(c.given+" "+give), dir, at)...); code != exitOK {
				t.Errorf("%s, %s: with %s exit code %d: %s", name, dir, give, code, stderr)
			}
		}
	}
}

// Short names of data types select the same blocks as the full names.
func TestDTypeFlagTakesShortNames(t *testing.T) {
	trace, dir := traceFile(t, goodLine), filepath.Join(t.TempDir(), "blocks")
	for _, dtype := range []string{"float16", "fp16", "half"} {
		if code, _, stderr := execute(t, "replay", trace, "--device", "sim", "--cache-bytes", "4MiB", "--file-dir", dir, "--dtype", dtype); code != exitOK {
			t.Errorf("--dtype %s: exit code %d: %s", dtype, code, stderr)
		}
	}
	if code, _, stderr := execute(t, "replay", trace, "--device", "sim", "--dtype", "bf17"); code != exitUsage || !strings.Contains(stderr, "bfloat16 (bf16)") {
		t.Errorf("--dtype bf17: exit code %d: %s", code, stderr)
	}
	if got := flagsOfStored(smallGeometry, block.Identity{}); got != "" {
		t.Errorf("an identity of nothing has flags %q", got)
	}
}

func TestPresetsAreListed(t *testing.T) {
	code, stdout, stderr := execute(t, "replay", "--list-presets")
	if code != exitOK || !strings.Contains(stdout, "\n  llama-3.1-8b          32         8        128  bfloat16  no       16    2 MiB\n") {
		t.Errorf("exit code %d: %s\n%s", code, stderr, stdout)
	}
	presenttest.Fits(t, stdout, 80)
}

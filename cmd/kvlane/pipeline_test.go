package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
)

// A replay has the same number of hits with every pipeline, whether blocks stay in the cache or
// only pass through memory.
func TestReplayHitsTheSameThroughEveryPipeline(t *testing.T) {
	var want int64
	limit := "50"
	if testkit.Race {
		limit = "20"
	}
	for _, args := range [][]string{
		{"--pipeline", "cache", "--cache-bytes", "128MiB"},
		{"--pipeline", "cache|file", "--cache-bytes", "1MiB"},
		{"--pipeline", "file"},
		{"--pipeline", "file", "--cache-bytes", "1MiB", "--kv-heads", "2", "--layerwise"},
		{"--pipeline", "file", "--kv-heads", "2", "--verify", "always"},
		{"--pipeline", "cache|log", "--cache-bytes", "1MiB"},
		{"--pipeline", "log"},
		{"--pipeline", "log", "--cache-bytes", "1MiB", "--kv-heads", "2", "--layerwise"},
		{"--pipeline", "cache|file|log", "--cache-bytes", "1MiB"},
		{"--pipeline", "cache|log|file", "--cache-bytes", "1MiB", "--kv-heads", "2", "--layerwise"},
		{"--pipeline", "file|log"},
		{"--pipeline", "cache|remote", "--cache-bytes", "1MiB"},
		{"--pipeline", "cache|remote", "--cache-bytes", "1MiB", "--kv-heads", "2", "--layerwise"},
		{"--pipeline", "cache|file|remote", "--cache-bytes", "1MiB"},
		{"--pipeline", "remote"},
	} {
		pipeline := args[1]
		args = append([]string{"replay", conversation, "--device", "sim", "--json", "--log-level", "error", "--limit", limit}, args...)
		for _, tier := range []string{"file", "log"} {
			if strings.Contains(pipeline, tier) {
				args = append(args, "--"+tier+"-dir", t.TempDir())
			}
		}
		if strings.Contains(pipeline, "remote") {
			one, two := newRemoteServer(t), newRemoteServer(t)
			args = append(args, "--remote", one.addr+"=2,"+two.addr)
		}
		code, stdout, stderr := execute(t, args...)
		var r replay.Report
		if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
			t.Fatalf("%q: exit code %d, %v, standard error %q", args, code, err, stderr)
		}
		if want == 0 {
			want = r.PrefixHits
		}
		if r.PrefixHits != want || want == 0 || r.Mismatches+r.LoadErrors+r.DumpErrors != 0 {
			t.Errorf("%q: %d hits, want %d; %d mismatches, %d load errors, %d dump errors", args, r.PrefixHits, want, r.Mismatches, r.LoadErrors, r.DumpErrors)
		}
		if _, cached := r.HitsByTier["cache"]; cached && !strings.HasPrefix(pipeline, "cache") {
			t.Errorf("%q: hits by tier are %v", args, r.HitsByTier)
		}
	}
}

// Every tier can be given by flags and by a file, and is completed.
func TestEveryTierIsAccepted(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	trace := traceFile(t, goodLine)
	for _, row := range settings.DurableTiers() {
		place, value := row.Place(), "127.0.0.1:1"
		if place.IsDir() {
			value = filepath.Join(t.TempDir(), row.Name)
		} else if row.Name == "object" {
			value = "s3://bucket"
		}
		file := configText(t, place.Name+": "+value+"\n")
		for _, args := range [][]string{{"--pipeline", "cache|" + row.Name, "--" + place.Name, value}, {"--config", file}} {
			if code, _, stderr := execute(t, append([]string{"replay", trace, "--device", "sim", "--cache-bytes", "4MiB"}, args...)...); code != exitOK {
				t.Errorf("%v: exit code %d: %s", args, code, stderr)
			}
		}
		if got, want := shown(t, place.Name, "--config", file, "replay"), value+" "+file+":1"; got != want {
			t.Errorf("%s is %q, want %q", place.Name, got, want)
		}
		if !slices.Contains(pipelines(), "cache|"+row.Name) {
			t.Errorf("the completion lacks %s", row.Name)
		}
	}
}

func TestPipelineThatCannotBeIsRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"dirs is not given":       {"--pipeline", "file"},
		"has a log tier, but":     {"--pipeline", "cache|log"},
		"has no file tier":        {"--pipeline", "cache", "--file-dir", t.TempDir()},
		"has a remote tier, but":  {"--pipeline", "cache|remote"},
		"has no remote tier":      {"--pipeline", "cache", "--remote", "127.0.0.1:1"},
		"is not HOST:PORT":        {"--remote", "nowhere"},
		"has a object tier, but":  {"--pipeline", "cache|object"},
		"has no object tier":      {"--pipeline", "cache", "--object", "s3://bucket"},
		"is not s3://":            {"--object", "nowhere"},
		"has no log tier":         {"--pipeline", "cache", "--log-dir", t.TempDir()},
		"known tiers":             {"--pipeline", "tape"},
		"must be the first":       {"--pipeline", "file|cache", "--file-dir", t.TempDir()},
		"has no effect without":   {"--file-dir-bytes", "1MiB"},
		"bounds of 2 directories": {"--file-dir", t.TempDir(), "--file-dir-bytes", "1MiB", "--file-dir-bytes", "0"},
		"is not a size":           {"--file-dir", t.TempDir(), "--file-dir-bytes", "much"},
	} {
		code, _, stderr := execute(t, append([]string{"replay", conversation, "--device", "sim"}, args...)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, standard error %q, want one that contains %q", args, code, stderr, want)
		}
	}
}

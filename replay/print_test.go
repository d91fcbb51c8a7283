package replay

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present/presenttest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// served returns a report without any fault.
func served() *Report {
	g, err := block.PresetByName("llama-3.1-8b")
	if err != nil {
		panic(err)
	}
	g.TPSize = 8
	r := &Report{
		Trace: "conversation.jsonl", Device: "cuda: NVIDIA H100 80GB HBM3", Complete: true, Seconds: 82.04, Requests: 12031, BlockAccesses: 288500,
		DistinctBlocks: 182790, PrefixHits: 105710, HitRate: 105710. / 288500, HitsByTier: map[string]int64{"file": 26591, "cache": 79119},
		DumpedBlocks: 182789, SkippedBlocks: 1, VerifiedOnWay: 105710, BytesVerified: 105710 << 18,
		Paths: []PathReport{
			{Path: "kernel", Direction: "load", Bytes: 105710 << 18, Summed: 105710 << 18, GBps: 51.25, Predicted: 1.02, Reason: "planned: the lowest predicted time"},
			{Path: "copy-engine", Direction: "dump", Bytes: 182789 << 18, GBps: 49.5, Predicted: 0.5, Reason: "planned: the lowest sum of its time and, weighted, of what it takes from work beside it"},
			{Path: "staged", Direction: "dump", Bytes: 4096, GBps: 0.361, Reason: "planned: the lowest predicted time"},
		},
		LoadUS: Latency{84, 22431}, DumpUS: Latency{145, 1614}, DurableUS: Latency{219, 1999999}, LagUS: Latency{1, 84000000},
		Tiers: []TierReport{
			{Name: "cache", Blocks: 4095, Bytes: 1<<30 - 8192, CapacityBytes: 1<<30 - 8192, ReadBytes: 79119 << 18, WrittenBytes: 209380 << 18, Evictions: 178694},
			{Name: "file", Blocks: 182789, Bytes: 182789 * 270336, ReadBytes: 26591 << 18, WrittenBytes: 182789 << 18, Swept: 3},
		},
		Asked: Asked{Concurrency: 8, Layerwise: true, Speed: 100, Geometry: g, BlockBytes: 1 << 18, IDTokens: 512},
	}
	t, err := ParseThreshold("load_p99 < 50ms")
	if err != nil {
		panic(err)
	}
	if err := r.Judge([]Threshold{t}); err != nil {
		panic(err)
	}
	return r
}

// troubled returns a report with every kind of fault.
func troubled() *Report {
	r := &Report{
		Trace: "t.jsonl", Device: "sim: d", Notes: []string{"2 times a copy path was given up since the device refused what it needs, or a NIC failed; the latest: no memory"},
		Seconds: 2, Requests: 1, BlockAccesses: 1000, PrefixHits: 250, HitRate: 0.25, HitsByTier: map[string]int64{"cache": 250}, BytesVerified: 3 << 29,
		Mismatches: 1, MismatchedBytes: 1, Corrupt: 2, LoadErrors: 3, BadCopies: 4, DumpErrors: 5, DurableErrors: 1, PathsGivenUp: 2,
		Tiers:           []TierReport{{Name: "cache", Blocks: 7, Corrupt: 2, Errors: 5}},
		MismatchSamples: []Mismatch{{Line: 9, HashID: 4, Key: "ab", Tier: "file", Page: 3, Layer: 2, Part: "v", Offset: 17, WrongBytes: 1}},
		ErrorSamples:    []string{"a cause"},
		Asked:           Asked{Limit: 10, Concurrency: 1, Geometry: block.Geometry{Model: "small", DType: "bfloat16", Layers: 1, KVHeads: 1, HeadSize: 576, BlockTokens: 64, TPSize: 1, MLA: true}, BlockBytes: 12345},
	}
	t, err := ParseThreshold("hit_rate>=0.3")
	if err != nil {
		panic(err)
	}
	if err := r.Judge([]Threshold{t}); !errors.Is(err, ErrThreshold) {
		panic(err)
	}
	return r
}

func TestReportForPeople(t *testing.T) {
	presenttest.Check(t, "served", *rewrite, served().Print)
	presenttest.Check(t, "troubled", *rewrite, troubled().Print)
	many, reported := troubled(), new(strings.Builder)
	many.ErrorSamples = nil
	for range 1234 {
		many.sample(errors.New("one cause"))
	}
	if err := many.Print(reported); err != nil || strings.Count(reported.String(), "failure: one cause\n") != 5 || !strings.Contains(reported.String(), "and 1,229 more\n") || len(many.ErrorSamples) != mostSamples {
		t.Errorf("many failures: %v, %d samples:\n%s", err, len(many.ErrorSamples), reported)
	}
	full := errors.New("disk full")
	if err := served().Print(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// The report compares the number of replayed tokens with that of the trace.
func TestVolume(t *testing.T) {
	for _, c := range []struct {
		idTokens int64
		tokens   int
		want     string
	}{
		{512, 16, "1/32 of the volume"}, {512, 512, "as many tokens as a block"}, {16, 64, "4 times the volume"}, {0, 16, "no fixed number"}, {512, 384, "1/1.333 of"},
	} {
		r := Report{BlockAccesses: 10, Asked: Asked{BlockBytes: 1 << 20, IDTokens: c.idTokens, Geometry: block.Geometry{BlockTokens: c.tokens}}}
		if got := r.volume(); !strings.HasPrefix(got, "10 MiB of requested blocks. ") || !strings.Contains(got, c.want) {
			t.Errorf("ids of %d tokens, blocks of %d: %q", c.idTokens, c.tokens, got)
		}
	}
	if got := served().volume(); !strings.Contains(got, "In full: 2.2 TiB, 8 MiB per id.") {
		t.Error(got)
	}
}

func TestIDTokens(t *testing.T) {
	for name, c := range map[string]struct {
		lines [][2]int64 // tokens and ids
		want  int64
	}{
		"none":                {nil, 0},
		"Mooncake's":          {[][2]int64{{1024, 2}, {513, 2}, {1, 1}, {5000, 10}}, 512},
		"too wide to tell":    {[][2]int64{{700, 2}}, 512},
		"others":              {[][2]int64{{160, 10}, {161, 11}}, 16},
		"contradict":          {[][2]int64{{160, 10}, {1024, 2}}, 0},
		"ids without a token": {[][2]int64{{0, 2}}, 0},
		"no ids":              {[][2]int64{{1024, 2}, {50, 0}}, 512},
	} {
		var s Summary
		for _, l := range c.lines {
			s.narrow(l[0], l[1])
		}
		if got := s.IDTokens(); got != c.want {
			t.Errorf("%s: %d tokens an id, want %d", name, got, c.want)
		}
	}
	s, err := Scan(t.Context(), wholeTrace, 0)
	if err != nil || s.IDTokens() != 512 {
		t.Errorf("the conversation trace has %d tokens an id, %v", s.IDTokens(), err)
	}
}

package replay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// skipLong skips a slow test with -short and under the race detector.
func skipLong(t *testing.T) {
	t.Helper()
	if testing.Short() || testkit.Race {
		testkit.Skip(t, "trace", "the whole trace is replayed neither with -short nor under the race detector")
	}
}

// writeTrace writes a trace with one request for each list of hash ids.
func writeTrace(tb testing.TB, requests ...[]int64) string {
	tb.Helper()
	var b strings.Builder
	for i, ids := range requests {
		list := strings.ReplaceAll(strings.Trim(fmt.Sprint(ids), "[]"), " ", ",")
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":1,"hash_ids":[%s]}`+"\n", i, len(ids)*512, list)
	}
	path := filepath.Join(tb.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func (r *rig) config(g block.Geometry, trace string) Config {
	return Config{Device: r.dev, Store: r.store, Geometry: g, Identity: g.Identity("", ""), Trace: trace}
}

func TestReplayCountsPrefixHits(t *testing.T) {
	trace := writeTrace(t, []int64{1, 2, 3}, []int64{1, 2, 4}, []int64{}, []int64{9, 2, 3}, []int64{1, 2, 3})
	for _, g := range []block.Geometry{latent, layered} {
		for _, layerwise := range []bool{false, true} {
			t.Run(fmt.Sprintf("layers=%d/layerwise=%t", g.Layers, layerwise), func(t *testing.T) {
				r := newRig(t, rigOptions{geometry: g, slots: 16})
				c := r.config(g, trace)
				c.Layerwise = layerwise
				rep, err := Run(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				blockBytes := g.PlaneBytes() * int64(g.PlanesPerLayer()*g.Layers)
				for _, n := range []struct {
					name      string
					got, want int64
				}{
					{"requests", rep.Requests, 5},
					{"block accesses", rep.BlockAccesses, 12},
					{"distinct blocks", rep.DistinctBlocks, 5},
					// [1,2] and [1,2,3]. Blocks 2 and 3 after 9 are stored, but are not part of a
					// prefix.
					{"prefix hits", rep.PrefixHits, 5},
					{"hits of the cache", rep.HitsByTier["cache"], 5},
					{"dumped", rep.DumpedBlocks, 5},
					{"skipped", rep.SkippedBlocks, 2},
					{"bytes verified", rep.BytesVerified, 5 * blockBytes},
					{"mismatches", rep.Mismatches, 0},
					{"load errors", rep.LoadErrors, 0},
				} {
					if n.got != n.want {
						t.Errorf("%s: got %d, want %d", n.name, n.got, n.want)
					}
				}
				if !rep.Complete || rep.LoadUS.P50 <= 0 || rep.DumpUS.P99 < rep.DumpUS.P50 || len(rep.Paths) < 2 {
					t.Errorf("report is incomplete: %+v", rep)
				}
			})
		}
	}
}

// someTrace is the number of requests that are replayed unless testkit.RequireEnv lists
// "whole-trace".
const someTrace = 1200

// figures are the totals of a trace's first requests, which do not depend on the tiers if requests
// run one at a time.
type figures struct{ accesses, distinct, hits int64 }

// long returns a limit of requests and the expected figures.
func long(t *testing.T) (limit int, f figures) {
	t.Helper()
	skipLong(t)
	if testkit.Required("whole-trace") {
		return 0, figures{288500, 182790, 105710}
	}
	return someTrace, count(t, someTrace)
}

// count simulates a store without a bound: the hits of a request are the blocks of its longest
// prefix that earlier requests used.
func count(t *testing.T, limit int) (f figures) {
	t.Helper()
	file, err := os.Open(wholeTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tr, err := NewTraceReader(wholeTrace, file)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int64]bool)
	for range limit {
		var req Request
		if err := tr.Next(&req); err != nil {
			t.Fatal(err)
		}
		prefix := true
		for _, id := range req.HashIDs {
			if prefix = prefix && seen[id]; prefix {
				f.hits++
			}
			seen[id] = true
		}
		f.accesses += int64(len(req.HashIDs))
	}
	f.distinct = int64(len(seen))
	return f
}

// whole compares the figures of a replay with the expected ones.
func whole(t *testing.T, rep *Report, want figures) {
	t.Helper()
	if got := (figures{rep.BlockAccesses, rep.DistinctBlocks, rep.PrefixHits}); got != want || want.hits == 0 {
		t.Errorf("accesses, distinct blocks and prefix hits are %+v, want %+v", got, want)
	}
	if rep.DumpedBlocks != want.distinct || rep.SkippedBlocks != 0 {
		t.Errorf("%d blocks dumped and %d skipped; want %d and none", rep.DumpedBlocks, rep.SkippedBlocks, want.distinct)
	}
	if want := want.hits * 4096; rep.BytesVerified != want || rep.Mismatches != 0 {
		t.Errorf("%d bytes verified, %d mismatches; want %d and none", rep.BytesVerified, rep.Mismatches, want)
	}
	var hits int64
	for _, n := range rep.HitsByTier {
		hits += n
	}
	if hits != rep.PrefixHits || rep.LoadErrors+rep.DumpErrors+rep.DurableErrors+rep.Corrupt != 0 {
		t.Errorf("hits by tier %v, failures: %v", rep.HitsByTier, rep.ErrorSamples)
	}
}

func TestWholeTrace(t *testing.T) {
	limit, want := long(t)
	r := newRig(t, rigOptions{geometry: latent, slots: want.distinct})
	c := r.config(latent, wholeTrace)
	c.Limit = limit
	rep, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	whole(t, rep, want)
}

func TestWholeTraceWithATenthInTheCache(t *testing.T) {
	limit, want := long(t)
	r := newRig(t, rigOptions{geometry: latent, slots: want.distinct / 10, dir: t.TempDir()})
	c := r.config(latent, wholeTrace)
	c.Limit = limit
	rep, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	whole(t, rep, want)
	if rep.HitsByTier["file"] == 0 || rep.HitsByTier["cache"] == 0 {
		t.Errorf("hits by tier: %v; want some from each", rep.HitsByTier)
	}
}

// Concurrent requests may both compute a block that the second of two sequential requests would
// have found. The figures differ only in these blocks.
func TestWholeTraceEightRequestsAtATime(t *testing.T) {
	limit, want := long(t)
	r := newRig(t, rigOptions{geometry: latent, slots: want.distinct})
	c := r.config(latent, wholeTrace)
	c.Limit, c.Concurrency = limit, 8
	rep, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if rep.BlockAccesses != want.accesses || rep.DumpedBlocks != want.distinct || rep.Mismatches != 0 || rep.LoadErrors+rep.DumpErrors+rep.Corrupt != 0 {
		t.Errorf("report: %+v", rep)
	}
	if got := rep.PrefixHits + rep.SkippedBlocks; got < want.hits/2 || got > want.hits {
		t.Errorf("%d blocks were found or dumped twice; want %d, less a few", got, want.hits)
	}
}

func TestReplayOfManyRequestsAtATime(t *testing.T) {
	limit := 200
	if testing.Short() || testkit.Race {
		limit = 60
	}
	for _, layerwise := range []bool{false, true} {
		t.Run(fmt.Sprintf("layerwise=%t", layerwise), func(t *testing.T) {
			r := newRig(t, rigOptions{geometry: layered, slots: 2500, dir: t.TempDir()})
			c := r.config(layered, wholeTrace)
			c.Limit, c.Concurrency, c.Layerwise = limit, 8, layerwise
			rep, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !rep.Complete || rep.Requests != int64(limit) || rep.PrefixHits == 0 || rep.Mismatches != 0 || rep.LoadErrors != 0 {
				t.Errorf("report: %+v", rep)
			}
			if rep.DumpedBlocks != rep.DistinctBlocks {
				t.Errorf("%d blocks dumped, %d are distinct", rep.DumpedBlocks, rep.DistinctBlocks)
			}
		})
	}
}

func TestSecondReplayFindsWhatTheFirstStored(t *testing.T) {
	dir := t.TempDir()
	for pass, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprintf("pass %d", pass+1), func(t *testing.T) {
			r := newRig(t, rigOptions{geometry: layered, slots: 300, dir: dir})
			c := r.config(layered, wholeTrace)
			c.Limit, c.Seed = 60, seed
			rep, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			want := rep.BlockAccesses
			if pass == 0 {
				want -= rep.DistinctBlocks
			}
			if rep.PrefixHits != want || rep.Mismatches != 0 {
				t.Errorf("%d prefix hits and %d mismatches, want %d and none", rep.PrefixHits, rep.Mismatches, want)
			}
			if pass == 1 && rep.DumpedBlocks != 0 {
				t.Errorf("%d blocks were dumped again", rep.DumpedBlocks)
			}
		})
	}
}

func TestRequestLongerThanTheKVCache(t *testing.T) {
	r := newRig(t, rigOptions{geometry: latent, slots: 16})
	c := r.config(latent, writeTrace(t, []int64{1}, []int64{1, 2, 3}, []int64{4}))
	c.Pages = 2
	_, err := Run(t.Context(), c)
	var te *TraceError
	if !errors.As(err, &te) || te.Line != 2 || te.Field != "hash_ids" || !strings.Contains(te.Problem, "3 blocks, more than the KV cache's 2 pages") {
		t.Errorf("got %v", err)
	}
	c.Pages = 3
	if _, err := Run(t.Context(), c); err != nil {
		t.Errorf("with 3 pages: %v", err)
	}
}

func TestConfigReportsEverythingThatIsWrong(t *testing.T) {
	_, err := Run(t.Context(), Config{Geometry: block.Geometry{Layers: -1}, Limit: -1, Pages: -2, Concurrency: -3, Backlog: -4, Timeout: -5})
	for _, want := range []string{"device and a store", "no trace", "layers -1", "limit -1", "pages -2", "concurrency -3", "backlog -4", "timeout -5ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestCanceledReplayReportsCompletedWork(t *testing.T) {
	r := newRig(t, rigOptions{geometry: latent, slots: 500, dir: t.TempDir()})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("that is enough")
	var done atomic.Int64
	c := r.config(latent, wholeTrace)
	c.Concurrency, c.Limit = 3, 1000
	c.Progress = func(s Step) {
		if s.Total != 1000 {
			t.Errorf("%d requests in all", s.Total)
		}
		if done.Add(1) == 20 {
			cancel(enough)
		}
	}
	rep, err := Run(ctx, c)
	if !errors.Is(err, enough) || !errors.Is(err, errdefs.ErrCanceled) {
		t.Errorf("got %v, want the cause", err)
	}
	if rep == nil || rep.Complete || rep.Requests < 20 || rep.Requests == 1000 || rep.BlockAccesses == 0 {
		t.Errorf("report: %+v", rep)
	}
	// The store must still be usable.
	c.Progress, c.Limit = nil, 40
	if rep, err := Run(t.Context(), c); err != nil || rep.Mismatches != 0 || !rep.Complete {
		t.Errorf("after the cancellation: %v, %+v", err, rep)
	}
}

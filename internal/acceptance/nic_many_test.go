package acceptance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/stream"
)

func TestNICsCarryThousandsOfRequests(t *testing.T) {
	c := softConfig(t)
	c.RDMA.NICs, c.RDMA.QueuePairs = []string{"soft0", "soft1"}, 2
	thousandsOfRequests(t, c, stream.PathNICSoft)
}

// thousandsOfRequests replays alternating conversations on an engine that must use NICs. Blocks are
// small, so that an emulated machine is fast enough. Each turn uses the blocks of all earlier
// turns, which are stored by then, so that all totals are known.
func thousandsOfRequests(t *testing.T, c kvlane.Config, path stream.Path) {
	t.Helper()
	const rounds = 2
	conversations := int64(1000)
	if testkit.Race {
		conversations = 100
	}
	requests, hits := conversations*rounds, conversations*rounds*(rounds-1)/2
	tiny := block.Geometry{Model: "tiny", Layers: 1, KVHeads: 1, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	layout, err := tiny.Layout()
	if err != nil {
		t.Fatal(err)
	}
	c.Model = tiny
	c.Store.CacheBytes = conversations / 2 * layout.ImageBytes()
	e := openEngine(t, c)
	var trace strings.Builder
	for round := 1; round <= rounds; round++ {
		for i := range conversations {
			i = (i + int64(round)*conversations*3/4) % conversations // some blocks are still in the cache
			ids := make([]string, round)
			for b := range ids {
				ids[b] = fmt.Sprint(i*rounds + int64(b))
			}
			fmt.Fprintf(&trace, `{"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[%s]}`+"\n", strings.Join(ids, ","))
		}
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, []byte(trace.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := replay.Run(t.Context(), replay.Config{
		Device: e.Device(), Store: e.Store(), Memory: e, Geometry: tiny, Identity: e.Identity(), Trace: file,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != requests || r.BlockAccesses != requests+hits || r.PrefixHits != hits || r.DumpedBlocks != requests || r.SkippedBlocks != 0 {
		t.Errorf("%d requests, %d accesses, %d hits, %d blocks dumped, %d skipped; want %d, %d, %d, %d, 0",
			r.Requests, r.BlockAccesses, r.PrefixHits, r.DumpedBlocks, r.SkippedBlocks, requests, requests+hits, hits, requests)
	}
	if r.Mismatches+r.Corrupt+r.BadCopies+r.LoadErrors+r.DumpErrors+r.DurableErrors != 0 || r.BytesVerified != hits*2*tiny.PlaneBytes() {
		t.Errorf("%d blocks wrong, %d corrupt, %d bytes verified, failures: %v", r.Mismatches, r.Corrupt, r.BytesVerified, r.ErrorSamples)
	}
	if r.HitsByTier["file"] == 0 || r.HitsByTier["cache"] == 0 {
		t.Errorf("hits by tier %v: want some from each", r.HitsByTier)
	}
	for _, p := range r.Paths {
		if p.Path != path.String() {
			t.Errorf("%s by %s", p.Direction, p.Path)
		}
	}
	t.Logf("%.1f s, hits by tier %v, paths %+v", r.Seconds, r.HitsByTier, r.Paths)
}

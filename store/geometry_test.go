package store_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/tier/cache"
)

const (
	randomPages  = 6
	randomBlocks = 4
)

// geometry is a paged KV cache of random geometry on a simulated device, with a store.
type geometry struct {
	*rig
	rng   *rand.Rand
	whole bool // every plane is a whole number of aligned leaves, so that streams can sum it
}

// TestSumsOfAnyGeometry dumps and loads random bytes of random geometries on the paths that compute
// checksums. The checksums in the header must equal those that the CPU computes from the slot. The
// copy computes them exactly if the planes are whole, aligned leaves.
func TestSumsOfAnyGeometry(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		for _, path := range []stream.Path{stream.PathKernel, stream.PathStaged} {
			t.Run(fmt.Sprintf("%v/seed=%d", path, seed), func(t *testing.T) {
				t.Parallel()
				newGeometry(t, seed, path).check(seed%2 == 0)
			})
		}
	}
}

func newGeometry(t *testing.T, seed uint64, path stream.Path) *geometry {
	t.Helper()
	g := &geometry{rig: &rig{tb: t}, rng: rand.New(rand.NewPCG(seed, 7)), whole: true}
	sizes := g.sizes(seed%4 == 3)
	shards := make([]int64, len(sizes))
	for i := range sizes {
		for _, n := range sizes[i] {
			shards[i] += n
		}
		g.o.shards++
	}
	l, err := block.NewLayout(shards)
	g.must(err)
	g.id = block.Identity{Model: "random", Revision: "1", DType: "f16", Layout: "kv", LayerEnd: 1, HeadEnd: 1, HeadSize: 64, BlockTokens: 16}
	g.format = block.Format{Layout: l, Identity: g.id.Digest()}
	g.groups, g.o.groups = block.Formats{g.format}, 1
	g.dev, err = sim.Open(sim.Options{})
	g.must(err)
	g.host, err = g.dev.AllocHost(2 * randomBlocks * l.ImageBytes())
	g.must(err)
	g.place(sizes, seed%4 == 2)
	g.cache, err = cache.Open(cache.Config{Memory: g.host, Formats: g.groups})
	g.must(err)
	descriptors := 256 << g.rng.IntN(4)
	open := func() (stream.Stream, error) {
		return streamcopy.Open(g.dev, streamcopy.Options{Path: path, Descriptors: descriptors, StagingBytes: 128 << 10})
	}
	g.st, err = store.Open(store.Config{
		Formats: g.groups, Cache: g.cache, OpenLoad: open, OpenDump: open, BatchBytes: (1 + g.rng.Int64N(3)) * l.ImageBytes(),
	})
	g.must(err)
	t.Cleanup(func() {
		g.must(g.st.Close(g.ctx()))
		g.must(g.cache.Close(g.ctx()))
		g.must(g.dev.Free(g.gpu))
		g.must(g.dev.Free(g.host))
		g.must(g.dev.Close())
	})
	return g
}

// sizes returns random sizes of planes for each shard. They are whole leaves, except for some if
// odd is set.
func (g *geometry) sizes(odd bool) [][]int64 {
	sizes := make([][]int64, 1+g.rng.IntN(5))
	for i := range sizes {
		for range 1 + g.rng.IntN(4) {
			n := mem.LeafBytes * (1 + g.rng.Int64N(4))
			if odd && g.rng.IntN(3) == 0 {
				n -= 1 + g.rng.Int64N(mem.LeafBytes) // the last leaf is short, or is missing
				g.whole = g.whole && n%mem.LeafBytes == 0
			}
			if n > 0 {
				sizes[i] = append(sizes[i], n)
			}
		}
		if sizes[i] == nil {
			sizes[i] = []int64{100}
			g.whole = false
		}
	}
	return sizes
}

// place allocates the planes in device memory with gaps between them. If askew is set, some planes
// are unaligned.
func (g *geometry) place(sizes [][]int64, askew bool) {
	g.tb.Helper()
	at := int64(0)
	for s, planes := range sizes {
		off := g.format.Layout.ShardOff(s)
		var shard []mem.Plane
		for _, n := range planes {
			shift, stride := mem.LeafAlign*g.rng.Int64N(9), (n+mem.LeafAlign-1)&^(mem.LeafAlign-1)+mem.LeafAlign*g.rng.Int64N(9)
			if askew && g.rng.IntN(3) == 0 {
				shift += 1 + g.rng.Int64N(mem.LeafAlign-1)
				g.whole = false
			}
			shard = append(shard, mem.Plane{Base: at + shift, Stride: stride, Bytes: n, SlotOff: off})
			at += (shift+stride*randomPages+n)/mem.LeafAlign*mem.LeafAlign + mem.LeafAlign
			off += n
		}
		g.rng.Shuffle(len(shard), func(i, j int) { shard[i], shard[j] = shard[j], shard[i] })
		g.pages = appendShard(g.pages, shard)
	}
	var err error
	g.gpu, err = g.dev.Alloc(at, device.AllocOptions{})
	g.must(err)
	for _, planes := range g.pages.Shards {
		for i := range planes {
			planes[i].Region = g.gpu
		}
	}
}

func appendShard(p *store.Pages, shard []mem.Plane) *store.Pages {
	if p == nil {
		p = &store.Pages{}
	}
	p.Shards = append(p.Shards, shard)
	return p
}

// copyAll copies copyAll device memory to b, or b to device memory.
func (g *geometry) copyAll(b []byte, toDevice bool) {
	g.tb.Helper()
	q, err := g.dev.OpenQueue(device.QueueOptions{})
	g.must(err)
	stage, err := g.dev.AllocHost(g.gpu.Len())
	g.must(err)
	dst, src := mem.Extent{Region: stage, Len: g.gpu.Len()}, mem.Extent{Region: g.gpu, Len: g.gpu.Len()}
	if toDevice {
		copy(stage.Bytes(), b)
		dst, src = src, dst
	}
	g.must(q.Copy(dst, src))
	g.must(q.Close(g.ctx()))
	copy(b, stage.Bytes())
	g.must(g.dev.Free(stage))
}

// fillRandom fills b with typical values: noise, zeros, ones, and the NaNs and infinities of half
// precision.
func (g *geometry) fillRandom(b []byte) {
	patterns := []uint16{0, 0xffff, 0x7e00, 0x7c00, 0xfc00, 0x7fc0, 0xff80, 0x8000}
	for len(b) > 0 {
		n := min(len(b), 1+g.rng.IntN(3*mem.LeafBytes))
		p := patterns[g.rng.IntN(len(patterns))]
		noise := g.rng.IntN(2) == 0
		for i := range b[:n] {
			if noise {
				b[i] = byte(g.rng.Uint32())
			} else {
				b[i] = byte(p >> (8 * (i % 2)))
			}
		}
		b = b[n:]
	}
}

func (g *geometry) check(layerwise bool) {
	g.tb.Helper()
	before := make([]byte, g.gpu.Len())
	g.fillRandom(before)
	g.copyAll(before, true)
	from, to := g.rng.Perm(randomPages)[:randomBlocks], g.rng.Perm(randomPages)[:randomBlocks]
	refs := func(pages []int) (out []store.Ref) {
		for i, p := range pages {
			out = append(out, store.Ref{Key: g.key(i), Page: uint32(p)})
		}
		return out
	}
	d, err := g.st.Dump(g.ctx(), g.pages, refs(from), store.DumpOptions{Layerwise: layerwise})
	g.must(err)
	for _, s := range g.rng.Perm(g.o.shards) {
		if layerwise {
			g.must(d.SubmitShard(g.ctx(), s))
		}
	}
	g.must(d.Durable(g.ctx()))
	for i := range from {
		g.checkSealedByCPU(i)
	}
	l, err := g.st.Load(g.ctx(), nil, g.pages, refs(to), store.LoadOptions{Layerwise: !layerwise})
	g.must(err)
	g.must(l.Wait(g.ctx()))

	want := bytes.Clone(before)
	for i := range to {
		for _, planes := range g.pages.Shards {
			for j := range planes {
				src, dst := planes[j].Page(uint32(from[i])), planes[j].Page(uint32(to[i]))
				copy(want[dst.Off:dst.Off+dst.Len], before[src.Off:src.Off+src.Len])
			}
		}
	}
	after := make([]byte, len(before))
	g.copyAll(after, false)
	if !bytes.Equal(after, want) {
		g.tb.Fatal("pages differ from the dumped ones, or bytes between pages were written")
	}
	st := g.st.Stats()
	for _, p := range []store.PathStats{st.DumpPaths[0], st.LoadPaths[0]} {
		if (p.Summed == p.Bytes) != g.whole || (p.Summed == 0) == g.whole {
			g.tb.Fatalf("%d of %d bytes were summed on their way; whole leaves: %v", p.Summed, p.Bytes, g.whole)
		}
	}
	if n := int64(randomBlocks); st.VerifiedOnWay+st.VerifiedByCPU != n || (st.VerifiedOnWay == n) != g.whole {
		g.tb.Fatalf("%d blocks were verified on their way and %d by the CPU", st.VerifiedOnWay, st.VerifiedByCPU)
	}
}

// checkSealedByCPU compares the cached image of block n with an image that the CPU seals.
func (g *geometry) checkSealedByCPU(n int) {
	g.tb.Helper()
	sl, err := g.cache.Open(g.ctx(), g.key(n))
	g.must(err)
	defer sl.Release()
	image := sl.Extent().Bytes()[:g.format.Layout.ImageBytes()]
	again := bytes.Clone(image)
	g.must(g.format.Seal(again, g.key(n)))
	if !bytes.Equal(image, again) {
		h, err := block.DecodeHeader(image)
		g.must(err)
		for i := range h.Shards() {
			if _, _, sum := h.Shard(i); sum != g.format.SumShard(image, i) {
				g.tb.Fatalf("checksum of shard %d is %016x, the CPU makes it %016x", i, sum, g.format.SumShard(image, i))
			}
		}
		g.tb.Fatal("the image differs from the one that the CPU seals")
	}
}

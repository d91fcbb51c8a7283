package block_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Lengths around the limits of the implementation: one leaf, few leaves, and one buffer of leaf
// sums.
var treeLengths = []int64{
	1, 100, 4095, 4096, 4097, 5000, 8192, 16*4096 - 1, 16 * 4096, 16*4096 + 1, 17 * 4096,
	256*4096 - 1, 256 * 4096, 256*4096 + 1, 300 * 4096, 512*4096 + 7,
}

// naiveTree computes SumTree literally by its definition.
func naiveTree(shard []byte) (sum uint64, leaves []uint64) {
	var words []byte
	for at := 0; at < len(shard); at += 4096 {
		leaf := xxh3.Hash(shard[at:min(at+4096, len(shard))])
		leaves = append(leaves, leaf)
		words = binary.LittleEndian.AppendUint64(words, leaf)
	}
	return xxh3.Hash(words), leaves
}

func randomBytes(n int64, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestTreeSumIsAsDefined(t *testing.T) {
	for _, n := range treeLengths {
		f, key := someFormat(t, n)
		image := sealed(t, f, key, uint64(n))
		want, leaves := naiveTree(image[f.Layout.ShardOff(0):][:n])
		if got := f.SumShard(image, 0); got != want {
			t.Errorf("%d bytes: SumShard is %016x, want %016x", n, got, want)
		}
		if got := block.FoldLeaves(leaves); got != want {
			t.Errorf("%d bytes: FoldLeaves is %016x, want %016x", n, got, want)
		}
		if f.Layout.LeavesOf(0) != len(leaves) || block.Leaves(n) != len(leaves) {
			t.Errorf("%d bytes: %d leaves, want %d", n, f.Layout.LeavesOf(0), len(leaves))
		}
		if got := block.SumLeaf(image[f.Layout.ShardOff(0):][:min(n, 4096)]); got != leaves[0] {
			t.Errorf("%d bytes: the first leaf's sum is %016x, want %016x", n, got, leaves[0])
		}
		h, err := block.DecodeHeader(image)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, sum := h.Shard(0); h.SumAlgo != block.SumTree || sum != want {
			t.Errorf("%d bytes: the header has %v %016x", n, h.SumAlgo, sum)
		}
		if got := block.FoldLeaves(leaves); got != want {
			t.Errorf("%d bytes: the leaves fold to %016x", n, got)
		}
	}
}

// The expected values are from the reference implementation (xxHash 0.8, in C).
func TestTreeSumKnownAnswers(t *testing.T) {
	for n, want := range map[int64]uint64{1: 0x113425e2d3c1afc3, 4096: 0x23bf0c53012b40c7, 8192: 0x30e94a8e0fda6b6f, 300*4096 + 5: 0x05c2f52b08877d21} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7 / 3)
		}
		f, _ := someFormat(t, n)
		image := make([]byte, f.Layout.ImageBytes())
		copy(image[f.Layout.ShardOff(0):], b)
		if got := f.SumShard(image, 0); got != want {
			t.Errorf("%d bytes: %#016x, want %#016x", n, got, want)
		}
	}
}

func TestVerifiedIsWhatHeaderReturns(t *testing.T) {
	f, key := someFormat(t, 3*4096, 100)
	image := sealed(t, f, key, 1)
	want, err := f.Header(image, key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Verified(image); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := f.Verified(image[:5]); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("Verified of 5 bytes: %v", err)
	}
	image[24] = 9
	if _, err := f.Verified(image); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("Verified with an unknown algorithm: %v", err)
	}
}

// Every format verifies blocks of both algorithms, and does not confuse them.
func TestBothAlgorithmsVerifyUnderEitherFormat(t *testing.T) {
	for _, wrote := range []block.SumAlgo{block.SumXXH3, block.SumTree} {
		f, key := someFormat(t, 5000, 100)
		f.Sum = wrote
		image := sealed(t, f, key, 1)
		for _, reads := range []block.SumAlgo{0, block.SumXXH3, block.SumTree} {
			g := f
			g.Sum = reads
			if err := g.Verify(image, key); err != nil {
				t.Errorf("%v read as %v: %v", wrote, reads, err)
			}
			image[f.Layout.ShardOff(1)] ^= 1
			if err := g.Verify(image, key); !errors.Is(err, errdefs.ErrCorrupt) {
				t.Errorf("%v, damaged, read as %v: %v", wrote, reads, err)
			}
			image[f.Layout.ShardOff(1)] ^= 1
		}
		h, err := f.Header(image, key)
		if err != nil || h.SumAlgo != wrote {
			t.Errorf("algorithm in the header: %v, %v; want %v", h.SumAlgo, err, wrote)
		}
	}
	f, key := someFormat(t, 100)
	f.Sum = 9
	if err := f.SealWith(make([]byte, f.Layout.ImageBytes()), key, []uint64{1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("sealing with an algorithm that does not exist: %v", err)
	}
	if err := f.Seal(make([]byte, f.Layout.ImageBytes()), key); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("sealing with an algorithm that does not exist: %v", err)
	}
}

func TestSumsAllocateNothing(t *testing.T) {
	for _, n := range []int64{4096, 64 << 10, 4 << 20} {
		f, key := someFormat(t, n)
		image := sealed(t, f, key, 1)
		_, leaves := naiveTree(image[f.Layout.ShardOff(0):][:n])
		if a := testing.AllocsPerRun(10, func() {
			f.SumShard(image, 0)
			block.FoldLeaves(leaves)
			if _, err := f.Verified(image); err != nil {
				t.Error(err)
			}
		}); a > 0 {
			t.Errorf("%d bytes: %v allocations", n, a)
		}
	}
}

// BenchmarkSum compares the algorithms and a plain copy, on shards in the CPU's caches and on
// shards in memory. The copy's target is one shard in the caches.
func BenchmarkSum(b *testing.B) {
	const span = 128 << 20
	mem := randomBytes(span, 1)
	for _, n := range []int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		l := layout(b, n)
		for _, from := range []struct {
			name string
			span int64
		}{{"cache", l.ImageBytes()}, {"memory", span / l.ImageBytes() * l.ImageBytes()}} {
			run := func(name string, do func(image []byte)) {
				b.Run(fmt.Sprintf("%dKiB/%s/%s", n>>10, from.name, name), func(b *testing.B) {
					b.SetBytes(n)
					b.ReportAllocs()
					at := int64(0)
					for b.Loop() {
						do(mem[at : at+l.ImageBytes()])
						if at += l.ImageBytes(); at == from.span {
							at = 0
						}
					}
				})
			}
			for _, algo := range []block.SumAlgo{block.SumXXH3, block.SumTree} {
				f := block.Format{Layout: l, Sum: algo}
				run(algo.String(), func(image []byte) { f.SumShard(image, 0) })
			}
			to := make([]byte, n)
			run("memcpy", func(image []byte) { copy(to, image[l.ShardOff(0):]) })
		}
	}
}

func BenchmarkFoldLeaves(b *testing.B) {
	for _, n := range []int{1, 16, 256, 4096} {
		leaves := make([]uint64, n)
		b.Run(fmt.Sprintf("leaves=%d", n), func(b *testing.B) {
			b.SetBytes(int64(n) * block.LeafBytes)
			b.ReportAllocs()
			for b.Loop() {
				block.FoldLeaves(leaves)
			}
		})
	}
}

package block_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func layout(tb testing.TB, shards ...int64) *block.Layout {
	tb.Helper()
	l, err := block.NewLayout(shards)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// sealed returns a sealed image. Its bytes, including padding, were random before.
func sealed(tb testing.TB, f block.Format, key block.Key, seed uint64) []byte {
	tb.Helper()
	image := make([]byte, f.Layout.ImageBytes())
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range image {
		image[i] = byte(rng.Uint32())
	}
	if err := f.Seal(image, key); err != nil {
		tb.Fatal(err)
	}
	return image
}

func someFormat(tb testing.TB, shards ...int64) (block.Format, block.Key) {
	tb.Helper()
	id := someIdentity()
	return block.Format{Layout: layout(tb, shards...), Identity: id.Digest()}, id.Key([]byte("a block"))
}

func TestLayoutAlignsHeaderAndShards(t *testing.T) {
	tests := []struct {
		shards              []int64
		header, image, data int64
		offs                []int64
	}{
		{[]int64{1}, 4096, 8192, 1, []int64{4096}},
		{[]int64{4096, 4096}, 4096, 12288, 8192, []int64{4096, 8192}},
		{[]int64{5000, 100, 8192}, 4096, 4096 + 8192 + 4096 + 8192, 13292, []int64{4096, 12288, 16384}},
		{make4(166), 4096, 4096 + 166*4096, 166 * 4096, nil},
		{make4(167), 8192, 8192 + 167*4096, 167 * 4096, nil},
	}
	for _, tt := range tests {
		l := layout(t, tt.shards...)
		if l.HeaderBytes() != tt.header || l.ImageBytes() != tt.image || l.DataBytes() != tt.data || l.Shards() != len(tt.shards) {
			t.Errorf("%v: header %d, image %d, data %d, shards %d", l, l.HeaderBytes(), l.ImageBytes(), l.DataBytes(), l.Shards())
		}
		for i, want := range tt.offs {
			if l.ShardOff(i) != want || l.ShardBytes(i) != tt.shards[i] {
				t.Errorf("%v: shard %d is %d bytes at %d, want %d at %d", l, i, l.ShardBytes(i), l.ShardOff(i), tt.shards[i], want)
			}
		}
		if !l.Equal(layout(t, l.ShardSizes()...)) {
			t.Errorf("%v: the layout of its shard sizes differs", l)
		}
	}
}

func make4(n int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = 4096
	}
	return s
}

func TestLayoutRefuses(t *testing.T) {
	for name, shards := range map[string][]int64{
		"none":     nil,
		"empty":    {4096, 0},
		"negative": {-1},
		"too many": make4(block.MaxShards + 1),
		"too long": {block.MaxImageBytes},
		"overflow": {1 << 35, 1 << 35, 1 << 62},
	} {
		if l, err := block.NewLayout(shards); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

func TestSealedImageVerifies(t *testing.T) {
	for _, shards := range [][]int64{{1}, {4096}, {8192, 8192}, {5000, 100, 8192}, make4(200), make4(300)} {
		f, key := someFormat(t, shards...)
		image := sealed(t, f, key, 1)
		if err := f.Verify(image, key); err != nil {
			t.Errorf("%v: %v", f.Layout, err)
		}
		h, err := block.DecodeHeader(image)
		if err != nil {
			t.Fatal(err)
		}
		l, err := h.Layout()
		if err != nil || !l.Equal(f.Layout) || h.Identity != f.Identity || h.Key != key || h.ImageBytes != int64(len(image)) {
			t.Errorf("%v: decoded %v %+v, %v", f.Layout, l, h, err)
		}
	}
}

// Padding is stored too, so it must not contain previous contents of the memory.
func TestSealZeroesPadding(t *testing.T) {
	f, key := someFormat(t, 5000, 100)
	image := sealed(t, f, key, 1)
	for i := range f.Layout.Shards() {
		end := f.Layout.ShardOff(i) + f.Layout.ShardBytes(i)
		next := f.Layout.ImageBytes()
		if i+1 < f.Layout.Shards() {
			next = f.Layout.ShardOff(i + 1)
		}
		if pad := image[end:next]; !bytes.Equal(pad, make([]byte, len(pad))) {
			t.Errorf("padding after shard %d is not zero", i)
		}
	}
}

func TestSealWithMakesTheSameImage(t *testing.T) {
	f, key := someFormat(t, 5000, 100, 8192)
	want := sealed(t, f, key, 1)
	got := bytes.Clone(want)
	clear(got[:f.Layout.HeaderBytes()])
	var sums []uint64
	for i := range f.Layout.Shards() {
		sums = append(sums, f.SumShard(got, i))
	}
	if err := f.SealWith(got, key, sums); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("SealWith and Seal differ")
	}
	if err := f.SealWith(got, key, sums[1:]); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("with too few checksums: %v", err)
	}
}

// Every flipped bit must be detected, including those in padding.
func TestDefect7EveryFlippedBitIsFound(t *testing.T) {
	f, key := someFormat(t, 700, 100)
	image := sealed(t, f, key, 1)
	for i := range image {
		image[i] ^= 1 << (i % 8)
		if err := f.Verify(image, key); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Fatalf("bit %d of byte %d: %v", i%8, i, err)
		}
		image[i] ^= 1 << (i % 8)
	}
	if err := f.Verify(image, key); err != nil {
		t.Error(err)
	}
}

func TestDefect7WrongSizesAreFound(t *testing.T) {
	f, key := someFormat(t, 5000)
	image := sealed(t, f, key, 1)
	for _, b := range [][]byte{nil, image[:100], image[:4096], image[:len(image)-1], append(bytes.Clone(image), 0)} {
		if err := f.Verify(b, key); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
		if err := f.Seal(b, key); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("seal %d bytes: %v", len(b), err)
		}
	}
	if err := (block.Format{}).Verify(image, key); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("verify without a layout: %v", err)
	}
}

func TestMismatchNamesWhatDiffers(t *testing.T) {
	f, key := someFormat(t, 8192, 4096)
	other := someIdentity()
	other.DType = "float16"
	tests := []struct {
		name   string
		format block.Format
		key    block.Key
		want   []string
	}{
		{"identity", block.Format{Layout: f.Layout, Identity: other.Digest()}, key, []string{"identity", f.Identity.String(), other.Digest().String()}},
		{"key", f, other.Key(nil), []string{key.String(), other.Key(nil).String()}},
		{"shard length", block.Format{Layout: layout(t, 4096, 8192), Identity: f.Identity}, key, []string{"shard 0", "8192", "4096"}},
		{"shard count", block.Format{Layout: layout(t, 12288), Identity: f.Identity}, key, []string{"2 shards", "expected 1"}},
	}
	image := sealed(t, f, key, 1)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.format.Verify(image, tt.key)
			if !errors.Is(err, errdefs.ErrMismatch) || errors.Is(err, errdefs.ErrCorrupt) {
				t.Fatalf("%v is not just ErrMismatch", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in %q", w, err)
				}
			}
		})
	}
}

func TestSealAndVerifyAllocateNothing(t *testing.T) {
	f, key := someFormat(t, make4(80)...)
	image := sealed(t, f, key, 1)
	sums := make([]uint64, 80)
	for name, op := range map[string]func() error{
		"Seal":         func() error { return f.Seal(image, key) },
		"SealWith":     func() error { return f.SealWith(image, key, sums) },
		"Verify":       func() error { return f.Verify(image, key) },
		"VerifyHeader": func() error { return f.VerifyHeader(image, key) },
	} {
		if err := f.Seal(image, key); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(20, func() {
			if err := op(); err != nil {
				t.Error(name, err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The format must not change by accident, because files of earlier releases would be lost.
func TestImageIsGolden(t *testing.T) {
	for algo, name := range map[block.SumAlgo]string{block.SumXXH3: "header.golden", block.SumTree: "header-tree.golden"} {
		f, key := someFormat(t, 700, 100)
		f.Sum = algo
		image := sealed(t, f, key, 1)
		got := []byte(hex.Dump(image[:f.Layout.HeaderBytes()]))
		path := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the header differs from %s; if that is intended, raise FormatVersion and run with -rewrite:\n%s", path, got)
		}
	}
}

func BenchmarkSeal(b *testing.B)   { benchmark(b, block.Format.Seal) }
func BenchmarkVerify(b *testing.B) { benchmark(b, block.Format.Verify) }

func benchmark(b *testing.B, op func(block.Format, []byte, block.Key) error) {
	b.Helper()
	for _, shards := range [][]int64{{8192}, make4(64), {1 << 20, 1 << 20, 1 << 20, 1 << 20}} {
		f, key := someFormat(b, shards...)
		image := sealed(b, f, key, 1)
		b.Run(fmt.Sprintf("image=%dKiB", f.Layout.ImageBytes()>>10), func(b *testing.B) {
			b.SetBytes(f.Layout.ImageBytes())
			b.ReportAllocs()
			for b.Loop() {
				if err := op(f, image, key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkKey(b *testing.B) {
	d, hash := someIdentity().Digest(), make([]byte, 32)
	b.ReportAllocs()
	for b.Loop() {
		hash[0]++
		_ = d.Key(hash)
	}
}

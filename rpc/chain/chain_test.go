package chain_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc/chain"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// deviceBlock returns a block of device memory at a made-up address, which is never accessed.
func deviceBlock(t *testing.T, n int64, free func()) *chain.Block {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Dev: 1 << 40, Len: n})
	if err != nil {
		t.Fatal(err)
	}
	b, err := chain.NewRegistered(mem.All(r), free)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pair is a chain and its expected bytes.
type pair struct {
	chain *chain.Chain
	want  []byte
}

// TestModel applies random operations to chains and to byte slices.
func TestModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		made, freed := 0, 0
		var all []pair
		for range 200 {
			i := 0
			if len(all) > 0 {
				i = rng.IntN(len(all))
			}
			switch op := rng.IntN(6); {
			case op == 0 || len(all) == 0:
				p := make([]byte, rng.IntN(20))
				for k := range p {
					p[k] = byte(rng.Uint32())
				}
				made++
				c := new(chain.Chain)
				c.AppendBlock(chain.NewHost(p, func() { freed++ }), int64(len(p)))
				all = append(all, pair{c, slices.Clone(p)})
			case op == 1: // append one to another
				if k := rng.IntN(len(all)); k != i {
					all[i].chain.Append(all[k].chain)
					all[i].want = append(all[i].want, all[k].want...)
					all[k].want = nil
				}
			case op == 2:
				n := rng.IntN(len(all[i].want) + 3)
				m := min(n, len(all[i].want))
				all = append(all, pair{all[i].chain.Cut(int64(n)), slices.Clone(all[i].want[:m])})
				all[i].want = all[i].want[m:]
			case op == 3:
				off := rng.IntN(len(all[i].want) + 1)
				n := rng.IntN(len(all[i].want) - off + 1)
				c, err := all[i].chain.Slice(int64(off), int64(n))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, pair{c, slices.Clone(all[i].want[off : off+n])})
			case op == 4:
				all[i].chain.Release()
				all = slices.Delete(all, i, i+1)
			default:
				check(t, rng, all[i])
			}
		}
		for _, p := range all {
			check(t, rng, p)
			p.chain.Release()
		}
		if made != freed {
			t.Fatalf("seed %d: %d blocks made, %d freed", seed, made, freed)
		}
	}
}

func check(t *testing.T, rng *rand.Rand, p pair) {
	t.Helper()
	if p.chain.Len() != int64(len(p.want)) {
		t.Fatalf("%d bytes, not %d", p.chain.Len(), len(p.want))
	}
	off := rng.IntN(len(p.want) + 1)
	buf := make([]byte, rng.IntN(len(p.want)-off+3))
	n, err := p.chain.CopyTo(buf, int64(off))
	if want := p.want[off:min(off+len(buf), len(p.want))]; err != nil || n != len(want) || !bytes.Equal(buf[:n], want) {
		t.Fatalf("copy of %d from %d: %x, %v, not %x", len(buf), off, buf[:n], err, want)
	}
	if got, err := p.chain.Contiguous(); err != nil || !bytes.Equal(got, p.want) {
		t.Fatalf("contiguous %x, %v, not %x", got, err, p.want)
	}
	list, err := p.chain.Buffers(nil)
	if got := bytes.Join(list, nil); err != nil || !bytes.Equal(got, p.want) {
		t.Fatalf("buffers %x, %v, not %x", got, err, p.want)
	}
}

func TestDeviceMemoryIsNotRead(t *testing.T) {
	freed := 0
	c := chain.OfBytes([]byte("abc"))
	c.AppendBlock(deviceBlock(t, 8, func() { freed++ }), 5)
	if !c.OnDevice() || c.Len() != 8 {
		t.Fatalf("on device: %t, %d bytes", c.OnDevice(), c.Len())
	}
	buf := make([]byte, 8)
	if n, err := c.CopyTo(buf, 0); n != 3 || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("copied %d, %v", n, err)
	}
	if _, err := c.Bytes(); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("bytes: %v", err)
	}
	if _, err := c.Buffers(nil); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("buffers: %v", err)
	}
	if _, err := c.Extents(); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("extents of a chain with other host memory: %v", err)
	}
	host := c.Cut(4)
	if _, err := c.Contiguous(); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("contiguous: %v", err)
	}
	extents, err := c.Extents()
	if err != nil || len(extents) != 1 || extents[0].Off != 1 || extents[0].Len != 4 || extents[0].Dev() != 1<<40+1 {
		t.Errorf("extents %v, %v", extents, err)
	}
	if c.Release(); freed != 0 {
		t.Error("freed a block that another chain has")
	}
	if host.Release(); freed != 1 {
		t.Errorf("freed %d times", freed)
	}
}

func TestWrongRanges(t *testing.T) {
	c := chain.OfBytes([]byte("abcd"))
	for _, r := range [][2]int64{{-1, 1}, {0, -1}, {5, 0}, {0, 5}, {2, 3}, {1, 1 << 62}} {
		if _, err := c.Slice(r[0], r[1]); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("slice %v: %v", r, err)
		}
	}
	for _, off := range []int64{-1, 5} {
		if _, err := c.CopyTo(make([]byte, 1), off); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("copy from %d: %v", off, err)
		}
	}
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Dev: 1 << 40, Len: 8})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chain.NewRegistered(mem.Extent{Region: r, Off: 4, Len: 5}, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("extent outside its region: %v", err)
	}
}

func TestPooledBlocks(t *testing.T) {
	for _, n := range []int{0, 1, 4 << 10, 4<<10 + 1, 64 << 10, 1 << 20, 1<<20 + 1, 1 << 30} {
		b := chain.Get(n)
		if got := b.Len(); got < int64(min(n, 1<<20)) || got > int64(max(4<<10, 2*n)) {
			t.Errorf("%d bytes for %d", got, n)
		}
		b.Release()
	}
	b := chain.Get(100)
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("the second release of a block is not detected")
		}
	}()
	b.Release()
}

// A nil chain is empty, also as an argument.
func TestNilChain(t *testing.T) {
	var none *chain.Chain
	c := chain.OfBytes([]byte("abc"))
	c.Append(nil)
	if out := none.Cut(1); out.Len() != 0 || c.Len() != 3 {
		t.Errorf("%d bytes cut, %d left", out.Len(), c.Len())
	}
	none.Release()
	c.Release()
}

// Append of a chain to itself panics with a text and keeps the blocks.
func TestAppendToItself(t *testing.T) {
	freed := 0
	c := new(chain.Chain)
	c.AppendBlock(chain.NewHost([]byte("abc"), func() { freed++ }), 3)
	func() {
		defer func() {
			if got := recover(); got != "chain: append of a chain to itself" {
				t.Errorf("panic %v", got)
			}
		}()
		c.Append(c)
	}()
	if n := c.Len(); n != 3 {
		t.Errorf("%d bytes", n)
	}
	if c.Release(); freed != 1 {
		t.Errorf("freed %d times", freed)
	}
}

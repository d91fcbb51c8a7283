package tiertest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// NewFormat returns a format of small blocks. Their shards have different lengths without a common
// factor.
func NewFormat(tb testing.TB) block.Format {
	tb.Helper()
	l, err := block.NewLayout([]int64{4096, 100, 5001, 1})
	if err != nil {
		tb.Fatal(err)
	}
	return block.Format{Layout: l, Identity: block.Digest{1, 2, 3}}
}

// Key returns the i-th key. Keys look random, like those of blocks.
func Key(i int) block.Key {
	var k block.Key
	for w := range block.KeyBytes / 8 {
		binary.LittleEndian.PutUint64(k[w*8:], device.Mix64(uint64(i)*4+uint64(w)))
	}
	return k
}

// Keys returns the keys with these numbers.
func Keys(is ...int) []block.Key {
	keys := make([]block.Key, len(is))
	for n, i := range is {
		keys[n] = Key(i)
	}
	return keys
}

// Fill writes the bytes of the shards. They depend on key, version, shard and offset.
func Fill(f block.Format, image []byte, key block.Key, version int) {
	for i := range f.Layout.Shards() {
		b := image[f.Layout.ShardOff(i):][:f.Layout.ShardBytes(i)]
		x := binary.LittleEndian.Uint64(key[:]) + uint64(version)<<32 + uint64(i)<<48
		for o := range b {
			if o%8 == 0 {
				x = device.Mix64(x)
			}
			b[o] = byte(x >> (o % 8 * 8))
		}
	}
}

// Seal writes the sealed image of key. Images of one key with different versions differ in all
// shards, except for very short ones.
func Seal(tb testing.TB, f block.Format, image []byte, key block.Key, version int) {
	tb.Helper()
	Fill(f, image, key, version)
	if err := f.Seal(image, key); err != nil {
		tb.Fatal(err)
	}
}

// Check returns an error if image is not the one that Seal wrote for key.
func Check(f block.Format, image []byte, key block.Key, version int) error {
	if err := f.Verify(image, key); err != nil {
		return err
	}
	want := make([]byte, len(image))
	Fill(f, want, key, version)
	if err := f.Seal(want, key); err != nil {
		return err
	}
	if bytes.Equal(image, want) {
		return nil
	}
	for i := range want {
		if image[i] != want[i] {
			return fmt.Errorf("byte %d of block %s is %#x, want %#x", i, key, image[i], want[i])
		}
	}
	return fmt.Errorf("block %s has %d bytes, want %d", key, len(image), len(want))
}

// Buffer returns an extent of host memory that is freed at the end of the test; a later access
// crashes. The extent does not start at the region's start. The end of the test checks that the
// surrounding bytes have not changed.
func Buffer(tb testing.TB, n int64) mem.Extent {
	tb.Helper()
	const guard, mark = block.AlignBytes, 0xa5
	b, err := hostmem.Alloc(n + 2*guard)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range guard {
		b[i], b[guard+n+int64(i)] = mark, mark
	}
	tb.Cleanup(func() {
		for i := range guard {
			if b[i] != mark || b[guard+n+int64(i)] != mark {
				tb.Errorf("bytes around a buffer of %d were written", n)
				break
			}
		}
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		tb.Fatal(err)
	}
	return mem.All(r).Sub(guard, n)
}

// CheckEvents checks that a tier that can store a block reports that it is stored, then deleted, then
// stored again and found damaged. damage changes its bytes.
func CheckEvents(tb testing.TB, tr tier.Tier, events *tier.Events, f block.Format, damage func(key block.Key)) {
	tb.Helper()
	w := events.Watch()
	defer w.Close()
	key, m := Key(1), Buffer(tb, f.Layout.ImageBytes())
	Seal(tb, f, m.Bytes(), key, 0)
	err := errors.Join(tr.Put(tb.Context(), key, m), tr.Put(tb.Context(), key, m), tr.Delete(tb.Context(), key), tr.Put(tb.Context(), key, m))
	if err != nil {
		tb.Fatal(err)
	}
	damage(key)
	_ = tr.Get(tb.Context(), key, m) // a miss
	var got []tier.Change
	for _, event := range w.Take(tier.MaxEvents) {
		if event.Change != tier.EventLost && (event.Tier != tr.Name() || event.Key != key) {
			tb.Errorf("an event of block %s in tier %q", event.Key, event.Tier)
		}
		got = append(got, event.Change)
	}
	if want := []tier.Change{tier.EventLost, tier.EventStored, tier.EventStored, tier.EventRemoved, tier.EventStored, tier.EventRemoved}; !slices.Equal(got, want) {
		tb.Errorf("events %v, want %v", got, want)
	}
}

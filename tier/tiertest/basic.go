package tiertest

import (
	"bytes"
	"context"
	"errors"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

func testRoundTrip(s *suite) {
	const n = 8
	tr := s.open(n)
	if tr.Name() == "" {
		s.Error("the tier has no name")
	}
	for i := range n {
		src := s.image(Key(i))
		before := bytes.Clone(src.Bytes())
		if err := tr.Put(s.Context(), Key(i), src); err != nil {
			s.Fatal(err)
		}
		if !bytes.Equal(src.Bytes(), before) {
			s.Errorf("put of block %d changed its source", i)
		}
		clear(src.Bytes()) // the tier must have a copy
	}
	for _, i := range []int{3, 0, 7, 1, 2, 6, 5, 4, 3} {
		s.mustGet(tr, Key(i))
	}
}

func testMiss(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	s.wantMiss(tr, Key(2))
	// Keys that differ only in their first or last byte are different keys.
	for _, at := range []int{0, block.KeyBytes - 1} {
		k := Key(1)
		k[at] ^= 1
		s.wantMiss(tr, k)
	}
	s.mustGet(tr, Key(1))
}

func testLookup(s *suite) {
	const n = 300 // more than a tier looks up at once
	tr := s.open(8)
	keys, states := make([]block.Key, n), make([]tier.State, n)
	for i := range keys {
		keys[i], states[i] = Key(i%10), tier.Filling
	}
	for i := range 4 {
		s.put(tr, Key(2*i))
	}
	if err := tr.Lookup(s.Context(), keys, states); err != nil {
		s.Fatal(err)
	}
	for i := range keys {
		want := tier.Absent
		if k := i % 10; k%2 == 0 && k < 8 {
			want = tier.Ready
		}
		if states[i] != want {
			s.Errorf("state of key %d is %s, want %s", i, states[i], want)
		}
	}
	if err := tr.Lookup(s.Context(), nil, nil); err != nil {
		s.Errorf("lookup of no key: %v", err)
	}
	s.wantIs("lookup of 2 keys into 1 state", tr.Lookup(s.Context(), keys[:2], states[:1]), errdefs.ErrInvalid)
}

func testPutTwice(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	other := Buffer(s.T, s.imageBytes())
	Seal(s.T, s.c.Format, other.Bytes(), Key(1), 1)
	if err := tr.Put(s.Context(), Key(1), other); err != nil {
		s.Fatal(err)
	}
	s.mustGet(tr, Key(1)) // the first image must be returned
	if st, ok := s.stats(tr); ok && (st.Puts != 1 || st.Blocks != 1) {
		s.Errorf("%d puts of %d blocks are counted, want 1 of 1", st.Puts, st.Blocks)
	}
}

func testPutRefuses(s *suite) {
	tr := s.open(4)
	f := s.c.Format
	layout := f.Layout
	last := layout.Shards() - 1
	flip := func(at int64) func([]byte) { return func(b []byte) { b[at] ^= 0x10 } }
	otherKey, otherIdentity := Key(2), f
	otherIdentity.Identity[0]++
	tests := map[string]struct {
		spoil func(image []byte)
		want  error
	}{
		"another block":              {func(b []byte) { Seal(s.T, f, b, otherKey, 0) }, errdefs.ErrMismatch},
		"another identity":           {func(b []byte) { Seal(s.T, otherIdentity, b, Key(1), 0) }, errdefs.ErrMismatch},
		"no header":                  {func(b []byte) { clear(b[:layout.HeaderBytes()]) }, nil},
		"first byte":                 {flip(0), nil},
		"byte of the header":         {flip(24), nil},
		"first byte of a shard":      {flip(layout.ShardOff(0)), errdefs.ErrCorrupt},
		"last byte of a shard":       {flip(layout.ShardOff(last) + layout.ShardBytes(last) - 1), errdefs.ErrCorrupt},
		"a shard that is not filled": {func(b []byte) { clear(b[layout.ShardOff(1):][:layout.ShardBytes(1)]) }, errdefs.ErrCorrupt},
	}
	for name, tt := range tests {
		src := s.image(Key(1))
		tt.spoil(src.Bytes())
		err := tr.Put(s.Context(), Key(1), src)
		if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) || tt.want != nil && !errors.Is(err, tt.want) {
			s.Errorf("put of an image with %s wrong: %v", name, err)
		}
		s.wantMiss(tr, Key(1))
		s.wantMiss(tr, otherKey)
	}
	s.put(tr, Key(1)) // the refused image has no effect
	s.mustGet(tr, Key(1))
}

func testBadExtents(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	n := s.imageBytes()
	big := Buffer(s.T, n+block.AlignBytes)
	dev, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: 1 << 40})
	if err != nil {
		s.Fatal(err)
	}
	for name, e := range map[string]mem.Extent{
		"short":          big.Sub(0, n-1),
		"long":           big,
		"empty":          big.Sub(0, 0),
		"no region":      {Len: n},
		"outside":        {Region: big.Region, Off: big.Region.Len() - n + 1, Len: n},
		"device memory":  mem.All(dev),
		"negative start": {Region: big.Region, Off: -1, Len: n},
	} {
		s.wantIs("get into "+name, tr.Get(s.Context(), Key(1), e), errdefs.ErrInvalid)
		s.wantIs("put from "+name, tr.Put(s.Context(), Key(2), e), errdefs.ErrInvalid)
	}
	s.wantMiss(tr, Key(2))
	s.mustGet(tr, Key(1))
}

func testDelete(s *suite) {
	tr := s.open(4)
	s.wantIs("delete of an absent block", tr.Delete(s.Context(), Key(1)), errdefs.ErrNotFound)
	for range 3 {
		s.put(tr, Key(1))
		s.put(tr, Key(2))
		if err := tr.Delete(s.Context(), Key(1)); err != nil {
			s.Fatal(err)
		}
		s.wantMiss(tr, Key(1))
		s.wantIs("second delete", tr.Delete(s.Context(), Key(1)), errdefs.ErrNotFound)
		s.mustGet(tr, Key(2))
	}
	if st, ok := s.stats(tr); ok && st.Blocks != 1 {
		s.Errorf("%d blocks are counted, want 1", st.Blocks)
	}
}

func testRetain(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	s.mustRetain(tr, Key(1))
	s.mustRetain(tr, Key(1))
	for range 2 {
		s.wantIs("delete of a retained block", tr.Delete(s.Context(), Key(1)), errdefs.ErrBusy)
		s.mustGet(tr, Key(1))
		tr.Release(Keys(1))
	}
	if st, ok := s.stats(tr); ok && st.Retained != 0 {
		s.Errorf("%d pins are counted, want 0", st.Retained)
	}
	if err := tr.Delete(s.Context(), Key(1)); err != nil {
		s.Errorf("delete after the last release: %v", err)
	}
}

func testUnbalancedRelease(s *suite) {
	tr := s.open(4)
	release := func(key block.Key) (panicked bool) {
		defer func() { panicked = recover() != nil }()
		tr.Release([]block.Key{key})
		return false
	}
	if !release(Key(1)) {
		s.Error("release of an absent block did not panic")
	}
	s.put(tr, Key(1))
	if !release(Key(1)) {
		s.Error("release of a block that is not retained did not panic")
	}
	s.mustRetain(tr, Key(1))
	tr.Release(Keys(1))
	if !release(Key(1)) {
		s.Error("a second release of one retain did not panic")
	}
	s.mustGet(tr, Key(1)) // the tier's locks survived the panics
}

func testCanceled(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	ctx, cause := s.canceled()
	s.wantIs("get", tr.Get(ctx, Key(1), Buffer(s.T, s.imageBytes())), cause)
	s.wantIs("put", tr.Put(ctx, Key(2), s.image(Key(2))), cause)
	s.wantIs("lookup", tr.Lookup(ctx, []block.Key{Key(1)}, make([]tier.State, 1)), cause)
	s.wantIs("delete", tr.Delete(ctx, Key(1)), cause)
	n, err := tr.Retain(ctx, Keys(1))
	s.wantIs("retain", err, cause)
	if n != 0 {
		s.Error("retain answers a hit and an error")
	}
	s.wantMiss(tr, Key(2))
	s.mustGet(tr, Key(1))
}

func testClosed(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	if err := tr.Close(context.WithoutCancel(s.Context())); err != nil {
		s.Fatal(err)
	}
	s.wantIs("get", tr.Get(s.Context(), Key(1), Buffer(s.T, s.imageBytes())), errdefs.ErrClosed)
	s.wantIs("put", tr.Put(s.Context(), Key(2), s.image(Key(2))), errdefs.ErrClosed)
	s.wantIs("lookup", tr.Lookup(s.Context(), []block.Key{Key(1)}, make([]tier.State, 1)), errdefs.ErrClosed)
	s.wantIs("delete", tr.Delete(s.Context(), Key(1)), errdefs.ErrClosed)
	_, err := tr.Retain(s.Context(), Keys(1))
	s.wantIs("retain", err, errdefs.ErrClosed)
	if err := tr.Close(context.WithoutCancel(s.Context())); err != nil {
		s.Errorf("second close: %v", err)
	}
}

func testStats(s *suite) {
	tr := s.open(8)
	if _, ok := s.stats(tr); !ok {
		s.Fatal("the tier does not count")
	}
	for i := range 4 {
		s.put(tr, Key(i))
	}
	for i := range 3 {
		s.mustGet(tr, Key(i))
	}
	s.mustRetain(tr, Key(3))
	s.mustRetain(tr, Key(3))
	tr.Release(Keys(3))
	if s.retain(tr, Key(9)) {
		s.Error("retain of an absent block answers a hit")
	}
	s.wantIs("get", tr.Get(s.Context(), Key(9), Buffer(s.T, s.imageBytes())), errdefs.ErrNotFound)
	st, _ := s.stats(tr)
	want := map[string][2]int64{
		"blocks": {st.Blocks, 4}, "puts": {st.Puts, 4}, "hits": {st.Hits, 3}, "misses": {st.Misses, 2}, "retained": {st.Retained, 1},
		"corrupt": {st.Corrupt, 0}, "evictions": {st.Evictions, 0}, "errors": {st.Errors, 0},
	}
	for name, v := range want {
		if v[0] != v[1] {
			s.Errorf("%s: %d counted, want %d", name, v[0], v[1])
		}
	}
	if n := 4 * s.imageBytes(); st.Bytes < n || st.WrittenBytes < n || st.ReadBytes < 3*s.imageBytes() {
		s.Errorf("%d bytes held, %d written, %d read: too few for 4 blocks of %d", st.Bytes, st.WrittenBytes, st.ReadBytes, s.imageBytes())
	}
	tr.Release(Keys(3))
	if st, _ := s.stats(tr); st.Retained != 0 {
		s.Errorf("%d pins counted at the end, want 0", st.Retained)
	}
}

func testCorrupt(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(1))
	s.put(tr, Key(2))
	for n := int64(1); n <= 2; n++ {
		s.c.Corrupt(s.T, tr, Key(1))
		s.wantIs("get of a corrupt block", tr.Get(s.Context(), Key(1), Buffer(s.T, s.imageBytes())), errdefs.ErrCorrupt)
		s.wantMiss(tr, Key(1))
		if st, ok := s.stats(tr); ok && (st.Corrupt != n || st.Blocks != 1) {
			s.Errorf("%d corrupt and %d blocks are counted, want %d and 1", st.Corrupt, st.Blocks, n)
		}
		s.put(tr, Key(1)) // an intact copy replaces it
		s.mustGet(tr, Key(1))
		s.mustGet(tr, Key(2))
	}
}

func testReopen(s *suite) {
	tr := s.c.Open(s.T, 8)
	for i := range 4 {
		s.put(tr, Key(i))
	}
	if err := tr.Delete(s.Context(), Key(3)); err != nil {
		s.Fatal(err)
	}
	tr = s.c.Reopen(s.T, tr)
	s.Cleanup(func() {
		if err := tr.Close(context.WithoutCancel(s.Context())); err != nil {
			s.Error(err)
		}
	})
	for i := range 3 {
		s.mustGet(tr, Key(i))
	}
	s.wantMiss(tr, Key(3))
	if st, ok := s.stats(tr); ok && st.Blocks != 3 {
		s.Errorf("%d blocks are counted, want 3", st.Blocks)
	}
}

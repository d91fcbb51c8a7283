package tiertest

import (
	"errors"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// openMany opens a tier that implements ManyPutter, or skips the test.
func (s *suite) openMany(capacity int) (tier.Tier, tier.ManyPutter) {
	s.Helper()
	tr := s.open(capacity)
	m, able := tr.(tier.ManyPutter)
	if !able {
		s.Skip("the tier stores one block at a time")
	}
	return tr, m
}

// putMany stores images, or those of keys if none are given. It returns the errors.
func (s *suite) putMany(m tier.ManyPutter, keys []block.Key, images ...mem.Extent) []error {
	s.Helper()
	for i := len(images); i < len(keys); i++ {
		images = append(images, s.image(keys[i]))
	}
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = errors.New("nobody has said what became of it")
	}
	m.PutMany(s.Context(), keys, images, errs)
	return errs
}

func (s *suite) wantPut(errs []error) {
	s.Helper()
	for i, err := range errs {
		if err != nil {
			s.Errorf("put of block %d of %d: %v", i, len(errs), err)
		}
	}
}

func testPutMany(s *suite) {
	tr, m := s.openMany(8)
	s.wantPut(s.putMany(m, nil))
	s.wantPut(s.putMany(m, Keys(0)))
	s.wantPut(s.putMany(m, Keys(3, 1, 0, 5, 2))) // one of them is stored
	for _, i := range []int{0, 1, 2, 3, 5} {
		s.mustGet(tr, Key(i))
	}
	s.wantMiss(tr, Key(4))
	if st, ok := s.stats(tr); ok && (st.Puts != 5 || st.Blocks != 5) {
		s.Errorf("%d puts of %d blocks are counted, want 5 of 5", st.Puts, st.Blocks)
	}
	// A key that occurs twice is put once.
	s.wantPut(s.putMany(m, Keys(6, 7, 6, 6)))
	s.mustGet(tr, Key(6))
	s.mustGet(tr, Key(7))
}

// testPutManyFailsOneByOne checks that a block that cannot be stored does not affect others.
func testPutManyFailsOneByOne(s *suite) {
	tr, m := s.openMany(8)
	last := s.c.Format.Layout.Shards() - 1
	damaged, other := s.image(Key(1)), s.image(Key(9))
	damaged.Bytes()[s.c.Format.Layout.ShardOff(last)] ^= 1
	short := Buffer(s.T, s.imageBytes()-1)
	errs := s.putMany(m, Keys(0, 1, 2, 3, 4), s.image(Key(0)), damaged, other, short)
	for i, want := range []error{nil, errdefs.ErrCorrupt, errdefs.ErrMismatch, errdefs.ErrInvalid, nil} {
		if !errors.Is(errs[i], want) {
			s.Errorf("put of block %d: %v, want %v", i, errs[i], want)
		}
	}
	for i := 1; i < 4; i++ {
		s.wantMiss(tr, Key(i))
	}
	s.mustGet(tr, Key(0))
	s.mustGet(tr, Key(4))

	ended, cause := s.canceled()
	errs = make([]error, 2)
	m.PutMany(ended, Keys(5, 6), []mem.Extent{s.image(Key(5)), s.image(Key(6))}, errs)
	for i, err := range errs {
		s.wantIs("put with a context that has ended", err, cause)
		s.wantMiss(tr, Key(5+i))
	}
	m.PutMany(s.Context(), Keys(5, 6, 7), []mem.Extent{s.image(Key(5))}, errs)
	for _, err := range errs {
		s.wantIs("put of 3 blocks of 1 image", err, errdefs.ErrInvalid)
	}
}

// testPutManyConcurrently checks that concurrent PutMany calls with the same blocks in different
// orders return, and store all blocks.
func testPutManyConcurrently(s *suite) {
	const n = 6
	tr, m := s.openMany(n)
	orders := [][]int{{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {2, 2, 0, 5}, {3, 1, 4}, {0}, {5, 0}}
	images := make([]mem.Extent, n)
	for i := range images {
		images[i] = s.image(Key(i))
	}
	var wg sync.WaitGroup
	for _, order := range orders {
		keys, srcs, errs := Keys(order...), make([]mem.Extent, len(order)), make([]error, len(order))
		for k, i := range order {
			srcs[k] = images[i]
		}
		wg.Go(func() {
			m.PutMany(s.Context(), keys, srcs, errs)
			s.wantPut(errs)
		})
		wg.Go(func() {
			for k := range keys {
				if err := tr.Put(s.Context(), keys[k], srcs[k]); err != nil {
					s.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range n {
		s.mustGet(tr, Key(i))
	}
}

// testRead checks that Read returns the same bytes as Get. Read does not detect wrong shards, but a
// later check does.
func testRead(s *suite) {
	tr := s.open(4)
	r, able := tr.(tier.Reader)
	if !able {
		s.Skip("the tier verifies whatever it reads")
	}
	s.put(tr, Key(1))
	dst := Buffer(s.T, s.imageBytes())
	if err := r.Read(s.Context(), Key(1), dst); err != nil {
		s.Fatal(err)
	}
	if err := Check(s.c.Format, dst.Bytes(), Key(1), 0); err != nil {
		s.Error(err)
	}
	s.wantIs("read of a block that is not there", r.Read(s.Context(), Key(2), dst), errdefs.ErrNotFound)
	s.wantIs("read into too little", r.Read(s.Context(), Key(1), dst.Sub(0, dst.Len-1)), errdefs.ErrInvalid)
	ended, cause := s.canceled()
	s.wantIs("read with a context that has ended", r.Read(ended, Key(1), dst), cause)
	if s.c.Corrupt == nil {
		return
	}
	s.c.Corrupt(s.T, tr, Key(1))
	if err := r.Read(s.Context(), Key(1), dst); err == nil {
		if s.c.Format.VerifyHeader(dst.Bytes(), Key(1)) != nil {
			s.Error("a read brought a header that is wrong")
		}
		if s.c.Format.Verify(dst.Bytes(), Key(1)) == nil {
			s.Error("a damaged block was read, and is right")
		}
		s.wantIs("get of it", tr.Get(s.Context(), Key(1), dst), errdefs.ErrCorrupt)
	} else {
		s.wantIs("read of a damaged block", err, errdefs.ErrCorrupt)
	}
	s.wantMiss(tr, Key(1))
	s.put(tr, Key(1))
	s.mustGet(tr, Key(1))
}

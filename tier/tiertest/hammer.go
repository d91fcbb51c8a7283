package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

func testConcurrentPuts(s *suite) {
	const workers = 8
	tr := s.open(4)
	var wg sync.WaitGroup
	for range workers {
		src := s.image(Key(1))
		wg.Go(func() {
			if err := tr.Put(s.Context(), Key(1), src); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	s.mustGet(tr, Key(1))
	if st, ok := s.stats(tr); ok && (st.Puts != 1 || st.Blocks != 1) {
		s.Errorf("%d puts of %d blocks are counted, want 1 of 1", st.Puts, st.Blocks)
	}
}

func testGetDuringPut(s *suite) {
	const rounds = 20
	tr := s.open(4)
	src, dst := s.image(Key(1)), Buffer(s.T, s.imageBytes())
	for range rounds {
		stored := make(chan error, 1)
		go func() { stored <- tr.Put(s.Context(), Key(1), src) }()
		for done := false; !done; {
			select {
			case err := <-stored:
				if err != nil {
					s.Fatal(err)
				}
				done = true // one more Get, which must succeed
			default:
			}
			err := tr.Get(s.Context(), Key(1), dst)
			if err == nil {
				err = Check(s.c.Format, dst.Bytes(), Key(1), 0)
			} else if !done && errors.Is(err, errdefs.ErrNotFound) {
				continue
			}
			if err != nil {
				s.Error(err)
			}
		}
		if err := tr.Delete(s.Context(), Key(1)); err != nil {
			s.Fatal(err)
		}
	}
}

// testHammer runs all operations concurrently on few keys. Retained blocks must be readable at any
// time.
func testHammer(s *suite) {
	const workers, keys, capacity, rounds = 6, 12, 8, 150
	tr := s.open(capacity)
	var images [keys]mem.Extent
	for i := range images {
		images[i] = s.image(Key(i))
	}
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(w), 11))
		dst := Buffer(s.T, s.imageBytes())
		wg.Go(func() {
			for range rounds {
				i := rng.IntN(keys)
				if err := hammerOnce(s.Context(), s.c.Format, tr, rng.IntN(10), Key(i), images[i], dst); err != nil {
					s.Errorf("key %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	st, ok := s.stats(tr)
	if !ok {
		return
	}
	ready := 0
	for i := range keys {
		if s.state(tr, Key(i)) == tier.Ready {
			ready++
		}
	}
	if st.Retained != 0 || st.Blocks != int64(ready) || st.Corrupt != 0 {
		s.Errorf("%d pins, %d blocks and %d corrupt are counted; want 0, %d and 0", st.Retained, st.Blocks, st.Corrupt, ready)
	}
}

func hammerOnce(ctx context.Context, f block.Format, tr tier.Tier, op int, key block.Key, src, dst mem.Extent) error {
	switch {
	case op < 4:
		return tr.Put(ctx, key, src)
	case op < 7:
		err := tr.Get(ctx, key, dst)
		if errors.Is(err, errdefs.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return Check(f, dst.Bytes(), key, 0)
	case op < 9:
		keys := []block.Key{key}
		if n, err := tr.Retain(ctx, keys); n == 0 {
			return err
		}
		defer tr.Release(keys)
		if err := tr.Get(ctx, key, dst); err != nil {
			return fmt.Errorf("a retained block: %w", err)
		}
		return Check(f, dst.Bytes(), key, 0)
	}
	err := tr.Delete(ctx, key)
	if errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errdefs.ErrBusy) {
		return nil
	}
	return err
}

// testOperationLog runs random operations in sequence and compares each result with a map. It
// prints the operations of a failing seed.
func testOperationLog(s *suite) {
	for seed := range uint64(6) {
		s.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			// With small capacity the model cannot predict which blocks are evicted. With large
			// capacity nothing is evicted.
			capacity := []int{32, 5}[seed%2]
			o := &opLog{suite: newSuite(t, s.c), exact: capacity == 32 || !s.c.Bounded, present: map[int]bool{}, pins: map[int]int{}}
			o.run(rand.New(rand.NewPCG(seed, 5)), capacity)
		})
	}
}

type opLog struct {
	*suite
	exact   bool         // nothing is evicted
	present map[int]bool // put and not deleted since; it may be evicted unless exact
	pins    map[int]int
	log     []string
}

func (o *opLog) run(rng *rand.Rand, capacity int) {
	const keys, steps = 16, 200
	tr := o.open(capacity)
	buf := Buffer(o.T, o.imageBytes())
	defer func() {
		if o.Failed() {
			o.Logf("operations:\n%s", strings.Join(o.log, "\n"))
		}
	}()
	for range steps {
		o.step(tr, rng.IntN(12), rng.IntN(keys), capacity, buf)
		if o.Failed() {
			break
		}
	}
	for k, n := range o.pins {
		for range n {
			tr.Release(Keys(k))
		}
	}
	if st, ok := o.stats(tr); ok && st.Retained != 0 {
		o.Errorf("%d pins are counted at the end, want 0", st.Retained)
	}
}

// sure reports whether the block must be stored.
func (o *opLog) sure(k int) bool { return o.pins[k] > 0 || o.exact && o.present[k] }

func (o *opLog) step(tr tier.Tier, op, k, capacity int, buf mem.Extent) {
	ctx := o.Context()
	note := func(name string, answer any) { o.log = append(o.log, fmt.Sprintf("%s %d: %v", name, k, answer)) }
	switch {
	case op < 4:
		Seal(o.T, o.c.Format, buf.Bytes(), Key(k), 0)
		err := tr.Put(ctx, Key(k), buf)
		note("put", err)
		if err != nil {
			o.Errorf("put %d: %v", k, err)
		}
		o.present[k] = true
	case op < 6:
		err := tr.Get(ctx, Key(k), buf)
		note("get", err)
		o.answered(k, err == nil, "get")
		if err == nil {
			err = Check(o.c.Format, buf.Bytes(), Key(k), 0)
		}
		if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			o.Errorf("get %d: %v", k, err)
		}
	case op < 8:
		if len(o.pins) >= capacity-1 && o.pins[k] == 0 {
			return // the model never pins all space
		}
		hit := o.retain(tr, Key(k))
		note("retain", hit)
		o.answered(k, hit, "retain")
		if hit {
			o.pins[k]++
		}
	case op < 10:
		if o.pins[k] > 0 {
			note("release", nil)
			tr.Release(Keys(k))
			if o.pins[k]--; o.pins[k] == 0 {
				delete(o.pins, k)
			}
		}
	case op < 11:
		state := o.state(tr, Key(k))
		note("lookup", state)
		o.answered(k, state == tier.Ready, "lookup")
	default:
		err := tr.Delete(ctx, Key(k))
		note("delete", err)
		o.deleted(k, err)
	}
}

func (o *opLog) answered(k int, hit bool, what string) {
	if hit && !o.present[k] || !hit && o.sure(k) {
		o.Errorf("%s %d: hit %v; put and not deleted: %v; pins %d", what, k, hit, o.present[k], o.pins[k])
	}
}

func (o *opLog) deleted(k int, err error) {
	allowed := []error{errdefs.ErrNotFound, nil}
	switch {
	case o.pins[k] > 0:
		allowed = []error{errdefs.ErrBusy}
	case o.sure(k):
		allowed = []error{nil}
	case !o.present[k]:
		allowed = []error{errdefs.ErrNotFound}
	}
	if !slices.ContainsFunc(allowed, func(a error) bool { return errors.Is(err, a) }) {
		o.Errorf("delete %d: %v, want one of %v", k, err, allowed)
	}
	if o.pins[k] == 0 {
		delete(o.present, k)
	}
}

package tiertest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Config configures a run of the suite.
type Config struct {
	// Format is the format of the tiers returned by Open. NewFormat returns a suitable one.
	Format block.Format
	// Open returns an empty tier with space for capacity blocks. The suite closes it. Open
	// registers any other cleanup with t.Cleanup.
	Open func(t *testing.T, capacity int) tier.Tier
	// Bounded is set if the tier stores at most capacity blocks and frees space within Put.
	Bounded bool
	// Corrupt changes the stored bytes of a block. It is nil if the tier stores no bytes.
	Corrupt func(t *testing.T, tr tier.Tier, key block.Key)
	// Reopen closes a tier and opens it again with its stored blocks. It is nil if the tier does
	// not keep them.
	Reopen func(t *testing.T, tr tier.Tier) tier.Tier
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	t.Helper()
	tests := []struct {
		name   string
		run    func(s *suite)
		bubble bool
		skip   bool // the tier lacks the tested ability
	}{
		{name: "RoundTrip", run: testRoundTrip},
		{name: "Miss", run: testMiss},
		{name: "Lookup", run: testLookup},
		{name: "PutTwice", run: testPutTwice},
		{name: "PutRefusesBadImages", run: testPutRefuses},
		{name: "RefusesBadExtents", run: testBadExtents},
		{name: "Delete", run: testDelete},
		{name: "RetainBlocksDelete", run: testRetain},
		{name: "RetainRun", run: testRetainRun},
		{name: "RetainRunCanceled", run: testRetainRunCanceled},
		{name: "ReleaseWithoutRetainPanics", run: testUnbalancedRelease},
		{name: "ConcurrentPutsOfOneKey", run: testConcurrentPuts},
		{name: "GetDuringPut", run: testGetDuringPut},
		{name: "CanceledContext", run: testCanceled},
		{name: "UseAfterClose", run: testClosed},
		{name: "PutMany", run: testPutMany},
		{name: "PutManyFailsOneByOne", run: testPutManyFailsOneByOne},
		{name: "PutManyConcurrently", run: testPutManyConcurrently},
		{name: "Read", run: testRead},
		{name: "Stats", run: testStats},
		{name: "Explain", run: testExplain},
		{name: "Hammer", run: testHammer},
		{name: "OperationLog", run: testOperationLog},
		{name: "Corrupt", run: testCorrupt, skip: c.Corrupt == nil},
		{name: "Reopen", run: testReopen, skip: c.Reopen == nil},
		{name: "Pin", run: testPin},
		{name: "PinReopened", run: testPinReopened, skip: c.Reopen == nil},
		{name: "PinOfCorruptBlock", run: testPinCorrupt, skip: c.Corrupt == nil},
		{name: "PinnedIsNotEvicted", run: testPinnedStays, skip: !c.Bounded},
		{name: "Eviction", run: testEviction, skip: !c.Bounded},
		{name: "RetainedIsNotEvicted", run: testRetainedStays, skip: !c.Bounded},
		{name: "OrderOfEviction", run: testOrder, skip: !c.Bounded},
		{name: "OrderOfEvictionAfterReopen", run: testOrderReopened, skip: !c.Bounded || c.Reopen == nil},
		{name: "PutWaitsForPlace", run: testPutWaits, bubble: true, skip: !c.Bounded},
	}
	for _, tt := range tests {
		if tt.skip {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			if tt.bubble {
				synctest.Test(t, func(t *testing.T) { tt.run(newSuite(t, c)) })
				return
			}
			tt.run(newSuite(t, c))
		})
	}
	runSlots(t, c)
}

// suite is the state of one test.
type suite struct {
	*testing.T
	c Config
}

func newSuite(t *testing.T, c Config) *suite {
	t.Helper()
	return &suite{T: t, c: c}
}

// open opens a tier. The end of the test closes it; closing must not fail.
func (s *suite) open(capacity int) tier.Tier {
	s.Helper()
	tr := s.c.Open(s.T, capacity)
	s.Cleanup(func() {
		if err := tr.Close(context.WithoutCancel(s.Context())); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	return tr
}

func (s *suite) imageBytes() int64 { return s.c.Format.Layout.ImageBytes() }

// image returns the sealed image of key.
func (s *suite) image(key block.Key) mem.Extent {
	s.Helper()
	e := Buffer(s.T, s.imageBytes())
	Seal(s.T, s.c.Format, e.Bytes(), key, 0)
	return e
}

func (s *suite) put(tr tier.Tier, key block.Key) {
	s.Helper()
	if err := tr.Put(s.Context(), key, s.image(key)); err != nil {
		s.Fatal(err)
	}
}

// mustGet reads the block and checks its image.
func (s *suite) mustGet(tr tier.Tier, key block.Key) {
	s.Helper()
	dst := Buffer(s.T, s.imageBytes())
	if err := tr.Get(s.Context(), key, dst); err != nil {
		s.Fatal(err)
	}
	if err := Check(s.c.Format, dst.Bytes(), key, 0); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) wantMiss(tr tier.Tier, key block.Key) {
	s.Helper()
	if err := tr.Get(s.Context(), key, Buffer(s.T, s.imageBytes())); !errors.Is(err, errdefs.ErrNotFound) {
		s.Errorf("get block %s: %v, want ErrNotFound", key, err)
	}
	if state := s.state(tr, key); state == tier.Ready {
		s.Errorf("lookup of block %s answers %s", key, state)
	}
	if s.retain(tr, key) {
		s.Errorf("retain of block %s answers a hit", key)
		tr.Release([]block.Key{key})
	}
}

func (s *suite) state(tr tier.Tier, key block.Key) tier.State {
	s.Helper()
	states := make([]tier.State, 1)
	if err := tr.Lookup(s.Context(), []block.Key{key}, states); err != nil {
		s.Fatal(err)
	}
	return states[0]
}

func (s *suite) retain(tr tier.Tier, key block.Key) bool {
	s.Helper()
	n, err := tr.Retain(s.Context(), []block.Key{key})
	if err != nil {
		s.Fatal(err)
	}
	return n == 1
}

// mustRetain pins the block, at the latest until the end of the test.
func (s *suite) mustRetain(tr tier.Tier, key block.Key) {
	s.Helper()
	if !s.retain(tr, key) {
		s.Fatalf("block %s cannot be retained", key)
	}
}

func (s *suite) stats(tr tier.Tier) (tier.Stats, bool) {
	st, ok := tr.(tier.Statter)
	if !ok {
		return tier.Stats{}, false
	}
	return st.Stats(), true
}

func (s *suite) wantIs(what string, err error, targets ...error) {
	s.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			s.Errorf("%s: %v, want %v", what, err, target)
		}
	}
}

// canceled returns a canceled context and its cause.
func (s *suite) canceled() (context.Context, error) {
	cause := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(s.Context())
	cancel(cause)
	return ctx, cause
}

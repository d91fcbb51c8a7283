package index_test

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// ordered is a file tier that records the order of blocks.
type ordered struct {
	*file.Tier
	order *tier.Order
	used  [][]block.Key
	at    []tier.Place
}

func (o *ordered) SetOrder(order *tier.Order) { o.order = order }

func (o *ordered) Use(keys []block.Key, at tier.Place) {
	o.used, o.at = append(o.used, slices.Clone(keys)), append(o.at, at)
}

// wantPlace checks that block i follows block i-1.
func (o *ordered) wantPlace(t *testing.T, i int) {
	t.Helper()
	if got, want := o.order.Place(tiertest.Key(i)), (tier.Place{Before: tiertest.Key(i - 1), Position: i}); got != want {
		t.Errorf("block %d is at %+v, want %+v", i, got, want)
	}
}

// A lease records the order of the blocks that are not in the first tier, and reports all found
// blocks to the lower tiers.
func TestLeaseNotesTheOrder(t *testing.T) {
	below := new(ordered)
	r := newRig(t, 8, func(r *rig, c *index.Config) {
		below.Tier = r.file
		c.Tiers = []tier.Tier{r.cache, below}
	})
	r.put(r.cache, 0, 1, 2, 3)
	r.put(r.file, 4, 5)
	r.lease("ccccff", span(0, 10)...).Release()
	if len(below.used) != 1 || !slices.Equal(below.used[0], tiertest.Keys(span(0, 6)...)) || below.at[0] != (tier.Place{}) {
		t.Errorf("the tier got the order %v at %v", below.used, below.at)
	}
	for i := 4; i < 10; i++ {
		below.wantPlace(t, i)
	}

	// A dump of the missing blocks, and a dump that names its previous block.
	r.x.Use(block.Key{}, tiertest.Keys(6, 7, 8, 9))
	r.x.Use(tiertest.Key(9), tiertest.Keys(10, 11))
	for i := 6; i < 12; i++ {
		below.wantPlace(t, i)
	}
	want := []tier.Place{{}, {Before: tiertest.Key(5), Position: 6}, {Before: tiertest.Key(9), Position: 10}}
	if !slices.Equal(below.at, want) {
		t.Errorf("used at %v, want %v", below.at, want)
	}
}

package tier_test

import (
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func key(i int) (k block.Key) {
	k[0], k[1] = byte(i), byte(i>>8)
	k[31] = 1
	return k
}

func keys(from, to int) (out []block.Key) {
	for i := from; i < to; i++ {
		out = append(out, key(i))
	}
	return out
}

func wantPlace(t *testing.T, o *tier.Order, i int, want tier.Place) {
	t.Helper()
	if got := o.Place(key(i)); got != want {
		t.Errorf("block %d is at %+v, want %+v", i, got, want)
	}
}

func TestOrderUsesThePreviousBlock(t *testing.T) {
	o := tier.NewOrder(100)
	o.Note(keys(0, 5), tier.Place{})
	wantPlace(t, o, 0, tier.Place{})
	for i := 1; i < 5; i++ {
		wantPlace(t, o, i, tier.Place{Before: key(i - 1), Position: i})
	}
	wantPlace(t, o, 5, tier.Place{})
	for i, want := range []block.Key{key(1), key(2), key(3), key(4), {}, {}} {
		if _, got := o.Between(key(i)); got != want {
			t.Errorf("block %s follows block %d", got, i)
		}
	}

	// A run that names its previous block, and a run that is known already.
	o.Note(keys(5, 8), o.After(key(4), key(5)))
	o.Note(keys(6, 8), o.After(block.Key{}, key(6)))
	for i := 5; i < 8; i++ {
		wantPlace(t, o, i, tier.Place{Before: key(i - 1), Position: i})
	}

	// A block whose previous block is unknown has at least position 1.
	o.Note(keys(20, 22), o.After(key(19), key(20)))
	wantPlace(t, o, 20, tier.Place{Before: key(19), Position: 1})
	wantPlace(t, o, 21, tier.Place{Before: key(20), Position: 2})
	// Its position is corrected when more is known, and stays when a later call gives less
	// information.
	o.Note(keys(10, 22), tier.Place{Position: 10, Before: key(9)})
	o.Note(keys(20, 22), tier.Place{})
	wantPlace(t, o, 21, tier.Place{Before: key(20), Position: 21})

	o.Note(keys(30, 31), tier.Place{})
	if _, got := o.Between(key(21)); got != (block.Key{}) {
		t.Errorf("block %s, of another prompt, follows block 21", got)
	}

	var none *tier.Order
	none.Note(keys(0, 1), tier.Place{})
	wantPlace(t, none, 0, tier.Place{})
	if _, got := none.Between(key(0)); got != (block.Key{}) {
		t.Errorf("a nil order has the successor %s", got)
	}
}

func TestOrderForgetsTheOldest(t *testing.T) {
	const most = 16
	o := tier.NewOrder(most)
	for i := range 1000 {
		at := tier.Place{}
		if i > 0 {
			at = o.After(key(i-1), key(i))
		}
		o.Note(keys(i, i+1), at)
		wantPlace(t, o, i, tier.Place{Before: at.Before, Position: i})
	}
	known := 0
	for i := range 1000 {
		if p := o.Place(key(i)); p.Position != 0 {
			known++
			if p.Before != (block.Key{}) && p.Before != key(i-1) {
				t.Errorf("block %d follows %s", i, p.Before)
			}
		}
	}
	if known == 0 || known > most {
		t.Errorf("%d blocks are known, of at most %d", known, most)
	}
	// The oldest remaining link of a run has lost its previous block.
	o = tier.NewOrder(most)
	o.Note(keys(1000, 1000+2*most), tier.Place{Position: 1000})
	wantPlace(t, o, 1000+most, tier.Place{Position: 1000 + most})
	wantPlace(t, o, 1000+most+1, tier.Place{Before: key(1000 + most), Position: 1000 + most + 1})
}

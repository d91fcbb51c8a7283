package bench

import (
	"context"

	"github.com/kvlane/kvlane/mem"
)

// formNames is the order of comparison.
var formNames = []Form{Lists, Pages, PagesSummed}

// SubmitBlocks and SubmitBytes are the number and size of the blocks of the batch for which the
// cost of Submit is measured.
const (
	SubmitBlocks = 10_000
	SubmitBytes  = 4 << 10
)

// formSizes are the block sizes at which the cost of checksums is measured.
var formSizes = []int64{4 << 10, 64 << 10, 1 << 20}

// formPlaces returns the places at which forms are compared: SubmitBlocks if the pool has as many,
// and for every size as many blocks as a repetition may move. Slots of a store are included.
func (o *Options) formPlaces() []place {
	var all []place
	add := func(size int64, count int, l Layout) {
		for _, d := range []Direction{ToDevice, ToHost} {
			all = append(all, place{Cell{size, count}, d, l})
		}
	}
	if SubmitBlocks*SubmitBytes <= o.PoolBytes {
		add(SubmitBytes, SubmitBlocks, HostScattered)
	}
	for _, size := range formSizes {
		if size%mem.LeafBytes == 0 && size <= o.Bytes {
			add(size, o.most(size), HostScattered)
		}
	}
	for _, size := range slotSizes {
		if row := o.row(HostSlots, size); row > 1 && o.most(size) >= row {
			add(size, o.most(size)/row*row, HostSlots)
		}
	}
	return all
}

// forms compares lists, page lists, and page lists with checksums, with the stream's own choice of
// path.
func (b *bench) forms(ctx context.Context) error {
	var who []entry
	for _, f := range formNames {
		who = append(who, entry{Contender{Policy: Throughput}, f})
	}
	places := b.o.formPlaces()
	for len(places) > 0 {
		// Each place is one batch, as far as possible.
		points, err := b.measure(ctx, places[:2], who, max(b.o.BatchBlocks, SubmitBlocks))
		b.rep.Forms = append(b.rep.Forms, points...)
		if err != nil {
			return err
		}
		places = places[2:]
	}
	return nil
}

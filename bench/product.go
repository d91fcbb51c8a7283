package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Product is work that keeps the device's multiprocessors busy beside the copies, on a queue of its own: a matrix product.
type Product interface {
	// Describe names it: "8192 x 8192 x 8192 bf16".
	Describe() string
	// Operations is how many floating-point operations one product takes.
	Operations() float64
	// Enqueue enqueues n products.
	Enqueue(n int) error
	// Record returns an event that is done when everything enqueued so far is.
	Record() (device.Event, error)
}

// MinTFLOPS is what the product must reach alone on an H100 for the losses to mean anything: a product that leaves the
// multiprocessors waiting has nothing to lose.
const MinTFLOPS = 700

const (
	// besideDepth is how many batches are submitted and not done.
	besideDepth = 4
	// productWarmup is how long the product runs before it is measured: its first run loads kernels, and the clock of a GPU
	// takes that long to settle.
	productWarmup = 300 * time.Millisecond
	// gauged is how many products are run together to see how long one takes.
	gauged = 8
)

var besideDirections = []Direction{ToDevice, ToHost}

// besideTime is about how long that takes which runs beside the product: the windows, and a third for what lies between them.
func (o *Options) besideTime() time.Duration {
	if o.Product == nil {
		return 0
	}
	windows := len(o.BesideContenders) * len(besideDirections) * 2 * o.Pairs
	return 2*productWarmup + time.Duration(windows)*o.Window*4/3
}

// beside measures every contender beside the product.
func (b *bench) beside(ctx context.Context) error {
	st := &stage{product: b.o.Product, n: 1, now: b.o.now}
	if err := st.gauge(ctx, b.o.Window); err != nil {
		return err
	}
	b.rep.Product = &ProductFacts{
		What: b.o.Product.Describe(), Pairs: b.o.Pairs, PerWindow: st.n, BlockBytes: b.o.BesideSize,
		BatchBytes: int64(b.besideBlocks()) * b.o.BesideSize, Batches: besideDepth,
		Layout: b.o.BesideLayout,
	}
	var alone []float64
	defer func() {
		b.rep.Product.AloneTFLOPS = measure.Median(alone)
		b.rep.Product.Counts = b.rep.Product.AloneTFLOPS >= MinTFLOPS
	}()
	for _, who := range b.o.BesideContenders {
		if b.rep.missing(who) {
			b.done += len(besideDirections)
			continue
		}
		for i, dir := range besideDirections {
			b.step("%s %s beside the product", who.Name(), dir)
			loss, tflops, err := b.losses(ctx, st, who, dir)
			if errors.Is(err, errdefs.ErrNotSupported) {
				b.rep.miss(who, err)
				b.done += len(besideDirections) - i - 1
				break
			}
			if err != nil {
				return fmt.Errorf("path %s, %s: %w", who.Name(), dir, err)
			}
			b.rep.Product.Losses = append(b.rep.Product.Losses, loss)
			alone = append(alone, tflops...)
		}
	}
	return nil
}

// besideBlocks is how many blocks a batch beside the product has.
func (b *bench) besideBlocks() int {
	n := int(b.o.BesideBytes / b.o.BesideSize)
	return n - n%b.o.row(b.o.BesideLayout, b.o.BesideSize)
}

// losses measures what a contender costs the product. It returns the product's rates alone, too.
func (b *bench) losses(ctx context.Context, st *stage, who Contender, dir Direction) (Loss, []float64, error) {
	var l Loss
	var alone []float64
	err := b.withStream(who, func(s stream.Stream) (err error) {
		t := b.newBatches(s, dir)
		l, alone, err = st.loss(ctx, &traffic{work: t.run}, b.o.Pairs)
		l.Path, l.Traveled, l.Direction = who.Name(), t.traveled.String(), dir
		return err
	})
	return l, alone, err
}

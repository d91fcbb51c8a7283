package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

// large makes the large copies C, with which all points are compared.
type large struct {
	rig     *rig
	movers  []mover
	in, out *plan
	samples map[Direction][]float64 // rates in GB/s
}

// newLarge opens two queues and makes one copy in each direction. These copies are verified and not
// counted.
func (b *bench) newLarge(ctx context.Context, bytes int64) (*large, error) {
	l := &large{rig: b.rig, samples: make(map[Direction][]float64)}
	for range 2 {
		m, err := b.openMover(Contender{Baseline: OneCopyEach})
		if err != nil {
			return nil, err
		}
		l.movers = append(l.movers, m)
	}
	c := Cell{Size: bytes, Count: 1}
	l.in = b.newPlan(Lists, 1, c, ToDevice, BothContiguous)
	l.out = b.newPlan(Lists, 1, c, ToHost, BothContiguous)
	l.in.Write()
	l.out.Write()
	if err := b.rig.poison(ctx, l.in, l.out); err != nil {
		return nil, err
	}
	if _, err := l.copy(ctx, Both); err != nil {
		return nil, fmt.Errorf("one large copy: %w", err)
	}
	if err := b.check(ctx, []*plan{l.in, l.out}); err != nil {
		return nil, fmt.Errorf("one large copy: %w", err)
	}
	return l, nil
}

func (l *large) copy(ctx context.Context, dir Direction) (gbps float64, err error) {
	plans := map[Direction][]*plan{ToDevice: {l.in}, ToHost: {l.out}, Both: {l.in, l.out}}[dir]
	runner := newPlanRunner(ctx, l.movers, plans)
	defer runner.stop()
	took, err := runner.move(ctx)
	return GBps(runner.bytes(), took), err
}

// sample makes a counted copy and returns its rate.
func (l *large) sample(ctx context.Context, dir Direction) (float64, error) {
	gbps, err := l.copy(ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("one large copy: %w", err)
	}
	l.samples[dir] = append(l.samples[dir], gbps)
	return gbps, nil
}

// rates summarizes the samples of a direction.
func (l *large) rates(dir Direction) Rate {
	v := append([]float64(nil), l.samples[dir]...)
	return Rate{GBps: measure.Median(v), Low: measure.Quantile(v, 0.05), High: measure.Quantile(v, 0.95), Samples: len(v)}
}

// GBps returns the rate in units of 1e9 bytes per second.
func GBps(bytes int64, took time.Duration) float64 {
	return float64(bytes) / float64(max(took.Nanoseconds(), 1))
}

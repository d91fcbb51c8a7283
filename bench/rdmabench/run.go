package rdmabench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// Run measures every operation at every size. It fails with ErrCorrupt if wrong bytes arrived, with ErrInvalid if the budget is over before
// anything was measured, and with the context's cause if ctx ends: then the report is of what was measured until then, if that is anything,
// and says so. It must have the NIC to itself for its figures to mean something.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("measure NIC: %w", err)
	}
	info := o.NIC.Device().Info()
	r := &Report{
		Format: Format, Provider: info.Provider, NIC: info.Name, Firmware: info.Firmware, Port: max(o.Connect.Port, 1),
		GIDIndex: o.Connect.GIDIndex, MTUBytes: o.Connect.MTU.Bytes(), Local: o.Local.Kind().String(), Remote: o.Remote.Kind().String(),
		CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second),
		TxDepth: txDepth, RxDepth: rxDepth, PostList: postList,
		Bandwidth: []Bandwidth{}, Latency: []Latency{}, BudgetSeconds: o.Budget.Seconds(),
	}
	var points []point
	var names []string
	for _, op := range o.Ops {
		for _, size := range o.Sizes {
			points = append(points, point{op: op, size: size})
			names = append(names, fmt.Sprintf("%s of %s", op, present.Size(size)))
		}
	}
	budget := bench.NewBudget(o.Budget, o.Began, time.Now, len(points))
	var err error
	r.LeftOut, err = budget.Each(ctx, names, o.Progress, o.Notice, func(ctx context.Context, k int, _ time.Time) error { return points[k].measure(ctx, &o) })
	for i := range points {
		if p := &points[i]; p.done {
			r.Bandwidth, r.Latency = append(r.Bandwidth, p.bandwidth), append(r.Latency, p.latency)
		}
	}
	return bench.Outcome(ctx, budget, r, &r.Incomplete, fmt.Sprintf("measure NIC %s (%s)", info.Name, info.Provider), err)
}

// point is one operation at one size, and what was measured of it.
type point struct {
	op        Op
	size      int64
	bandwidth Bandwidth
	latency   Latency
	done      bool
}

// measure measures it each time by a pair of its own, so that what one leaves posted is not in the way of the next.
func (at *point) measure(ctx context.Context, o *Options) error {
	op, size := at.op, at.size
	err := withPair(o, func(p *pair) error {
		if err := p.prepare(ctx, o, op, size); err != nil {
			return err
		}
		trains, err := p.bandwidth(ctx, op, size, o.Iterations)
		if err != nil {
			return fmt.Errorf("bandwidth: %w", err)
		}
		b := &at.bandwidth
		*b = Bandwidth{Op: op, Bytes: size, Iterations: o.Iterations}
		b.PeakMiBps, b.MiBps, b.Mpps = rates(trains, size)
		return p.check(ctx, o, op, size)
	})
	if err != nil {
		return err
	}
	err = withPair(o, func(p *pair) error {
		times, err := p.latency(ctx, op, size, warmUp+o.Iterations)
		if err != nil {
			return fmt.Errorf("latency: %w", err)
		}
		at.latency = summarize(op, size, times[warmUp:])
		return nil
	})
	at.done = err == nil
	return err
}

func withPair(o *Options, use func(*pair) error) (err error) {
	p, err := openPair(o)
	if err != nil {
		return err
	}
	defer func() {
		failed := p.close()
		if failed != nil && errors.Is(err, bench.ErrOverBudget) {
			err = nil // joined with it, the failure to close would pass as a point left out
		}
		err = errors.Join(err, failed)
	}()
	return use(p)
}

// fill writes the pattern of an operation and size: no two are alike, so that what an earlier one left cannot pass.
func fill(b []byte, op Op) {
	word := uint64(op[0])<<56 | uint64(len(b))
	for i := range b {
		if i%8 == 0 {
			word++
		}
		b[i] = byte(device.Mix64(word) >> (8 * (i % 8)))
	}
}

// prepare writes the pattern to where the operation takes it from, and moves a few messages that do not count.
func (p *pair) prepare(ctx context.Context, o *Options, op Op, size int64) error {
	local := o.Local.Bytes()
	fill(local[:size], op)
	if op == Read {
		if err := p.repeat(ctx, Write, 0, size, 1, nil); err != nil {
			return err
		}
	}
	warm := op
	if op == Send { // which needs receives
		warm = Write
	}
	if err := p.repeat(ctx, warm, size, size, warmUp, nil); err != nil {
		return err
	}
	clear(local[size : 2*size])
	return nil
}

// check reads back what was written or sent, and compares it, or what was read, with the pattern.
func (p *pair) check(ctx context.Context, o *Options, op Op, size int64) error {
	if op != Read {
		if err := p.repeat(ctx, Read, size, size, 1, nil); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
	}
	local := o.Local.Bytes()
	for i := range size {
		if local[i] != local[size+i] {
			return fmt.Errorf("byte %d is %#02x in place of %#02x: %w", i, local[size+i], local[i], errdefs.ErrCorrupt)
		}
	}
	return nil
}

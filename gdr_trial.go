package kvlane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// How long and by how much NICs are tried: some 0.4 s where copies are as fast as a bus.
const (
	trialBatchBytes = 8 << 20
	trialBatchMax   = 64 // blocks
	trialDepth      = 4  // batches under way
	trialStep       = 20 * time.Millisecond
	trialRounds     = 5
	trialTimeout    = 10 * time.Second
)

// trialMargin is how many times as fast as copy streams NICs have to be before they are taken.
const trialMargin = 1.05

// trial is what was found of one direction, in 1e9 bytes a second.
type trial struct{ nic, copies float64 }

func (r trial) byNIC() bool { return r.nic > trialMargin*r.copies }

func (r trial) String() string {
	return fmt.Sprintf("%.2f GB/s by NIC, %.2f by copy streams", r.nic, r.copies)
}

// chooseNICs takes n for what it is faster for than copy streams, and otherwise closes it. What cannot be closed, since a NIC
// does not come to rest, is closed with the engine.
func (e *Engine) chooseNICs(ctx context.Context, n nicStack) {
	rig := &trialRig{}
	loads, dumps, err := e.tryNICs(ctx, n, rig)
	err = errors.Join(err, rig.close(context.WithoutCancel(ctx)))
	switch {
	case err != nil:
		e.noteWithoutNIC("one was tried: " + err.Error())
	case loads.byNIC() || dumps.byNIC():
		e.note(fmt.Sprintf("NICs were tried: loads %s; dumps %s", loads, dumps))
		e.useNICs(n, loads.byNIC(), dumps.byNIC())
		return
	default:
		e.noteWithoutNIC(fmt.Sprintf("one was tried and is no faster: loads %s; dumps %s", loads, dumps))
	}
	if len(rig.closers) == 0 {
		err = n.close(context.WithoutCancel(ctx))
		if err == nil {
			return
		}
		e.noteWithoutNIC("those that were tried are still open: " + err.Error())
	}
	e.onClose(n.close)
	e.onClose(rig.close)
}

// tryNICs measures how fast n and copy streams carry loads and dumps of whole blocks of the store's, which are scattered over
// the device. What does not make checksums on the way is charged a CPU's pass over the bytes, as the planner charges it. The
// caller closes the rig.
func (e *Engine) tryNICs(ctx context.Context, n nicStack, rig *trialRig) (loads, dumps trial, err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	if err := rig.open(e, n); err != nil {
		return loads, dumps, err
	}
	steps := []struct {
		rate    *float64
		s       stream.Stream
		batches []*mem.Batch
	}{
		{&loads.nic, rig.nic, rig.loads},
		{&loads.copies, rig.copies, rig.loads},
		{&dumps.nic, rig.nic, rig.dumps},
		{&dumps.copies, rig.copies, rig.dumps},
	}
	rates := make(map[*float64][]float64)
	for range trialRounds {
		for _, step := range steps { // in turn, so that what disturbs, disturbs all
			gbps, err := rig.step(ctx, step.s, step.batches)
			if err != nil {
				return loads, dumps, err
			}
			rates[step.rate] = append(rates[step.rate], gbps)
		}
	}
	for rate, all := range rates {
		slices.Sort(all)
		*rate = all[len(all)/2]
	}
	return loads, dumps, nil
}

// trialRig is the memory and the streams of a trial.
type trialRig struct {
	nic, copies  stream.Stream
	loads, dumps []*mem.Batch
	sumGBps      float64
	closers      []func(context.Context) error // in order of acquiring
}

func (r *trialRig) onClose(f func(context.Context) error) { r.closers = append(r.closers, f) }

func (r *trialRig) open(e *Engine, n nicStack) error {
	r.sumGBps = e.planner.Profile().SumGBps
	l := e.cfg.Layout
	blocks := min(max(trialBatchBytes/l.ImageBytes(), 1), trialBatchMax)
	kv, err := e.dev.Alloc(blocks*l.DataBytes(), device.AllocOptions{})
	if err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return e.dev.Free(kv) })
	host, err := e.dev.AllocHost(blocks * l.ImageBytes())
	if err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return e.dev.Free(host) })
	if err := n.register(kv, host); err != nil {
		return err
	}
	r.onClose(func(ctx context.Context) error { return n.unregister(ctx, kv, host) })
	r.loads = e.trialBatches(mem.ToPages, kv, host, int(blocks))
	r.dumps = e.trialBatches(mem.ToSlots, kv, host, int(blocks))
	if r.nic, err = n.openStream(); err != nil {
		return err
	}
	r.onClose(r.nic.Close)
	if r.copies, err = e.OpenStream(); err != nil {
		return err
	}
	r.onClose(r.copies.Close)
	return nil
}

// close gives everything back in reverse order. It stops at what fails twice, as what is below may be in use, and may be
// called again.
func (r *trialRig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	var told error // streams may tell why they broke, and be closed all the same
	for len(r.closers) > 0 {
		last := len(r.closers) - 1
		if err := r.closers[last](ctx); err != nil {
			told = errors.Join(told, err)
			if ctx.Err() != nil || r.closers[last](ctx) != nil {
				return told
			}
		}
		r.closers = r.closers[:last]
	}
	return told
}

// trialBatches returns batches of the same copies: blocks in order in the host's memory, and in any order on the device.
func (e *Engine) trialBatches(dir mem.Direction, kv, host *mem.Region, blocks int) []*mem.Batch {
	l := e.cfg.Layout
	g := mem.PageGroup{Slots: mem.Slots{Region: host, Stride: l.ImageBytes()}}
	base := int64(0)
	for i := range l.Shards() {
		n := l.ShardBytes(i)
		g.Planes = append(g.Planes, mem.Plane{Region: kv, Base: base, Stride: n, Bytes: n, SlotOff: l.ShardOff(i)})
		base += n * int64(blocks)
	}
	for slot, page := range rand.New(rand.NewPCG(1, 1)).Perm(blocks) {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: uint32(page), Slot: uint32(slot)})
	}
	batches := make([]*mem.Batch, trialDepth)
	for i := range batches {
		p := &mem.Paged{Dir: dir, Groups: []mem.PageGroup{g}}
		if n, ok := p.Leaves(); ok && (dir == mem.ToSlots || e.cfg.Store.Verify != store.VerifyFill) {
			p.Sums = make([]uint64, n)
		}
		batches[i] = &mem.Batch{Paged: p}
	}
	return batches
}

// step keeps batches under way for a while and returns at what rate they went, in 1e9 bytes a second.
func (r *trialRig) step(ctx context.Context, s stream.Stream, batches []*mem.Batch) (float64, error) {
	var bytes int64
	var sums float64 // ns of a CPU
	tickets := make([]*stream.Ticket, len(batches))
	wait := func(i int) error {
		if err := tickets[i].Wait(ctx); err != nil {
			return err
		}
		bytes += batches[i].Bytes()
		if batches[i].Paged.Sums != nil && !tickets[i].Completion().Summed && r.sumGBps > 0 {
			sums += float64(batches[i].Bytes()) / r.sumGBps
		}
		tickets[i] = nil
		return nil
	}
	began := time.Now()
	for n := 0; n < len(batches) || time.Since(began) < trialStep; n++ {
		i := n % len(batches)
		if tickets[i] != nil {
			if err := wait(i); err != nil {
				return 0, err
			}
		}
		t, err := s.Submit(ctx, batches[i])
		if err != nil {
			return 0, err
		}
		tickets[i] = t
	}
	for i := range tickets {
		if err := wait(i); err != nil {
			return 0, err
		}
	}
	return float64(bytes) / (float64(time.Since(began).Nanoseconds()) + sums), nil
}

package capi

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/store"
)

// Flags of loads and dumps.
const (
	Layerwise uint32 = 1
	Awaited   uint32 = 2
	Promote   uint32 = 4 // kvlane.PromoteAll
	Bypass    uint32 = 8 // kvlane.PromoteNone
)

// Values for the parameter of Wait. Zero and above are layers.
const (
	Done       int32 = -1
	SourceFree int32 = -2
	Published  int32 = -3
)

// Result is the result of one block: a kvl_result of kvlane.h.
type Result struct {
	Status    Status
	Undefined uint32
}

// task is a load, a dump or a prefetch.
type task struct {
	engine *engine
	op     operation
	load   *kvlane.LoadTask // nil for other tasks
	dump   *kvlane.DumpTask // nil for other tasks
	blocks int
}

// operation is the interface that all tasks share.
type operation interface {
	Done() <-chan struct{}
	Errs() []error
	Cancel()
}

func (*task) kind() kind   { return taskKind }
func (t *task) of() object { return t.engine }

// pair combines keys and pages to refs and calls start with them. start must not keep the refs.
func (l *Library) pair(keys []kvlane.Key, pages []uint32, start func([]kvlane.Ref) error) error {
	refs, ok := l.refs.Get().(*[]kvlane.Ref)
	if !ok {
		refs = new([]kvlane.Ref)
	}
	defer l.refs.Put(refs)
	*refs = (*refs)[:0]
	for i := range keys {
		*refs = append(*refs, kvlane.Ref{Key: keys[i], Page: pages[i]})
	}
	return start(*refs)
}

// transfer finds the engine and the cache for a load or dump and checks the arguments.
func (l *Library) transfer(eh, ch Handle, keys []kvlane.Key, pages []uint32, flags, allowed uint32) (*engine, *cache, error) {
	e, err := find[*engine](&l.handles, eh)
	if err != nil {
		return nil, nil, err
	}
	c, err := find[*cache](&l.handles, ch)
	switch {
	case err != nil:
		return nil, nil, err
	case len(keys) != len(pages):
		return nil, nil, invalid("%d keys for %d pages", len(keys), len(pages))
	case flags&^allowed != 0:
		return nil, nil, invalid("unknown flags %#x", flags&^allowed)
	}
	return e, c, nil
}

// blockBefore returns the first element of before, or the zero key if before is empty.
func blockBefore(before []kvlane.Key) (key kvlane.Key) {
	if len(before) > 0 {
		key = before[0]
	}
	return key
}

// Load starts a load of blocks to pages. If after is not nil, it starts after the work enqueued on
// this stream. leaseHandle may be zero. before is the block that precedes keys in the prompt, if
// any. If too many tasks are in progress, the status of the error is Busy.
func (l *Library) Load(eh, leaseHandle, ch Handle, keys []kvlane.Key, pages []uint32, flags uint32, after *uint64, before ...kvlane.Key) (Handle, error) {
	e, c, err := l.transfer(eh, ch, keys, pages, flags, Layerwise|Awaited|Promote|Bypass)
	if err != nil {
		return 0, err
	}
	var under *kvlane.Lease
	if leaseHandle != 0 {
		leased, err := find[*lease](&l.handles, leaseHandle)
		if err != nil {
			return 0, err
		}
		under = leased.Lease
	}
	if flags&Promote != 0 && flags&Bypass != 0 {
		return 0, invalid("a load that promotes all blocks and none")
	}
	o := kvlane.LoadOptions{Layerwise: flags&Layerwise != 0, Awaited: flags&Awaited != 0, Before: blockBefore(before)}
	switch {
	case flags&Promote != 0:
		o.Promotion = kvlane.PromoteAll
	case flags&Bypass != 0:
		o.Promotion = kvlane.PromoteNone
	}
	if o.After, err = e.recorded(after); err != nil {
		return 0, err
	}
	var t *kvlane.LoadTask
	err = l.pair(keys, pages, func(refs []kvlane.Ref) (err error) {
		t, err = e.Load(l.busy, under, c.Cache, refs, o)
		return err
	})
	if err != nil {
		return 0, err
	}
	return l.handles.add(&task{engine: e, op: t, load: t, blocks: len(keys)}), nil
}

// Dump starts a dump of blocks from pages. If after is not nil, it starts after the work enqueued
// on this stream. before is the block that precedes keys in the prompt, if any.
func (l *Library) Dump(eh, ch Handle, keys []kvlane.Key, pages []uint32, flags uint32, after *uint64, before ...kvlane.Key) (Handle, error) {
	e, c, err := l.transfer(eh, ch, keys, pages, flags, Layerwise)
	if err != nil {
		return 0, err
	}
	o := kvlane.DumpOptions{Layerwise: flags&Layerwise != 0, Before: blockBefore(before)}
	if o.After, err = e.recorded(after); err != nil {
		return 0, err
	}
	var t *kvlane.DumpTask
	err = l.pair(keys, pages, func(refs []kvlane.Ref) (err error) {
		t, err = e.Dump(l.busy, c.Cache, refs, o)
		return err
	})
	if err != nil {
		return 0, err
	}
	return l.handles.add(&task{engine: e, op: t, dump: t, blocks: len(keys)}), nil
}

// SubmitLayer permits a layerwise dump to read a layer after the work enqueued on the stream so
// far.
func (l *Library) SubmitLayer(h Handle, layer uint32, after *uint64) error {
	t, err := find[*task](&l.handles, h)
	if err != nil {
		return err
	}
	if t.dump == nil {
		return invalid("task %d is no dump, and has no layers to submit", h)
	}
	deps, err := t.engine.recorded(after)
	if err != nil {
		return err
	}
	return t.dump.SubmitShard(context.Background(), int(layer), deps...)
}

// Prefetch starts a prefetch of blocks into memory.
func (l *Library) Prefetch(h Handle, keys []kvlane.Key) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	t, err := e.Prefetch(l.busy, keys)
	if err != nil {
		return 0, err
	}
	return l.handles.add(&task{engine: e, op: t, blocks: len(keys)}), nil
}

// Wait waits until a task reaches the state what. It returns the first error of the task's blocks.
func (l *Library) Wait(h Handle, what int32, timeoutMillis int64) error {
	t, err := find[*task](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	switch {
	case what == Done:
		return t.wait(ctx)
	case what >= 0 && t.load != nil:
		return ofJoined(t.load.WaitShard(ctx, int(what)))
	case what == SourceFree && t.dump != nil:
		return t.dump.SourceFree(ctx)
	case what == Published && t.dump != nil:
		return t.dump.Published(ctx)
	}
	return invalid("task %d does not support wait %d: loads have layers, dumps have free sources and publishing", h, what)
}

// wait waits until the task has ended. It returns the first error of the task's blocks.
func (t *task) wait(ctx context.Context) error {
	if t.load != nil {
		_ = t.load.Wait(ctx) // this wait has less latency for small loads
	}
	select {
	case <-t.op.Done():
		return ofBlocks(t.op.Errs())
	default:
	}
	select {
	case <-t.op.Done():
		return ofBlocks(t.op.Errs())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Results writes the result of each block of a finished task.
func (l *Library) Results(h Handle, results []Result) error {
	t, err := find[*task](&l.handles, h)
	if err != nil {
		return err
	}
	if len(results) != t.blocks {
		return invalid("space for %d results, task %d has %d blocks", len(results), h, t.blocks)
	}
	select {
	case <-t.op.Done():
	default:
		return errPending
	}
	for i, err := range t.op.Errs() {
		results[i] = Result{Status: StatusOf(err)}
		var b *store.BlockError
		if errors.As(err, &b) && b.Undefined {
			results[i].Undefined = 1
		}
	}
	return nil
}

// LeftOut returns the tiers that did not store all blocks of a dump. The result is a JSON array of
// objects with the fields of kvlane.LeftOut.
func (l *Library) LeftOut(h Handle) ([]byte, error) {
	t, err := find[*task](&l.handles, h)
	if err != nil {
		return nil, err
	}
	if t.dump == nil {
		return nil, invalid("task %d is no dump, and leaves no tiers out", h)
	}
	return json.Marshal(figures(reflect.ValueOf(t.dump.LeftOut())))
}

// LoadSeconds returns the duration of a finished load, without the wait for its dependencies. It
// returns zero for other tasks.
func (l *Library) LoadSeconds(h Handle) (float64, error) {
	t, err := find[*task](&l.handles, h)
	if err != nil || t.load == nil {
		return 0, err
	}
	select {
	case <-t.load.Done():
		return t.load.Elapsed().Seconds(), nil
	default:
		return 0, errPending
	}
}

// Cancel requests the cancellation of a task.
func (l *Library) Cancel(h Handle) error {
	t, err := find[*task](&l.handles, h)
	if err == nil {
		t.op.Cancel()
	}
	return err
}

// Free frees a task's handle.
func (l *Library) Free(h Handle) error {
	_, err := find[*task](&l.handles, h)
	if err == nil {
		l.handles.remove(h)
	}
	return err
}

// StreamWait makes a stream of the program wait for a load or for one of its layers.
func (l *Library) StreamWait(eh Handle, stream uint64, h Handle, what int32) error {
	e, err := find[*engine](&l.handles, eh)
	if err != nil {
		return err
	}
	t, err := find[*task](&l.handles, h)
	switch {
	case err != nil:
		return err
	case t.engine != e:
		return invalid("task %d is of another engine", h)
	case t.load == nil || what < Done:
		return invalid("streams wait for loads and their layers: task %d, %d", h, what)
	}
	s, err := e.stream(stream)
	switch {
	case err != nil:
		return err
	case what == Done:
		return s.WaitLoad(t.load)
	}
	return s.WaitShard(t.load, int(what))
}

package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Options are the options of a run. Zero values have defaults.
type Options struct {
	Driver     Driver
	Op         Op            // default Read
	BlockBytes []int64       // default 64 KiB
	Batches    []int         // blocks in a batch; default 128
	Threads    int           // default 12, as in Mooncake's benchmark
	Duration   time.Duration // duration of a point; default 10 s
	Check      bool          // verify the bytes of every batch
	// Timeout is the timeout of each batch. Default 1 minute. If the target is lost, the run ends.
	Timeout time.Duration
	// Budget is the duration of the run including its setup, counted from Began (zero: the call of
	// Run). If necessary, points take less than Duration, and points that do not fit are skipped.
	// Zero: no limit.
	Budget time.Duration
	Began  time.Time
	// Links returns the number of bytes transferred over the NVLinks of the local GPU in both
	// directions. Points compare it with the copied bytes. Optional.
	Links func() (int64, error)
	// Progress is called before each point and after the last one. Notice is called if not all
	// points will fit. Both are optional.
	Progress func(done, total int, what string)
	Notice   func(text string)
}

// Limits of Options.
const (
	maxThreads = 1024
	maxBatch   = 1 << 20
)

// SetDefaults replaces zero values with defaults.
func (o *Options) SetDefaults() {
	if o.Op == "" {
		o.Op = Read
	}
	if len(o.BlockBytes) == 0 {
		o.BlockBytes = []int64{64 << 10}
	}
	if len(o.Batches) == 0 {
		o.Batches = []int{128}
	}
	if o.Threads == 0 {
		o.Threads = 12
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Began.IsZero() {
		o.Began = time.Now()
	}
}

// Validate reports all errors, except those that depend on the driver.
func (o *Options) Validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid))
	}
	if o.Op != Read && o.Op != Write {
		fail("operation %q is neither %s nor %s", o.Op, Read, Write)
	}
	for _, n := range o.BlockBytes {
		if n < 1 || n > 1<<40 {
			fail("block of %d bytes: must be 1 to %d", n, int64(1)<<40)
		}
	}
	for _, n := range o.Batches {
		if n < 1 || n > maxBatch {
			fail("batch of %d blocks: must be 1 to %d", n, maxBatch)
		}
	}
	if o.Threads < 1 || o.Threads > maxThreads {
		fail("%d threads: must be 1 to %d", o.Threads, maxThreads)
	}
	if need := float64(slices.Max(o.BlockBytes)) * float64(slices.Max(o.Batches)) * float64(o.Threads); need > 1<<50 {
		fail("%.0f bytes of blocks under way are more than %d", need, int64(1)<<50)
	}
	if o.Duration < 0 || o.Timeout < 0 || o.Budget < 0 {
		fail("duration %v, timeout %v, budget %v: must not be negative", o.Duration, o.Timeout, o.Budget)
	}
	return errors.Join(errs...)
}

// NeedBytes returns the length of the memory that the largest point needs at the target and at the
// initiator.
func (o *Options) NeedBytes() (remote, local int64) {
	remote = slices.Max(o.BlockBytes) * int64(slices.Max(o.Batches)) * int64(o.Threads)
	local = remote
	if o.Check && o.Op == Write {
		local *= 2 // space for the bytes read back
	}
	return remote, local
}

// Run measures all combinations of block size and batch size. It returns ErrCorrupt for wrong
// bytes, ErrInvalid if the options do not fit the driver's memory or the budget ended before a
// point was measured, the error of a batch, or the cause of ctx. In the last case it also returns a
// report of the measured points, marked as incomplete.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("measure transfers: %w", err)
	}
	remote, local := o.NeedBytes()
	if have := o.Driver.Remote(); remote > have {
		return nil, fmt.Errorf("measure transfers: %d bytes are needed at the target, %d are offered: %w", remote, have, errdefs.ErrInvalid)
	}
	if have := o.Driver.Local().Len(); local > have {
		return nil, fmt.Errorf("measure transfers: %d bytes of memory are needed here, %d are available: %w", local, have, errdefs.ErrInvalid)
	}
	r := &Report{
		Format: Format, Protocol: o.Driver.Protocol(), Target: o.Driver.Target(), Op: o.Op, Threads: o.Threads, Checked: o.Check,
		CPUs: runtime.NumCPU(), GoVersion: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second), Points: []Point{},
		BudgetSeconds: o.Budget.Seconds(),
	}
	var points []Point
	var names []string
	for _, size := range o.BlockBytes {
		for _, batch := range o.Batches {
			points = append(points, Point{BlockBytes: size, Blocks: batch})
			names = append(names, fmt.Sprintf("%s of %d x %s", o.Op, batch, bench.BytesText(size)))
		}
	}
	budget := bench.NewBudget(o.Budget, o.Began, time.Now, len(points))
	var err error
	r.LeftOut, err = budget.Each(ctx, names, o.Progress, o.Notice, func(ctx context.Context, k int, until time.Time) error { return o.point(ctx, &points[k], until) })
	for i := range points {
		if points[i].Batches > 0 {
			r.Points = append(r.Points, points[i])
		}
	}
	return bench.Outcome(ctx, budget, r, &r.Incomplete, "measure transfers by "+r.Protocol, err)
}

// point measures a point with all threads. If there is a budget, it ends at until.
func (o *Options) point(ctx context.Context, p *Point, until time.Time) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	threads := make([]*thread, o.Threads)
	ready, begin := make(chan struct{}, o.Threads), make(chan struct{})
	done := make(chan error, o.Threads)
	for i := range threads {
		t := &thread{o: o, index: i, size: p.BlockBytes, batch: p.Blocks, until: until}
		threads[i] = t
		go func() {
			err := t.prepare(ctx)
			t.moved = 0
			ready <- struct{}{}
			if err == nil {
				<-begin
				err = t.run(ctx)
			}
			if err != nil {
				cancel(err) // the first error stops all threads
			}
			done <- err
		}()
	}
	var errs []error
	for range threads {
		<-ready
	}
	crossed, counted := o.links()
	close(begin)
	for range threads {
		if err := <-done; err != nil {
			errs = append(errs, err)
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, errdefs.ErrCorrupt) }); i >= 0 {
		return errs[i] // the error that stopped the other threads
	}
	if len(errs) > 0 {
		if cause := context.Cause(ctx); cause != nil {
			return cause // the first error
		}
		return errors.Join(errs...)
	}
	p.summarize(threads)
	if now, still := o.links(); counted && still {
		for _, t := range threads {
			p.MovedBytes += t.moved
		}
		p.NVLinkBytes = now - crossed
	}
	return nil
}

// links returns the number of bytes transferred over NVLink. It returns false if it is unavailable.
func (o *Options) links() (bytes int64, ok bool) {
	if o.Links == nil {
		return 0, false
	}
	bytes, err := o.Links()
	return bytes, err == nil
}

// thread submits one batch at a time.
type thread struct {
	o     *Options
	index int
	size  int64
	batch int
	until time.Time // end of the point if there is a budget
	seq   uint64    // number of the last written contents

	blocks  []Block // list of the last batch
	scratch []byte  // host memory for two blocks

	moved          int64         // bytes since the start of the point, including verification
	spent          time.Duration // measured time
	givenUp        bool          // the last batch was stopped because of the budget
	prep, post, tx []float64     // microseconds of each batch
}

// list fills the list of blocks of a batch. Local offsets are increased by shift. The list is valid
// until the next call.
func (t *thread) list(shift int64) []Block {
	if t.blocks == nil {
		t.blocks = make([]Block, t.batch)
	}
	for i := range t.blocks {
		at := t.size * int64(i*t.o.Threads+t.index)
		t.blocks[i] = Block{Local: at + shift, Remote: at, Length: t.size}
	}
	return t.blocks
}

// prepare writes the contents for reads to the target and executes one batch that is not counted.
func (t *thread) prepare(ctx context.Context) error {
	blocks := t.list(0)
	if t.o.Check {
		if err := t.fill(ctx, blocks); err != nil {
			return err
		}
	}
	if t.o.Check || t.o.Op == Write {
		if err := t.move(ctx, Write, blocks); err != nil {
			return err
		}
	}
	if t.o.Op == Read {
		return t.move(ctx, Read, blocks)
	}
	return nil
}

// move executes a batch without measuring it.
func (t *thread) move(ctx context.Context, op Op, blocks []Block) error {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	p, err := t.o.Driver.Submit(ctx, op, blocks)
	if err != nil {
		return err
	}
	// ctx limits the batch, but the memory is in use until the batch ends
	if err := p.Wait(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	t.moved += t.size * int64(len(blocks))
	return nil
}

// run submits batches until the end of the point.
func (t *thread) run(ctx context.Context) error {
	for t.spent < t.o.Duration && (t.o.Budget == 0 || len(t.tx) == 0 || time.Now().Before(t.until)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		began := time.Now()
		blocks := t.list(0)
		prep := time.Since(began)
		if err := t.ready(ctx, blocks); err != nil {
			return err
		}
		switch err := t.timed(ctx, blocks); {
		case len(t.tx) > 0 && errors.Is(err, bench.ErrOverBudget): // earlier batches are counted
			t.givenUp = true
			return nil
		case err != nil:
			return err
		}
		t.prep = append(t.prep, micros(prep))
		t.spent += prep
		if t.o.Check {
			if err := t.check(ctx, blocks); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready fills the local memory with the bytes to write, or with other bytes before a read.
func (t *thread) ready(ctx context.Context, blocks []Block) error {
	switch {
	case !t.o.Check:
		return nil
	case t.o.Op == Write:
		return t.fill(ctx, blocks)
	}
	return t.poison(ctx, blocks)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (t *thread) timed(ctx context.Context, blocks []Block) error {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	began := time.Now()
	p, err := t.o.Driver.Submit(ctx, t.o.Op, blocks)
	posted := time.Now()
	if err != nil {
		return err
	}
	err = p.Wait(context.WithoutCancel(ctx)) // see move
	if err != nil {
		return err
	}
	ended := time.Now()
	t.moved += t.size * int64(len(blocks))
	t.post = append(t.post, micros(posted.Sub(began)))
	t.tx = append(t.tx, micros(ended.Sub(posted)))
	t.spent += ended.Sub(began)
	return nil
}

// fill writes contents to the blocks that differ from those of all other batches.
func (t *thread) fill(ctx context.Context, blocks []Block) error {
	t.seq++
	b := t.buffer()
	for i := range blocks {
		pattern(b, t.seed(i))
		if err := t.o.Driver.Local().Store(ctx, blocks[i].Local, b); err != nil {
			return err
		}
	}
	return nil
}

func (t *thread) seed(block int) uint64 {
	return device.Mix64(device.Mix64(uint64(t.index)<<40|t.seq)+uint64(block)) ^ uint64(t.size)
}

// buffer returns host memory for one block.
func (t *thread) buffer() []byte {
	if t.scratch == nil {
		t.scratch = make([]byte, 2*t.size)
	}
	return t.scratch[:t.size]
}

func pattern(b []byte, seed uint64) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, device.Mix64(seed))
		seed++
	}
	for i := range b {
		b[i] = byte(device.Mix64(seed) >> (8 * i))
	}
}

// poison writes bytes to the blocks that no batch contains.
func (t *thread) poison(ctx context.Context, blocks []Block) error {
	b := t.buffer()
	clear(b)
	for i := range blocks {
		if err := t.o.Driver.Local().Store(ctx, blocks[i].Local, b); err != nil {
			return err
		}
	}
	return nil
}

// check compares the bytes that were read, or read back after a write, with the bytes written last.
func (t *thread) check(ctx context.Context, blocks []Block) error {
	if t.o.Op == Write {
		blocks = t.list(t.o.Driver.Local().Len() / 2)
		if err := t.poison(ctx, blocks); err != nil {
			return err
		}
		if err := t.move(ctx, Read, blocks); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
	}
	got := t.buffer()
	want := t.scratch[t.size:]
	for i, b := range blocks {
		if err := t.o.Driver.Local().Fetch(ctx, b.Local, got); err != nil {
			return err
		}
		pattern(want, t.seed(i))
		if !bytes.Equal(got, want) {
			return fmt.Errorf("block %d of thread %d, %d bytes at %d of the target, has wrong bytes: %w", i, t.index, b.Length, b.Remote, errdefs.ErrCorrupt)
		}
	}
	return nil
}

package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

const (
	minRounds    = 2
	maxRounds    = 200
	closeTimeout = 30 * time.Second
)

// Run measures and removes its files. It returns ErrCorrupt if bytes are wrong, ErrNoSpace if the
// disk has no space for the scratch files, ErrNotSupported if a place requires O_DIRECT and the
// file system does not support it, ErrInvalid if the budget ended before a place was measured, and
// the cause of ctx if ctx ends. In the last case it also returns a report of the measured places,
// marked as incomplete.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("benchmark of files: %w", err)
	}
	if len(o.Ends) == 0 && o.Device != nil {
		o.Ends = []End{Host, Device}
	}
	o = o.withDefaults()
	r := &run{o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0)), rep: newReport(&o)}
	err = errors.Join(r.all(ctx), r.close())
	r.rep.Machine.Finish()
	return bench.Outcome(ctx, r.budget, r.rep, &r.rep.Incomplete, "benchmark of files", err)
}

// all measures the places that fit the budget. The first measured places are far apart.
func (r *run) all(ctx context.Context) (err error) {
	places := r.o.places()
	r.budget = bench.NewBudget(r.o.Budget, r.o.Began, r.o.clock, len(places))
	if err := r.open(ctx); err != nil {
		return err
	}
	defer func() {
		slices.SortStableFunc(r.rep.Points, func(a, b Point) int { return slices.Index(places, a.Place) - slices.Index(places, b.Place) })
		r.rep.compareReads()
	}()
	names := make([]string, len(places))
	for i, p := range places {
		names[i] = p.String()
	}
	// The kernel cannot stop a batch early, so measure checks the time between rounds. A slow disk
	// gets all of the remaining time.
	r.rep.LeftOut, err = r.budget.Each(ctx, names, r.o.Progress, r.o.Notice, func(_ context.Context, k int, until time.Time) error { return r.measure(ctx, places[k], until) })
	return err
}

// entrant is a mover to or from one kind of memory, with its measurements.
type entrant struct {
	mover
	name  string
	raw   bool
	end   End
	walls []float64 // duration of each batch in microseconds
	by    string
	out   bool // excluded from further rounds at this place
}

// run is the state of a run.
type run struct {
	o           *Options
	rng         *rand.Rand
	rep         *Report
	budget      *bench.Budget // a unit is the measurement of one place
	entrants    []*entrant
	read, write *scratch
	host, dev   *mem.Region // one batch each; dev is nil without Device
	queue       device.Queue
	written     uint64
	closers     []func(context.Context) error
}

func (r *run) onClose(f func(context.Context) error) { r.closers = append(r.closers, f) }

// close releases resources in reverse order. It stops at the first failure, because the others may
// still be in use.
func (r *run) close() error {
	for _, f := range slices.Backward(r.closers) {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		err := f(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("close the files: %w", err)
		}
	}
	return nil
}

// open creates the files, allocates the memory, and opens the movers.
func (r *run) open(ctx context.Context) error {
	if err := r.create(); err != nil {
		return fmt.Errorf("in directory %s: %w", r.o.Dir, err)
	}
	if r.read.direct < 0 && slices.ContainsFunc(r.o.places(), func(p Place) bool { return p.From == Cold }) {
		return fmt.Errorf("the file system of %s (%s) refuses O_DIRECT: choose a directory on a disk, or measure reads from the page cache: %w",
			r.o.Dir, r.rep.Setup.FileSystem, errdefs.ErrNotSupported)
	}
	if err := r.read.fill(ctx, readTag); err != nil {
		return err
	}
	if r.write != nil {
		if err := r.write.fill(ctx, readTag); err != nil {
			return err
		}
	}
	if err := r.allocate(); err != nil {
		return err
	}
	for _, n := range r.o.Threads {
		r.openEntrant(&entrant{mover: threads(n), name: fmt.Sprintf("threads-%d", n), raw: true, end: Host})
	}
	for _, n := range r.o.Depths {
		m, err := openRing(n, r.host)
		if err != nil { // the depth is valid, so the machine lacks resources
			r.rep.miss("io_uring", err)
			break
		}
		r.openEntrant(&entrant{mover: m, name: fmt.Sprintf("io_uring-%d", n), raw: true, end: Host})
	}
	for _, c := range r.o.Contenders {
		s, err := c.Open(ctx)
		if errors.Is(err, errdefs.ErrNotSupported) {
			r.rep.miss(c.Name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", c.Name, err)
		}
		m := &streamed{s}
		r.onClose(m.close)
		for _, end := range r.o.Ends {
			if len(c.Ends) > 0 && !slices.Contains(c.Ends, end) {
				continue
			}
			r.entrants = append(r.entrants, &entrant{mover: m, name: c.Name, end: end})
		}
	}
	return nil
}

func (r *run) openEntrant(e *entrant) {
	r.entrants = append(r.entrants, e)
	r.onClose(e.close)
}

// create creates the files in a directory that is removed at the end of the run. The files keep
// their names until then, because cuFile cannot register files without a name.
func (r *run) create() (err error) {
	dir, err := os.MkdirTemp(r.o.Dir, "kvlane-bench-file-")
	if err != nil {
		return fmt.Errorf("make a directory for scratch files: %w", err)
	}
	r.onClose(func(context.Context) error { return os.RemoveAll(dir) })
	if r.read, err = r.scratch(filepath.Join(dir, "read")); err == nil && slices.Contains(r.o.Work, Write) {
		r.write, err = r.scratch(filepath.Join(dir, "write"))
	}
	return err
}

// scratch creates a file. If there are contenders, it also opens the file for them.
func (r *run) scratch(name string) (*scratch, error) {
	s, err := create(name, r.o.Bytes)
	r.onClose(func(context.Context) error { return s.close() })
	if err == nil && len(r.o.Contenders) > 0 {
		var closing func(context.Context) error
		if s.region, closing, err = r.o.Files(name, r.o.Bytes); err == nil {
			r.onClose(closing)
		}
	}
	return s, err
}

// allocate allocates memory of each kind for the largest batch.
func (r *run) allocate() error {
	var bytes int64
	for _, n := range r.o.Sizes {
		bytes = max(bytes, n*r.o.blocks(n))
	}
	b, err := hostmem.AllocLarge(bytes)
	if err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return hostmem.Free(b) })
	dev := r.o.Device
	if dev == nil {
		r.host, err = hostmem.Region(b)
		return err
	}
	if r.host, err = dev.RegisterHost(b); err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return dev.Free(r.host) })
	if !slices.Contains(r.o.Ends, Device) || len(r.o.Contenders) == 0 {
		return nil
	}
	if r.dev, err = dev.Alloc(bytes, device.AllocOptions{}); err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return dev.Free(r.dev) })
	if r.queue, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
		return err
	}
	r.onClose(r.queue.Close)
	return nil
}

// measure measures all movers at one place in interleaved rounds, until the deadline, but at least
// minRounds rounds. The first round is not counted. Raw movers that took more than twice as long as
// the best one are excluded from further rounds; their points contain the rounds so far.
func (r *run) measure(ctx context.Context, p Place, deadline time.Time) error {
	b := &batch{Place: p, file: r.read}
	if p.Work == Write {
		b.file = r.write
	}
	if p.From == PageCache {
		if err := r.read.warm(ctx, r.host.Bytes()); err != nil {
			return err
		}
	}
	next := r.offsets(p)
	for _, e := range r.entrants {
		e.walls, e.by, e.out = e.walls[:0], "", false
	}
	for round := range r.o.rounds {
		if round > minRounds && r.o.clock().After(deadline) {
			break
		}
		for i := range measure.Order(round, len(r.entrants)) {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if round <= minRounds && r.budget.Over() {
				return bench.ErrOverBudget
			}
			e := r.entrants[i]
			if e.out {
				continue
			}
			b.offs = next()
			took, err := r.moveBatch(ctx, e, b)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", e.name, e.end, err)
			}
			if round == 1 {
				e.walls = e.walls[:0]
			}
			e.walls = append(e.walls, float64(took.Nanoseconds())/1e3)
		}
		leaveOut(r.entrants)
	}
	r.rep.add(p, r.entrants, int(r.o.blocks(p.Size)))
	return nil
}

// leaveOut excludes raw movers whose last round took more than twice as long as the shortest one.
func leaveOut(entrants []*entrant) {
	last := func(e *entrant) float64 { return e.walls[len(e.walls)-1] }
	best := math.Inf(1)
	for _, e := range entrants {
		if e.raw && !e.out {
			best = min(best, last(e))
		}
	}
	for _, e := range entrants {
		e.out = e.out || e.raw && last(e) > 2*best
	}
}

// offsets returns a function that returns the offsets of a batch: adjacent blocks from a random
// position, or blocks in random order. Each batch has new offsets, because some parts of a disk are
// slower than others.
func (r *run) offsets(p Place) func() []int64 {
	all, n := int(r.o.Bytes/p.Size), int(r.o.blocks(p.Size))
	order := make([]int, all)
	for i := range order {
		order[i] = i
	}
	at := all
	return func() []int64 {
		switch {
		case p.Order == Sequential:
			at = r.rng.IntN(all/n) * n
		case at+n > all:
			at = 0
			r.rng.Shuffle(all, func(i, k int) { order[i], order[k] = order[k], order[i] })
		}
		offs := make([]int64, n)
		for i, k := range order[at : at+n] {
			offs[i] = int64(k) * p.Size
		}
		at += n
		return offs
	}
}

// moveBatch copies a batch and compares every byte.
func (r *run) moveBatch(ctx context.Context, e *entrant, b *batch) (took time.Duration, err error) {
	tag := uint64(readTag)
	if b.Work == Write {
		r.written++
		tag += r.written << 36 // the distance is larger than the number of words in a file
	}
	if err := r.prepare(ctx, e, b, tag); err != nil {
		return 0, err
	}
	begin := time.Now()
	by, err := e.move(ctx, b)
	took = time.Since(begin)
	if err != nil {
		return 0, err
	}
	e.by = by
	return took, r.check(ctx, e, b, tag)
}

// prepare fills the memory: before a read with other bytes, before a write with the bytes to write.
func (r *run) prepare(ctx context.Context, e *entrant, b *batch, tag uint64) error {
	if b.From == Cold {
		if err := b.file.drop(); err != nil {
			return err
		}
	}
	b.memory = r.host
	if b.Work == Read {
		clear(r.host.Bytes()[:b.bytes()])
	} else {
		_ = bench.Parallel(int64(len(b.offs)), func(from, to int64) error { // cannot fail
			for i := from; i < to; i++ {
				bench.WritePattern(b.block(int(i)), tag, b.offs[i])
			}
			return nil
		})
	}
	if e.end == Device {
		b.memory = r.dev
		return r.copy(ctx, r.dev, r.host, b.bytes())
	}
	return nil
}

// check compares the copied bytes with the expected ones.
func (r *run) check(ctx context.Context, e *entrant, b *batch, tag uint64) error {
	b.memory = r.host
	if b.Work == Write {
		clear(r.host.Bytes()[:b.bytes()])
		back := *b
		back.Work = Read
		if _, err := threads(fewBlocks).move(ctx, &back); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
	} else if e.end == Device {
		if err := r.copy(ctx, r.host, r.dev, b.bytes()); err != nil {
			return err
		}
	}
	return bench.Parallel(int64(len(b.offs)), func(from, to int64) error {
		for i := from; i < to; i++ {
			if err := bench.CheckPattern(b.block(int(i)), tag, b.offs[i]); err != nil {
				return fmt.Errorf("%s block %d, byte %d of the file: %w", b.Work, i, b.offs[i], err)
			}
		}
		return nil
	})
}

// copy copies between device and host memory.
func (r *run) copy(ctx context.Context, dst, src *mem.Region, bytes int64) error {
	if err := r.queue.Copy(mem.Extent{Region: dst, Len: bytes}, mem.Extent{Region: src, Len: bytes}); err != nil {
		return fmt.Errorf("copy between host and device: %w", err)
	}
	done, err := r.queue.Record()
	if err != nil {
		return fmt.Errorf("copy between host and device: %w", err)
	}
	defer done.Close()
	return done.Wait(ctx)
}

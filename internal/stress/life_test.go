package stress

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Ways to end an engine's life.
const (
	finish      = iota // after the clients have finished
	closeStore         // close the store while clients work, then the rest
	closeEngine        // close everything while clients work
	ways
)

// mainCall is the index of the call that the worker's main goroutine is in.
const mainCall = clients

// errVeto is the error of files that must not be read or removed.
var errVeto = errors.New("forbidden file")

// life is an engine from Open to Close.
type life struct {
	*worker
	rng     *rand.Rand
	engine  *kvlane.Engine
	plan    *fault.Plan // faults of the device
	files   *fault.Plan
	counted [2]atomic.Int64 // injected faults that are already counted
	path    stream.Path     // forced path; none: the planner chooses
	verify  store.VerifyPolicy
	how     int // way in which this life ends

	memory []byte // pages of the viewers; not device memory, which may be closed while clients work
	region *mem.Region
	pages  *store.Pages

	ctx  context.Context // ends when clients must start no more requests
	stop context.CancelFunc
}

// live opens an engine, runs clients on it for a while, and closes it in one of several ways.
func (w *worker) live(seed uint64) {
	goroutines := runtime.NumGoroutine()
	l := &life{worker: w, rng: rand.New(rand.NewPCG(seed, 1))}
	l.how = l.rng.IntN(ways)
	paths := append(stream.Paths(stream.MovedByDevice), stream.PathNone, stream.PathNone)
	l.path = paths[l.rng.IntN(len(paths))]
	l.plan, l.files = l.deviceFaults(), l.fileFaults()
	var err error
	if l.memory, err = hostmem.Alloc(clients * l.blockBytes()); err != nil {
		w.reportFailure("%v", err)
		return
	}
	w.current.Store(l)
	if l.open() {
		l.ctx, l.stop = context.WithTimeout(w.ctx, time.Duration(200+l.rng.IntN(3000))*time.Millisecond)
		l.strain()
		l.stop()
	}
	if err := hostmem.Free(l.memory); err != nil {
		w.reportFailure("%v", err)
	}
	w.current.Store(nil)
	l.countFaults()
	w.clean(goroutines)
}

// countFaults counts the faults injected since its last call.
func (l *life) countFaults() {
	for i, p := range []*fault.Plan{l.plan, l.files} {
		n := int64(p.Injected())
		l.tally.add([]string{"faults device", "faults file"}[i], n-l.counted[i].Swap(n))
	}
}

// deviceFaults returns a random plan of device faults for this engine.
func (l *life) deviceFaults() *fault.Plan {
	p := fault.New(l.rng.Uint64())
	if !l.DeviceFaults {
		return p
	}
	for _, op := range []string{sim.OpLaunch, sim.OpBatch, sim.OpCopy} {
		p.Add(fault.Rate(op, 0.002).Fail(nil))
		p.Add(fault.Rate(op, 0.005).Delay(time.Duration(1+l.rng.IntN(20)) * time.Millisecond))
	}
	for _, op := range []string{sim.OpCallLaunch, sim.OpCallBatch, sim.OpRecord, sim.OpWait} {
		p.Add(fault.Rate(op, 0.002).Fail(nil))
	}
	for _, op := range []string{sim.OpAlloc, sim.OpAllocHost, sim.OpOpen} {
		p.Add(fault.Rate(op, 0.05).Fail(errdefs.ErrNoMemory))
	}
	// Kernels that compute checksums detect bytes that are damaged on the bus. They do not detect a
	// byte that a staging kernel reads wrong.
	switch summed := l.path == stream.PathKernel; {
	case summed && l.Leafy && l.rng.IntN(2) == 0:
		p.Add(fault.Rate(sim.OpLaunch, 0.003).Corrupt())
	case l.rng.IntN(3) == 0:
		l.verify = store.VerifyFill
	}
	return p
}

// fileFaults returns a random plan of file faults for this engine. If durable blocks must not be
// lost, it corrupts no bytes.
func (l *life) fileFaults() *fault.Plan {
	p := fault.New(l.rng.Uint64())
	if !l.FileFaults {
		return p
	}
	for _, op := range []string{"open", "stat", "readdir", "rename", "remove", "settime", "read", "write", "fstat", "mkdir", "close"} {
		p.Add(fault.Rate(op, 0.002).Fail(syscall.EIO))
		p.Add(fault.Rate(op, 0.001).Delay(time.Duration(5+l.rng.IntN(200)) * time.Millisecond))
	}
	p.Add(fault.Rate("write", 0.005).Partial(syscall.ENOSPC))
	p.Add(fault.Rate("read", 0.005).Partial(nil))
	if l.Corrupt {
		p.Add(fault.Rate("sync", 0.002).Fail(syscall.EIO))
		p.Add(fault.Rate("read", 0.003).Corrupt())
		p.Add(fault.Rate("write", 0.003).Corrupt())
	}
	return p
}

// veto fails all writes while the disk is full. With FileFaults it also makes a few files
// unreadable and a few unremovable.
func (l *life) veto() faultfs.Veto {
	unreadable, unremovable := l.rng.IntN(256), l.rng.IntN(256)
	ends := func(path string, b int) bool {
		const digits = "0123456789abcdef"
		return strings.HasSuffix(path, string([]byte{digits[b>>4], digits[b&15]}))
	}
	return func(op, path string) error {
		switch {
		case l.FileFaults && (op == "read" && l.Corrupt && ends(path, unreadable) || op == "remove" && ends(path, unremovable)):
			l.tally.add("faults veto", 1)
			return errVeto
		case (op == "write" || op == "mkdir") && l.full():
			l.tally.add("faults disk full", 1)
			return syscall.ENOSPC
		}
		return nil
	}
}

// full reports whether the parent has filled the disk.
func (s *setup) full() bool {
	_, err := os.Stat(s.fullName())
	return err == nil
}

// fullName returns the name of a file that exists while the disk is full.
func (s *setup) fullName() string { return s.User[0] + "-full" }

// steppedFS sets file times with a clock that jumps two days forward or back every half second.
type steppedFS struct {
	dirfs.FS
	l *life
}

func (f steppedFS) OpenDir(path string) (dirfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return steppedDir{d, f.l}, nil
}

type steppedDir struct {
	dirfs.Dir
	l *life
}

// clockSteps are the offsets of that clock, in turn.
var clockSteps = []time.Duration{0, 48 * time.Hour, 0, -48 * time.Hour}

func (d steppedDir) SetTime(name string, t time.Time) error {
	step := clockSteps[time.Now().UnixMilli()/500%int64(len(clockSteps))]
	if step != 0 {
		d.l.tally.add("faults clock step", 1)
	}
	return d.Dir.SetTime(name, t.Add(step))
}

// open opens the engine and its pages. If a fault makes it fail, nothing stays open.
func (l *life) open() bool {
	files := faultfs.New(steppedFS{dirfs.OS(), l}, l.files, nil)
	files.Forbid(l.veto())
	c := kvlane.Config{
		Model:  l.geometry(),
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim, Sim: sim.Options{Faults: l.plan, QuarantineBytes: 1 << 20}},
		Stream: kvlane.StreamConfig{
			Path: l.path, Calibration: profile.Never, ProfileDir: l.Dirs[0] + "-profiles", StagingBytes: 1 << 20,
		},
		Store: kvlane.StoreConfig{
			CacheBytes: slots * l.layout.ImageBytes(), Dirs: l.Dirs, SharedBound: true, FileBytes: l.Bytes, Fsync: l.Fsync,
			LeaseMax: leaseMax, WaitMax: waitMax, Readers: 4, Writers: writers,
		},
	}
	c.Store.Verify = []store.VerifyPolicy{l.verify, store.VerifyAlways}[l.rng.IntN(2)]
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var err error
	l.bounded(mainCall, "Open", grace, func() { l.engine, err = kvlane.Open(dirfs.With(ctx, files), c) })
	if err != nil {
		l.explain("open", err)
		return false
	}
	for {
		l.region, err = l.engine.Device().Alloc(clients*pagesEach*l.blockBytes(), device.AllocOptions{})
		if err == nil {
			break
		}
		l.explain("open", err)
	}
	l.layPages()
	return true
}

func (l *life) layPages() {
	l.pages = &store.Pages{Shards: make([][]mem.Plane, l.layout.Shards())}
	for i := range l.layout.Shards() * l.planes {
		shard, within := i/l.planes, int64(i%l.planes)
		l.pages.Shards[shard] = append(l.pages.Shards[shard], mem.Plane{
			Region: l.region, Base: int64(i) * clients * pagesEach * l.bytes, Stride: l.bytes, Bytes: l.bytes,
			SlotOff: l.layout.ShardOff(shard) + within*l.bytes,
		})
	}
}

// strain runs the clients and then closes the engine.
func (l *life) strain() {
	var wg sync.WaitGroup
	for i := range clients {
		seed := l.rng.Uint64()
		wg.Go(func() { newClient(l, i, seed).run() })
	}
	<-l.ctx.Done()
	switch l.how {
	case closeStore:
		l.closeAll("Store.Close", l.engine.Store().Close)
	case closeEngine:
		l.closeAll("Engine.Close", l.engine.Close)
	}
	l.bounded(mainCall, "clients' end", 4*durableMax, wg.Wait)
	if l.how != closeEngine {
		if err := l.engine.Device().Free(l.region); err != nil {
			l.reportFailure("free pages: %v", err)
		}
		l.closeAll("Engine.Close", l.engine.Close)
	}
	l.checkClosed()
	if err := l.engine.Close(context.Background()); err != nil {
		l.reportFailure("close a closed engine: %v", err)
	}
}

// closeAll calls closeIt from several goroutines, some with short timeouts, until it succeeds.
func (l *life) closeAll(what string, closeIt func(context.Context) error) {
	for try := 0; ; try++ {
		errs := make([]error, 1+l.rng.IntN(4))
		l.bounded(mainCall, what, 4*waitMax, func() {
			var wg sync.WaitGroup
			for i := range errs {
				most := time.Duration(1+l.rng.IntN(200)) * time.Millisecond
				if i == 0 || try > 0 {
					most = 4 * waitMax
				}
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), most)
					defer cancel()
					errs[i] = closeIt(ctx)
				})
			}
			wg.Wait()
		})
		for _, err := range errs {
			l.explain(what, err)
			// The engine is in use although there was enough time: a resource was not released.
			// While clients work, they still have pages.
			if l.how != closeEngine && errors.Is(err, errdefs.ErrBusy) && !errors.Is(err, context.DeadlineExceeded) {
				l.reportFailure("%s: %v", what, err)
			}
		}
		switch {
		case errors.Join(errs...) == nil:
			return
		case try == 8:
			l.reportFailure("%s does not end: %v", what, errors.Join(errs...))
			return
		}
	}
}

// checkClosed checks that the counts of a closed engine are zero.
func (l *life) checkClosed() {
	s := l.engine.Store().Stats()
	if s.Running != 0 || s.LeasesLive != 0 || s.Backlog != 0 {
		l.reportFailure("closed, and %d tasks run, %d leases live, %d writes wait", s.Running, s.LeasesLive, s.Backlog)
	}
	for _, t := range l.engine.Tiers() {
		if st, ok := t.(tier.Statter); ok && (st.Stats().Retained != 0 || st.Stats().Waiting != 0) {
			l.reportFailure("closed, and tier %s has %d pins, %d Puts wait", t.Name(), st.Stats().Retained, st.Stats().Waiting)
		}
		if st, ok := t.(tier.Statter); ok && t.Name() == "file" {
			l.tally.add("blocks evicted", st.Stats().Evictions)
			l.tally.add("blocks found wrong", st.Stats().Corrupt+st.Stats().Replaced)
		}
	}
	l.tally.add("blocks refilled", s.Refills)
	l.tally.add("blocks copied again", s.BadCopies)
	l.tally.add("streams reopened", s.StreamsReopened)
	l.tally.add("streams paths given up", s.PathsGivenUp)
	for _, p := range append(s.LoadPaths, s.DumpPaths...) {
		l.tally.add("batches "+p.Path.String(), p.Batches)
	}
}

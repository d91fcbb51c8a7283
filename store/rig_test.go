package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience bounds each wait of a test.
var patience = testkit.Patience()

// storeTimers is the number of timers of an idle store: one of its janitor, and one of the watcher
// of each of two streams.
const storeTimers = 3

// rigOptions configures a rig. Zero fields get the defaults of newRig.
type rigOptions struct {
	slots, pages   int
	shards, planes int // planes of each shard
	planeBytes     int64
	groups         int      // page groups share memory: layer k belongs to group k%groups, whose planes are k%groups+1 times as long
	dirs           []string // none: the store has a cache only
	path           stream.Path
	clock          clockwork.Clock
	wrapCache      func(tier.SlotTier) tier.SlotTier
	logDir         string // empty: no log tier below the files
	wrapFile       func(tier.Tier) tier.Tier
	wrapDevice     func(*sim.Device) device.Device // wraps the device of the streams
	wrapLoad       func(stream.Stream) stream.Stream
	wrapDump       func(stream.Stream) stream.Stream
	sumEvery       int  // streams sum every n-th batch that requests checksums; 0: none
	still          bool // the device copies no bytes
	descriptors    int  // size of a stream's descriptor ring
	memo           bool // sum each page only once, for benchmarks
	tune           func(*store.Config)
	fsync          file.FsyncPolicy
	fileFS         dirfs.FS
	readOnly       bool
	window         bool // the store has no cache: slots are a transfer window
	direct         *directOptions
}

// rig is a store on a simulated device with real tiers, and a paged cache for loads and dumps.
type rig struct {
	tb     testing.TB
	o      rigOptions
	dev    *sim.Device
	plan   *fault.Plan // faults of the device
	ids    []block.Identity
	id     block.Identity // identity of the first group
	format block.Format   // format of the first group
	groups block.Formats
	layers [][]int
	host   *mem.Region // memory of the cache's slots
	gpu    *mem.Region // memory of the pages
	pages  *store.Pages
	loads  atomic.Int64 // number of loads that were waited for
	cache  *cache.Tier
	file   *file.Tier
	log    *log.Tier  // or nil
	direct *directRig // or nil
	st     *store.Store

	mu    sync.Mutex // guards the queue and the staging memory that fill, read and poison use
	queue device.Queue
	stage *mem.Region
}

func newRig(tb testing.TB, o rigOptions) *rig {
	tb.Helper()
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.slots, 8)
	def(&o.pages, 16)
	def(&o.shards, 3)
	def(&o.planes, 2)
	def(&o.groups, 1)
	def(&o.descriptors, 1024)
	if o.planeBytes == 0 {
		o.planeBytes = 512
	}
	r := &rig{tb: tb, o: o, plan: fault.New(1)}
	var err error
	for g := range o.groups {
		r.makeGroup(g)
	}
	r.id, r.format = r.ids[0], r.groups[0]
	so := sim.Options{Faults: r.plan, Still: o.still}
	if o.direct != nil {
		so.Storage = o.direct.model
	}
	r.dev, err = sim.Open(so)
	r.must(err)
	r.host, err = r.dev.AllocHost(int64(o.slots) * r.groups.MaxImageBytes())
	r.must(err)
	r.makePages()
	r.queue, err = r.dev.OpenQueue(device.QueueOptions{})
	r.must(err)
	r.stage, err = r.dev.AllocHost(r.blockBytes())
	r.must(err)
	r.openStore()
	tb.Cleanup(r.close)
	return r
}

// planeBytes returns the size of a page in the planes of a page group.
func (r *rig) planeBytes(group int) int64 { return r.o.planeBytes * int64(1+group) }

// groupOf returns the page group of test block n.
func (r *rig) groupOf(n int) int { return n % r.o.groups }

// makePages allocates the planes one after another. Each page is followed by a gap that must not be
// written. Plane n of every group has the same address.
func (r *rig) makePages() {
	o := &r.o
	stride := r.planeBytes(o.groups-1) + 64
	size := stride * int64(o.pages)
	var err error
	r.gpu, err = r.dev.Alloc(size*int64(len(r.layers[0])*o.planes), device.AllocOptions{})
	r.must(err)
	r.pages = &store.Pages{Shards: make([][]mem.Plane, o.shards)}
	for g, layers := range r.layers {
		n := int64(0)
		for i, k := range layers {
			for p := range o.planes {
				r.pages.Shards[k] = append(r.pages.Shards[k], mem.Plane{
					Region: r.gpu, Base: n * size, Stride: stride, Bytes: r.planeBytes(g),
					SlotOff: r.groups[g].Layout.ShardOff(i) + int64(p)*r.planeBytes(g),
				})
				n++
			}
		}
	}
}

// blockBytes returns the size of the largest block.
func (r *rig) blockBytes() int64 {
	n := int64(0)
	for g := range r.groups {
		n = max(n, r.groups[g].Layout.DataBytes())
	}
	return n
}

// openStore opens the tiers and the store with the content of the directories.
func (r *rig) openStore() {
	r.tb.Helper()
	var err error
	r.cache, err = cache.Open(cache.Config{Memory: r.host, Formats: r.groups, Transient: r.o.window})
	r.must(err)
	c := store.Config{
		PartBytes: 1, // each shard or block completes separately

		Formats:  slices.Clone(r.groups),
		Layers:   r.layers,
		Cache:    r.cache,
		Clock:    r.o.clock,
		OpenLoad: r.opener(r.o.wrapLoad),
		OpenDump: r.opener(r.o.wrapDump),
		WaitMax:  patience / 2,
	}
	if r.o.wrapCache != nil {
		c.Cache = r.o.wrapCache(r.cache)
	}
	if len(r.o.dirs) > 0 {
		fc := file.Config{Dirs: r.o.dirs, Formats: r.groups, Identities: r.ids, Fsync: r.o.fsync, FS: r.o.fileFS, ReadOnly: r.o.readOnly}
		if r.o.direct != nil {
			r.openDirect(&c, &fc)
		}
		r.file, err = file.Open(r.ctx(), fc)
		r.must(err)
		var t tier.Tier = r.file
		if r.o.wrapFile != nil {
			t = r.o.wrapFile(t)
		}
		c.Next = []tier.Tier{t}
	}
	if r.o.logDir != "" {
		lc := log.Config{Dir: r.o.logDir, Formats: r.groups, Identities: r.ids, Fsync: log.FsyncNever}
		if r.direct != nil {
			lc.Direct = r.direct.files
		}
		r.log, err = log.Open(r.ctx(), lc)
		r.must(err)
		c.Next = append(c.Next, r.log)
	}
	if r.o.tune != nil {
		r.o.tune(&c)
	}
	r.st, err = store.Open(c)
	r.must(err)
}

func (r *rig) opener(wrap func(stream.Stream) stream.Stream) func() (stream.Stream, error) {
	return func() (stream.Stream, error) {
		var dev device.Device = r.dev
		if r.o.wrapDevice != nil {
			dev = r.o.wrapDevice(r.dev)
		}
		st, err := streamcopy.Open(dev, streamcopy.Options{Path: r.o.path, QueueDepth: 64, Descriptors: r.o.descriptors, StagingBytes: 1 << 20})
		if err != nil {
			return nil, err
		}
		var out stream.Stream = st
		if r.o.sumEvery != 0 {
			if out, err = newSummer(r, st, r.o.sumEvery); err != nil {
				return nil, errors.Join(err, st.Close(context.Background()))
			}
		}
		if wrap != nil {
			out = wrap(out)
		}
		return out, nil
	}
}

// closeStore closes the store after all writes, and then its tiers.
func (r *rig) closeStore() {
	r.tb.Helper()
	r.must(r.st.Close(r.ctx()))
	r.closeTiers()
}

// crash closes the store without completing its tasks, and discards the cache.
func (r *rig) crash() {
	r.tb.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.st.Close(ended); err != nil {
		r.must(r.st.Close(r.ctx()))
	}
	r.closeTiers()
}

func (r *rig) closeTiers() {
	r.tb.Helper()
	r.must(r.cache.Close(r.ctx()))
	if r.file != nil {
		r.must(r.file.Close(r.ctx()))
	}
	if r.log != nil {
		r.must(r.log.Close(r.ctx()))
	}
	r.closeDirect()
}

func (r *rig) close() {
	r.plan.Clear()
	r.closeStore()
	r.must(r.queue.Close(r.ctx()))
	for _, m := range []*mem.Region{r.host, r.gpu, r.stage} {
		r.must(r.dev.Free(m))
	}
	r.must(r.dev.Close())
}

// ctx returns a context that limits waits, so that a test that hangs fails with a message. Cleanups
// use it too, so it does not derive from the context of the test.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("the test ran out of patience"))
	r.tb.Cleanup(cancel)
	return ctx
}

func (r *rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// key returns the key of test block n.
func (r *rig) key(n int) block.Key {
	return r.groups.Key(r.groupOf(n), binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

func (r *rig) keys(ns ...int) []block.Key {
	out := make([]block.Key, len(ns))
	for i, n := range ns {
		out[i] = r.key(n)
	}
	return out
}

// refs assigns the pages first, first+1, ... to blocks.
func (r *rig) refs(first int, ns ...int) []store.Ref {
	out := make([]store.Ref, len(ns))
	for i, n := range ns {
		out[i] = store.Ref{Key: r.key(n), Page: uint32(first + i)}
	}
	return out
}

// content returns the bytes of block n, plane by plane, in the pattern of device.KernelPatternFill.
func (r *rig) content(n int) []byte {
	out := make([]byte, 0, r.blockBytes())
	g := r.groupOf(n)
	for p := range len(r.layers[g]) * r.o.planes {
		for o := int64(0); o < r.planeBytes(g); o += 8 {
			out = binary.LittleEndian.AppendUint64(out, device.Mix64(uint64(n)*0x10001+uint64(p)<<40+uint64(o/8)))
		}
	}
	return out
}

// page copies b to a page of a page group, or the page to b.
func (r *rig) page(group int, page uint32, b []byte, toDevice bool) {
	r.tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if toDevice {
		copy(r.stage.Bytes(), b)
	}
	off := int64(0)
	for _, k := range r.layers[group] {
		planes := r.pages.Shards[k]
		for i := range planes {
			dst, src := planes[i].Page(page), mem.Extent{Region: r.stage, Off: off, Len: planes[i].Bytes}
			if !toDevice {
				dst, src = src, dst
			}
			r.must(r.queue.Copy(dst, src))
			off += planes[i].Bytes
		}
	}
	ev, err := r.queue.Record()
	r.must(err)
	defer ev.Close()
	r.must(ev.Wait(r.ctx()))
	if !toDevice {
		copy(b, r.stage.Bytes())
	}
}

func (r *rig) fill(page uint32, n int) {
	r.tb.Helper()
	r.page(r.groupOf(n), page, r.content(n), true)
}

func (r *rig) poison(page uint32) {
	r.tb.Helper()
	for g := range r.groups {
		r.page(g, page, bytes.Repeat([]byte{0xee}, int(r.groups[g].Layout.DataBytes())), true)
	}
}

// checkPage returns an error unless the page contains block n.
func (r *rig) checkPage(page uint32, n int) error {
	r.tb.Helper()
	want := r.content(n)
	got := make([]byte, len(want))
	r.page(r.groupOf(n), page, got, false)
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("page %d does not hold block %d: byte %d is %#x, want %#x", page, n, i, got[i], want[i])
		}
	}
	return nil
}

func (r *rig) poisoned(page uint32) bool {
	for g := range r.groups {
		got := make([]byte, r.groups[g].Layout.DataBytes())
		r.page(g, page, got, false)
		if !bytes.Equal(got, bytes.Repeat([]byte{0xee}, len(got))) {
			return false
		}
	}
	return true
}

// dump fills pages 0, 1, ... with the blocks, dumps them and waits until they are durable.
func (r *rig) dump(ns ...int) *store.DumpTask {
	r.tb.Helper()
	t := r.startDump(ns...)
	r.must(t.Durable(r.ctx()))
	return t
}

func (r *rig) startDump(ns ...int) *store.DumpTask {
	r.tb.Helper()
	refs := r.refs(0, ns...)
	for i, n := range ns {
		r.fill(refs[i].Page, n)
	}
	t, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{})
	r.must(err)
	return t
}

// load poisons pages 0, 1, ..., loads blocks to them, and checks the pages of blocks without an
// error.
func (r *rig) load(o store.LoadOptions, ns ...int) []error {
	r.tb.Helper()
	refs := r.refs(0, ns...)
	for i := range ns {
		r.poison(refs[i].Page)
	}
	t, err := r.st.Load(r.ctx(), nil, r.pages, refs, o)
	r.must(err)
	errs := r.loaded(t)
	for i, err := range errs {
		if err == nil {
			r.must(r.checkPage(refs[i].Page, ns[i]))
		}
	}
	return errs
}

// loaded waits for the task and returns the errors of its blocks.
func (r *rig) loaded(t *store.LoadTask) []error {
	r.tb.Helper()
	if r.loads.Add(1)%2 == 0 {
		_ = t.Wait(r.ctx())
	}
	r.resolved(t.Done())
	return t.Errs()
}

func (r *rig) resolved(done <-chan struct{}) {
	r.tb.Helper()
	select {
	case <-done:
	case <-r.ctx().Done():
		r.tb.Fatal("the task did not resolve")
	}
}

// mustLoad loads blocks and checks their bytes.
func (r *rig) mustLoad(ns ...int) {
	r.tb.Helper()
	for _, err := range r.load(store.LoadOptions{}, ns...) {
		r.must(err)
	}
}

// hits returns the lookup results of the blocks.
func (r *rig) hits(ns ...int) []store.Hit {
	r.tb.Helper()
	hits, err := r.st.Lookup(r.ctx(), r.keys(ns...))
	r.must(err)
	return hits
}

// unresolved reports whether c is still open after 20 ms.
func unresolved(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}

// next makes the rule apply to the device's next operation named op.
func (r *rig) next(op string, rule func(op string, n int) fault.Rule) fault.Rule {
	return rule(op, int(r.plan.Seen(op)))
}

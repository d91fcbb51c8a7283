package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
)

// TestModel is the metamorphic test. It runs a random sequence of operations, drawn from a seed,
// under several configurations and compares the results with a map. In each configuration:
//
//   - a load without an error has put exactly the block's bytes on the page, and a failed or canceled
//     load writes nothing to it afterwards;
//   - pages may be overwritten after SourceFree returned without changing the stored bytes;
//   - a durable block is found after restarts and crashes, unless the test damaged it, and each error
//     names an injected fault;
//   - a block that was never dumped, or not again after its removal, is never found;
//   - a leased block is not removed;
//   - at the end nothing is pinned.
//
// KVLANE_STORE_SEEDS=n runs n seeds. KVLANE_STORE_SEED=x runs seed x alone.
func TestModel(t *testing.T) {
	t.Parallel()
	runModels(t, []modelConfig{
		{name: "cache"},
		{name: "cache-tiny", slots: 2},
		{name: "cache,file", dirs: 1},
		{name: "cache-tiny,file", slots: 2, dirs: 1},
		{name: "cache,two directories", dirs: 2, layerwise: true},
		{name: "cache-tiny,file,layerwise", slots: 3, dirs: 1, layerwise: true},
		{name: "cache,file,faults", dirs: 1, faults: true},
		{name: "cache-tiny,two directories,faults", slots: 3, dirs: 2, faults: true, layerwise: true},
		{name: "device,cache-tiny,file,some sums", planeBytes: leafy, slots: 3, dirs: 1, sums: 2, layerwise: true},
		{name: "device,cache,file,no sums", planeBytes: leafy, dirs: 1, sums: noSums, layerwise: true},
		{name: "device,cache,file,the stream's sums", planeBytes: leafy, dirs: 1, layerwise: true},
		{name: "device,cache,wrong transfers", planeBytes: leafy, sums: 1, layerwise: true, corrupt: true},
		{name: "device,cache,file,the stream's sums,wrong transfers", planeBytes: leafy, dirs: 1, layerwise: true, corrupt: true},
		{name: "device,cache,file,planned paths", planeBytes: leafy, dirs: 1, layerwise: true, planned: true},
		{name: "device,cache-tiny,file,wrong transfers,faults", planeBytes: leafy, slots: 3, dirs: 1, sums: 1, faults: true, layerwise: true, corrupt: true},
		{name: "device,cache-tiny,file,the stream's sums,faults", planeBytes: leafy, slots: 3, dirs: 1, faults: true, layerwise: true},
		{name: "window,file", window: true, slots: 2, dirs: 1},
		{name: "device,window,two directories,some sums", window: true, planeBytes: leafy, slots: 4, dirs: 2, sums: 2, layerwise: true},
		{name: "device,window,file,the stream's sums,wrong transfers,faults", window: true, planeBytes: leafy, slots: 3, dirs: 1, faults: true, layerwise: true, corrupt: true},
		{name: "cache-tiny,file,log", slots: 3, dirs: 1, log: true, layerwise: true},
		{name: "device,cache-tiny,file,log,faults", planeBytes: leafy, slots: 3, dirs: 1, log: true, faults: true, layerwise: true},
		{name: "window,two directories,log,faults", window: true, slots: 3, dirs: 2, log: true, faults: true},
		{name: "direct,window,file,log", window: true, planeBytes: 2 * leafy, slots: 3, dirs: 1, log: true, direct: true},
		{name: "direct,cache-tiny,file,log,faults", planeBytes: 2 * leafy, slots: 3, dirs: 1, log: true, direct: true, faults: true},
		{name: "direct,window,file", window: true, planeBytes: leafy, slots: 3, dirs: 1, layerwise: true, direct: true},
		{name: "direct,cache-tiny,two directories,faults", planeBytes: leafy, slots: 3, dirs: 2, layerwise: true, direct: true, faults: true},
		{name: "direct,window,file,groups,faults", window: true, planeBytes: leafy, slots: 4, dirs: 1, groups: 2, layerwise: true, direct: true, faults: true},
		{name: "always,cache,file,faults", policy: store.VerifyAlways, planeBytes: leafy, dirs: 1, faults: true, layerwise: true},
	})
}

const (
	modelBlocks = 24
	modelPages  = 40
	modelOps    = 120
)

// modelBlock is the expected state of a block.
type modelBlock struct {
	tried   bool // a dump of the block was started
	durable bool // a dump made the block durable, and the test has not damaged it since
	damaged bool // the test damaged a copy: the block may be reported as corrupt or missing
	twice   bool // both the files and the log have the block
	dirty   bool // the test damaged the cached copy: a dump that finds it cannot write it to the file tier
}

// pending is a task that the test has not waited for.
type pending struct {
	what  string
	refs  []store.Ref
	ns    []int
	load  *store.LoadTask
	dump  *store.DumpTask
	lease *store.Lease
	quit  bool         // the task was canceled by the test or by a crash
	known []modelBlock // for a load: the expected state of each block at its start
	gone  map[int]bool // for a dump: blocks removed since its start, before or after it stored them
}

type model struct {
	t       *testing.T
	c       modelConfig
	r       *rig
	rng     *rand.Rand
	blocks  [modelBlocks]modelBlock
	free    []uint32        // pages that no task uses
	freed   map[uint32]bool // free pages that were poisoned after their task ended
	tasks   []*pending
	leases  []*store.Lease
	history []string
}

func runModel(t *testing.T, c modelConfig, seed uint64) {
	t.Helper()
	m := &model{t: t, c: c, rng: rand.New(rand.NewPCG(seed, 0x6d6f64656c)), freed: map[uint32]bool{}}
	o := rigOptions{slots: 8, pages: modelPages, planeBytes: 128, path: stream.PathKernel}
	if c.slots > 0 {
		o.slots = c.slots
	}
	if c.planned {
		o.path = stream.PathNone
	}
	for range c.dirs {
		o.dirs = append(o.dirs, t.TempDir())
	}
	if c.log {
		o.logDir = t.TempDir()
	}
	if c.planeBytes > 0 {
		o.planeBytes = c.planeBytes
	}
	o.sumEvery, o.window = c.sums, c.window
	o.groups = c.groups
	o.tune = func(sc *store.Config) {
		sc.Verify = c.policy
		sc.Readers, sc.Writers, sc.Checkers, sc.BatchBytes = 2, 2, 2, 64<<10
	}
	if c.faults {
		clock := clockwork.NewRealClock()
		fp, cp := fault.New(seed), fault.New(seed+1)
		for _, op := range []string{faulty.OpLookup, faulty.OpRetain, faulty.OpGet, faulty.OpPut, faulty.OpDelete} {
			fp.Add(fault.Rate(op, 0.02).Fail(nil))
			fp.Add(fault.Rate(op, 0.02).Delay(time.Millisecond))
		}
		for _, op := range []string{faulty.OpRetain, faulty.OpOpen, faulty.OpReserve, faulty.OpPublish} {
			cp.Add(fault.Rate(op, 0.01).Fail(nil))
		}
		if !c.direct { // the decorator would hide direct reads
			o.wrapFile = func(tr tier.Tier) tier.Tier { return faulty.New(tr, fp, clock) }
		}
		o.wrapCache = func(tr tier.SlotTier) tier.SlotTier { return faulty.NewSlots(tr, cp, clock) }
	}
	if c.direct {
		o.direct = &directOptions{model: sim.StorageModel{Aligned: true}, queues: int(seed % 3), handles: 5}
	}
	m.r = newRig(t, o)
	if c.direct && c.faults {
		m.r.plan.Add(fault.Rate(sim.OpFileRegister, 0.05).Fail(nil))
		m.r.plan.Add(fault.Rate(sim.OpFileRead, 0.03).Fail(nil))
		m.r.plan.Add(fault.Rate(sim.OpFileWrite, 0.03).Fail(nil))
		m.r.plan.Add(fault.Rate(sim.OpFileWrite, 0.05).Partial(nil))
		m.r.plan.Add(fault.Rate(sim.OpFileRead, 0.05).Partial(nil))
		m.r.plan.Add(fault.Rate(sim.OpFileRead, 0.05).Corrupt())
	}
	if c.faults {
		// Only the store's streams launch kernels; the test copies with copy engines.
		m.r.plan.Add(fault.Rate(sim.OpLaunch, 0.02).Fail(nil))
		m.r.plan.Add(fault.Rate(sim.OpLaunch, 0.05).Delay(time.Millisecond))
	}
	if c.corrupt {
		m.r.plan.Add(fault.Rate(sim.OpLaunch, 0.05).Corrupt())
	}
	for p := range uint32(modelPages) {
		m.free = append(m.free, p)
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, %s:\n%s", seed, c.name, strings.Join(m.history, "\n"))
		}
	}()
	for range modelOps {
		m.step()
	}
	m.restart(false)
	for n := range m.blocks {
		m.checkLoad(m.begin(false, []int{n}, false))
	}
}

func (m *model) log(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) step() {
	switch x := m.rng.IntN(100); {
	case x < 3:
		m.remove()
	case x < 30:
		m.begin(true, m.draw(), m.c.layerwise && m.rng.IntN(2) == 0)
	case x < 60:
		m.begin(false, m.draw(), m.rng.IntN(2) == 0)
	case x < 75:
		m.finishOne()
	case x < 80:
		m.lookup()
	case x < 87:
		m.leaseOne()
	case x < 90:
		m.log("prefetch")
		_, err := m.r.st.Prefetch(m.r.ctx(), m.r.keys(m.draw()...))
		m.r.must(err)
	case x < 94:
		m.damage()
	case x < 97:
		m.restart(false)
	default:
		m.restart(true)
	}
}

// draw returns a random set of blocks.
func (m *model) draw() []int {
	return m.rng.Perm(modelBlocks)[:1+m.rng.IntN(6)]
}

// takePages removes pages from free. It checks that they were not written since their last task
// ended.
func (m *model) takePages(k int) []uint32 {
	m.rng.Shuffle(len(m.free), func(i, j int) { m.free[i], m.free[j] = m.free[j], m.free[i] })
	pages := m.free[:k:k]
	m.free = m.free[k:]
	for _, p := range pages {
		if m.freed[p] && !m.r.poisoned(p) {
			m.t.Fatalf("page %d was written to after its task was done", p)
		}
		delete(m.freed, p)
	}
	return pages
}

func (m *model) givePages(refs []store.Ref) {
	for _, ref := range refs {
		m.r.poison(ref.Page)
		m.freed[ref.Page] = true
		m.free = append(m.free, ref.Page)
	}
}

// begin starts a dump or a load of blocks ns.
func (m *model) begin(dump bool, ns []int, layerwise bool) *pending {
	for len(m.free) < len(ns) || len(m.tasks) >= 4 {
		m.finishOne()
	}
	p := &pending{ns: ns, gone: make(map[int]bool)}
	for i, page := range m.takePages(len(ns)) {
		p.refs = append(p.refs, store.Ref{Key: m.r.key(ns[i]), Page: page})
	}
	var err error
	if dump {
		p.what = fmt.Sprintf("dump %v layerwise=%v", ns, layerwise)
		for i, n := range ns {
			m.r.fill(p.refs[i].Page, n)
			m.blocks[n].tried = true
		}
		p.dump, err = m.r.st.Dump(m.r.ctx(), m.r.pages, p.refs, store.DumpOptions{Layerwise: layerwise})
		m.r.must(err)
		if layerwise {
			m.submitShards(p)
		}
	} else {
		for i, ref := range p.refs {
			m.r.poison(ref.Page)
			p.known = append(p.known, m.blocks[ns[i]])
		}
		var under *store.Lease // a load of blocks that this lease does not pin is refused
		if m.rng.IntN(2) == 0 {
			p.lease, err = m.r.st.LeasePrefix(m.r.ctx(), m.r.keys(ns...), 0)
			m.r.must(err)
			switch k := p.lease.Len(); {
			case k > len(ns):
				m.t.Fatalf("leased %d of %d blocks", k, len(ns))
			case k == len(ns):
				under = p.lease
			}
		}
		p.what = fmt.Sprintf("load %v layerwise=%v", ns, layerwise)
		p.load, err = m.r.st.Load(m.r.ctx(), under, m.r.pages, p.refs, store.LoadOptions{Layerwise: layerwise})
		m.r.must(err)
	}
	m.log("begin %s", p.what)
	m.tasks = append(m.tasks, p)
	if m.rng.IntN(8) == 0 {
		m.log("cancel it")
		p.quit = true
		if dump {
			p.dump.Cancel()
		} else {
			p.load.Cancel()
		}
	}
	return p
}

// submitShards submits the shards of a layerwise dump in random order. Sometimes it omits the last
// one and cancels the dump.
func (m *model) submitShards(p *pending) {
	short := m.rng.IntN(10) == 0
	for i, s := range m.rng.Perm(m.r.o.shards) {
		if short && i == m.r.o.shards-1 {
			p.quit = true
			p.dump.Cancel()
			return
		}
		if err := p.dump.SubmitShard(m.r.ctx(), s, []mem.Dependency{}...); err != nil && !m.c.faults {
			m.t.Fatal(err)
		}
	}
}

func (m *model) finishOne() {
	if len(m.tasks) == 0 {
		return
	}
	p := m.tasks[m.rng.IntN(len(m.tasks))]
	if p.dump != nil {
		m.checkDump(p)
	} else {
		m.checkLoad(p)
	}
}

func (m *model) forget(p *pending) {
	for i, o := range m.tasks {
		if o == p {
			m.tasks = append(m.tasks[:i], m.tasks[i+1:]...)
			return
		}
	}
}

func (m *model) checkDump(p *pending) {
	m.forget(p)
	m.r.must(p.dump.SourceFree(m.r.ctx()))
	m.givePages(p.refs) // overwrites the pages before the dump is durable
	m.r.resolved(p.dump.Done())
	for i, err := range p.dump.Errs() {
		n := p.ns[i]
		m.log("end %s: block %d: %v", p.what, n, err)
		switch {
		case err == nil:
			if m.c.dirs > 0 && !p.gone[n] {
				m.blocks[n].durable, m.blocks[n].twice = true, m.c.log && len(p.dump.LeftOut()) == 0
			}
		case m.blocks[n].dirty && errors.Is(err, errdefs.ErrCorrupt):
		case !m.excused(p, err):
			m.t.Fatalf("%s: block %d failed without a reason: %v", p.what, n, err)
		}
	}
}

func (m *model) checkLoad(p *pending) {
	m.forget(p)
	m.r.resolved(p.load.Done())
	if p.lease != nil {
		p.lease.Release()
	}
	for i, err := range p.load.Errs() {
		n := p.ns[i]
		b := &m.blocks[n]
		m.log("end %s: block %d: %v", p.what, n, err)
		switch {
		case err == nil && !b.tried && !p.known[i].tried:
			m.t.Fatalf("%s: block %d was found and never dumped", p.what, n)
		case err == nil:
			if err := m.r.checkPage(p.refs[i].Page, n); err != nil {
				m.t.Fatalf("%s succeeded: %v", p.what, err)
			}
		case m.excused(p, err):
		case b.damaged && (errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrNotFound)):
		case !p.known[i].durable && errors.Is(err, errdefs.ErrNotFound):
		default:
			m.t.Fatalf("%s: block %d (%+v) was lost without a reason: %v", p.what, n, p.known[i], err)
		}
	}
	m.givePages(p.refs)
}

// excused reports whether the test injected the cause of err.
func (m *model) excused(p *pending, err error) bool {
	return p.quit && (errors.Is(err, errdefs.ErrCanceled) || errors.Is(err, errdefs.ErrClosed)) || m.c.faults && errors.Is(err, fault.ErrInjected) ||
		m.c.corrupt && errors.Is(err, errdefs.ErrCorrupt)
}

func (m *model) lookup() {
	ns := m.draw()
	hits, err := m.r.st.Lookup(m.r.ctx(), m.r.keys(ns...))
	if err != nil && !errors.Is(err, fault.ErrInjected) {
		m.t.Fatal(err)
	}
	for i, h := range hits {
		if h.State == tier.Ready && !m.blocks[ns[i]].tried {
			m.t.Fatalf("block %d is ready in %s and was never dumped", ns[i], h.Tier)
		}
	}
}

func (m *model) leaseOne() {
	if len(m.leases) > 2 {
		m.leases[0].Release()
		m.leases = m.leases[1:]
	}
	l, err := m.r.st.LeasePrefix(m.r.ctx(), m.r.keys(m.draw()...), 0)
	m.r.must(err)
	m.leases = append(m.leases, l)
}

// damage flips a bit of a block, in the cache or in its file.
func (m *model) damage() {
	n := m.rng.IntN(modelBlocks)
	layout := m.r.groups[m.r.groupOf(n)].Layout
	off := layout.ShardOff(m.rng.IntN(layout.Shards())) + m.rng.Int64N(16)
	if m.rng.IntN(2) == 0 {
		// A checksum cannot detect a bit that flips between the check and the copy. So end all
		// tasks first.
		for len(m.tasks) > 0 {
			m.finishOne()
		}
		sl, err := m.r.cache.Open(m.r.ctx(), m.r.key(n))
		if err != nil {
			return
		}
		sl.Extent().Bytes()[off] ^= 1
		sl.Release()
		m.log("damage block %d in the cache", n)
		m.blocks[n].dirty = true
		if m.c.dirs == 0 {
			m.blocks[n].damaged = true
		}
		return
	}
	for _, dir := range m.r.o.dirs {
		path := findFile(dir, m.r.key(n))
		if path == "" {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		m.r.must(err)
		var b [1]byte
		_, err = f.ReadAt(b[:], off)
		m.r.must(err)
		b[0] ^= 1
		_, err = f.WriteAt(b[:], off)
		m.r.must(errors.Join(err, f.Close()))
		m.log("damage block %d in its file", n)
		if b := &m.blocks[n]; b.twice {
			b.twice = false // only the log has it now
		} else {
			b.damaged, b.durable = true, false
		}
	}
}

// restart closes or crashes the store, and opens it again over the same directories.
func (m *model) restart(crash bool) {
	if crash {
		m.log("crash")
		for _, p := range m.tasks {
			p.quit = true
		}
		m.r.crash()
	}
	for len(m.tasks) > 0 {
		m.finishOne()
	}
	for _, l := range m.leases {
		l.Release()
	}
	m.leases = nil
	if !crash {
		m.log("restart")
		m.r.must(m.r.st.Close(m.r.ctx()))
		if n := m.r.cache.Stats().Retained; n != 0 {
			m.t.Fatalf("%d pins are left after Close", n)
		}
		m.r.closeTiers()
	}
	for i := range m.blocks {
		m.blocks[i].dirty = false
	}
	m.r.openStore()
}

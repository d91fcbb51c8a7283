package stress

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// client makes requests one after another on its own pages. Its dumps become durable in the
// background.
type client struct {
	*life
	i      int
	rng    *rand.Rand
	viewer viewer
	dumps  []dumped
	leases []leasedBlocks
	gone   bool // the store is closed
}

type dumped struct {
	task *store.DumpTask
	ns   []int
}

// leasedBlocks is a lease and the blocks that it pins.
type leasedBlocks struct {
	*store.Lease
	ns []int
}

func newClient(l *life, i int, seed uint64) *client {
	c := &client{life: l, i: i, rng: rand.New(rand.NewPCG(seed, 2))}
	c.viewer = newViewer(l, i)
	return c
}

func (c *client) run() {
	for !c.gone && (c.how != finish || c.ctx.Err() == nil) {
		switch x := c.rng.IntN(100); {
		case x < 45:
			c.load()
		case x < 77:
			c.dump()
		case x < 82:
			c.lookup()
		case x < 86:
			c.lease()
		case x < 89:
			c.prefetch()
		case x < 95:
			c.remove()
		default:
			c.waitDurable()
		}
	}
	for len(c.dumps) > 0 {
		c.waitDurable()
	}
	for _, h := range c.leases {
		h.Release()
	}
	c.viewer.close()
}

// begun counts a request and reports whether it was started.
func (c *client) begun(what string, err error) bool {
	c.tally.add("requests "+what, 1)
	c.explain(what, err)
	c.gone = c.gone || errors.Is(err, errdefs.ErrClosed)
	return err == nil
}

// within returns a context for one wait and its duration. It is usually long enough for the
// request.
func (c *client) within() (context.Context, context.CancelFunc, time.Duration) {
	d := durableMax
	if c.rng.IntN(4) == 0 {
		d = time.Duration(c.rng.IntN(20_000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	return ctx, cancel, d
}

// draw returns some adjacent blocks. Half of the time they are among those that all clients use.
func (c *client) draw() []int {
	first := c.rng.IntN(keySpace)
	if c.rng.IntN(2) == 0 {
		first %= 2 * slots
	}
	var ns []int
	for n := first; n < min(first+1+c.rng.IntN(maxBlocks), keySpace); n++ {
		ns = append(ns, n)
	}
	return ns
}

func (c *client) keysOf(ns []int) []block.Key {
	keys := make([]block.Key, len(ns))
	for i, n := range ns {
		keys[i] = c.keys[n]
	}
	return keys
}

// refs assigns pages of this client to blocks, in random order.
func (c *client) refs(ns []int) []store.Ref {
	at := c.rng.Perm(pagesEach)
	refs := make([]store.Ref, len(ns))
	for i, n := range ns {
		refs[i] = store.Ref{Key: c.keys[n], Page: uint32(c.i*pagesEach + at[i])}
	}
	return refs
}

// mustBe reports whether a block must be found: it was durable, and no fault or bound may have
// removed it.
func (c *client) mustBe(n int) bool {
	return c.Bytes == 0 && !c.FileFaults && !victim(n) && c.durable[n].Load()
}

// wait waits for a task until its context ends. Then it cancels the task and waits for its end.
func (c *client) wait(what string, wait func(context.Context) error, cancel func(), done <-chan struct{}) {
	ctx, end, most := c.within()
	defer end()
	if c.rng.IntN(10) == 0 {
		cancel()
	}
	c.bounded(c.i, what, most, func() { _ = wait(ctx) })
	if ctx.Err() != nil {
		cancel()
	}
	c.bounded(c.i, what+" to its end", 0, func() { <-done })
}

func (c *client) lookup() {
	ns := c.draw()
	must := make([]bool, len(ns))
	for i, n := range ns {
		must[i] = c.mustBe(n)
	}
	versions := c.versionsOf(ns)
	ctx, cancel, most := c.within()
	defer cancel()
	var hits []store.Hit
	var err error
	c.bounded(c.i, "Lookup", most, func() { hits, err = c.engine.Store().Lookup(ctx, c.keysOf(ns)) })
	if !c.begun("lookup", err) {
		return
	}
	for i, n := range ns {
		switch ready := hits[i].State == tier.Ready; {
		case ready && ghost(n):
			c.reportFailure("lookup finds block %d, which nobody has dumped, in %s", n, hits[i].Tier)
		case ready && c.stayedRemoved(n, versions[i]):
			c.reportFailure("lookup finds block %d, which was removed, in %s", n, hits[i].Tier)
		case !ready && must[i]:
			c.reportFailure("lookup does not find block %d, which is durable: %v", n, hits[i].State)
		}
	}
}

// leased leases a prefix of the blocks.
func (c *client) leased(ns []int) *store.Lease {
	ctx, cancel, most := c.within()
	defer cancel()
	var l *store.Lease
	var err error
	ttl := time.Duration(c.rng.Int64N(int64(2 * leaseMax)))
	if c.rng.IntN(3) == 0 {
		ttl /= 100
	}
	c.bounded(c.i, "LeasePrefix", most, func() { l, err = c.engine.Store().LeasePrefix(ctx, c.keysOf(ns), ttl) })
	if !c.begun("lease", err) {
		return nil
	}
	if l.Len() > 0 && ghost(ns[0]) {
		c.reportFailure("block %d is leased, and nobody has dumped it", ns[0])
	}
	return l
}

// lease keeps a few leases. It releases some of them and lets others expire.
func (c *client) lease() {
	ns := c.draw()
	if l := c.leased(ns); l != nil && l.Len() > 0 {
		c.leases = append(c.leases, leasedBlocks{l, ns[:l.Len()]})
	}
	if len(c.leases) > 3 {
		if c.rng.IntN(3) > 0 {
			c.leases[0].Release()
		}
		c.leases = c.leases[1:]
	}
}

func (c *client) prefetch() {
	ctx, cancel, most := c.within()
	defer cancel()
	var t *store.PrefetchTask
	var err error
	c.bounded(c.i, "Prefetch", most, func() { t, err = c.engine.Store().Prefetch(ctx, c.keysOf(c.draw())) })
	if !c.begun("prefetch", err) {
		return
	}
	c.wait("prefetch", t.Wait, t.Cancel, t.Done())
	for _, err := range t.Errs() {
		c.explain("prefetched block", err)
	}
}

// dependency is a mem.Dependency that the test resolves.
type dependency struct {
	done chan struct{}
	err  error
}

func (g *dependency) Done() <-chan struct{} { return g.done }
func (g *dependency) Err() error            { return g.err }

// after usually returns nothing. Otherwise it returns a dependency that is soon resolved, sometimes
// with an error.
func (c *client) after() []mem.Dependency {
	if c.rng.IntN(8) > 0 {
		return nil
	}
	g := &dependency{done: make(chan struct{})}
	if c.rng.IntN(4) == 0 {
		g.err = errdefs.ErrBroken
	}
	time.AfterFunc(time.Duration(c.rng.IntN(10))*time.Millisecond, func() { close(g.done) })
	return []mem.Dependency{g}
}

func (c *client) dump() {
	var ns []int
	for _, n := range c.drawOwn() {
		if !ghost(n) {
			ns = append(ns, n)
		}
	}
	c.dumpedAgain(ns)
	refs := c.refs(ns)
	for i, ref := range refs {
		if !c.viewer.checkPoisoned(ref.Page) || !c.viewer.fill(ref.Page, ns[i]) {
			return
		}
	}
	o := store.DumpOptions{Layerwise: c.rng.IntN(3) == 0, After: c.after()}
	ctx, cancel, most := c.within()
	defer cancel()
	var t *store.DumpTask
	var err error
	c.bounded(c.i, "Dump", most, func() { t, err = c.engine.Store().Dump(ctx, c.pages, refs, o) })
	if !c.begun("dump", err) {
		return
	}
	if o.Layerwise {
		c.submitShards(t)
	}
	if c.rng.IntN(10) == 0 {
		t.Cancel()
	}
	c.bounded(c.i, "SourceFree", most, func() { err = t.SourceFree(ctx) })
	if err != nil { // the context has ended
		if c.rng.IntN(2) == 0 {
			t.Cancel()
		}
		c.bounded(c.i, "SourceFree", durableMax, func() { _ = t.SourceFree(context.Background()) })
	}
	for _, ref := range refs { // dumps must store the bytes from before this change
		c.viewer.poison(ref.Page)
	}
	if c.dumps = append(c.dumps, dumped{t, ns}); len(c.dumps) > 3 {
		c.waitDurable()
	}
}

// submitShards submits the shards in random order. Sometimes it omits one.
func (c *client) submitShards(t *store.DumpTask) {
	all := c.rng.Perm(c.layout.Shards())
	if c.rng.IntN(20) == 0 {
		all = all[1:]
	}
	for _, shard := range all {
		c.explain("submit shard", t.SubmitShard(context.Background(), shard, c.after()...))
	}
}

// waitDurable waits until the oldest dump is durable, and reports its durable blocks.
func (c *client) waitDurable() {
	if len(c.dumps) == 0 {
		return
	}
	d := c.dumps[0]
	c.dumps = c.dumps[1:]
	ctx, cancel, most := c.within()
	defer cancel()
	c.bounded(c.i, "Published", most, func() { _ = d.task.Published(ctx) })
	c.bounded(c.i, "Durable", most, func() { _ = d.task.Durable(ctx) })
	if c.rng.IntN(4) == 0 {
		d.task.Cancel()
	}
	c.bounded(c.i, "Durable without a context", durableMax, func() { _ = d.task.Durable(context.Background()) })
	var durable []int
	for i, err := range d.task.Errs() {
		c.explain("dumped block", err)
		if err == nil {
			durable = append(durable, d.ns[i])
		}
	}
	c.reportDurable(durable)
}

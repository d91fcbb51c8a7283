package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/statuspage"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/transfer"
)

// Metrics exposes the metrics of the Catalog, and metrics of the process and the Go runtime. A
// metric without a source is omitted.
type Metrics struct {
	mu      sync.Mutex
	ready   func() error                 // guarded by mu
	store   func() store.Stats           // guarded by mu
	tiers   map[string]func() tier.Stats // guarded by mu
	manager func() manager.Stats         // guarded by mu
	replay  *Progress                    // guarded by mu
	planner func() plan.Figures          // guarded by mu
	nics    func() []stream.NICStats     // guarded by mu

	transfer func() transfer.Stats                 // guarded by mu
	blocks   func() BlockServer                    // guarded by mu
	remote   map[string]func() remote.PeerStats    // by tier; guarded by mu
	object   map[string]func() object.RequestStats // by tier; guarded by mu
	buffers  map[string]func() mem.BufferStats     // guarded by mu
	arenas   map[string]func() mem.ArenaStats      // guarded by mu

	page     *statuspage.Page
	journals []*journal.Journal        // guarded by mu
	config   []statuspage.Setting      // guarded by mu
	tables   []func() statuspage.Table // guarded by mu
}

// New returns Metrics without sources.
func New() *Metrics {
	m := &Metrics{
		tiers: make(map[string]func() tier.Stats), remote: make(map[string]func() remote.PeerStats),
		object: make(map[string]func() object.RequestStats), buffers: make(map[string]func() mem.BufferStats),
		arenas: make(map[string]func() mem.ArenaStats),
	}
	m.page = statuspage.New(statuspage.Source{Metrics: m.WriteText, Ready: m.Ready, Journals: m.allJournals, Config: m.configuration, Tables: m.allTables})
	return m
}

// SetReady sets the check for /readyz. The program is not ready while it returns an error. With
// nil, the default, it is always ready.
func (m *Metrics) SetReady(check func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = check
}

// Ready returns nil if the program is ready, otherwise the reason.
func (m *Metrics) Ready() error {
	m.mu.Lock()
	check := m.ready
	m.mu.Unlock()
	if check == nil {
		return nil
	}
	return check()
}

// SetStore sets the source of the store's metrics and replaces an earlier one. Nil removes it. If
// stats uses the store's memory, remove it before the memory is freed.
func (m *Metrics) SetStore(stats func() store.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store = stats
}

// SetManager sets the source of a manager's metrics. Nil removes it.
func (m *Metrics) SetManager(stats func() manager.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.manager = stats
}

// SetTier sets the source of the tier metrics with label name, and of the metrics of block servers
// if t is a remote.Tier, or of a bucket if it is an object.Tier. Nil removes it. It returns ErrNotSupported if t has no Stats.
func (m *Metrics) SetTier(name string, t tier.Tier) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t == nil {
		delete(m.tiers, name)
		delete(m.remote, name)
		delete(m.object, name)
		return nil
	}
	s, ok := t.(tier.Statter)
	if !ok {
		return fmt.Errorf("add tier %q to the metrics: %T has no figures: %w", name, t, errdefs.ErrNotSupported)
	}
	m.tiers[name] = s.Stats
	if p, ok := t.(peerStatter); ok {
		m.remote[name] = p.PeerStats
	}
	if r, ok := t.(requestStatter); ok {
		m.object[name] = r.RequestStats
	}
	return nil
}

// SetReplay sets the source of the replay's metrics. Nil removes it.
func (m *Metrics) SetReplay(p *Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replay = p
}

// collect reads every source once, so that the values of a source are consistent, and writes the
// metrics.
func (m *Metrics) collect(w *textWriter) {
	m.mu.Lock()
	storeStats, managers, replay, planner, nics, transfers, blocks := m.store, m.manager, m.replay, m.planner, m.nics, m.transfer, m.blocks
	var tiers []*namedTier
	for _, name := range slices.Sorted(maps.Keys(m.tiers)) {
		tiers = append(tiers, &namedTier{name: name, read: m.tiers[name]})
	}
	buffers, arenas, peers, buckets := maps.Clone(m.buffers), maps.Clone(m.arenas), maps.Clone(m.remote), maps.Clone(m.object)
	m.mu.Unlock()

	// The sources take their own locks, so they are called without m.mu.
	send(w, buildFamilies, struct{}{})
	if storeStats != nil {
		s := storeStats()
		send(w, storeFamilies, &s)
		sendTimes(w, &s)
	}
	for _, t := range tiers {
		t.stats = t.read()
	}
	send(w, tierFamilies, tiers...)
	if managers != nil {
		s := managers()
		send(w, managerFamilies, &s)
	}
	if planner != nil {
		f := planner()
		send(w, plannerFamilies, &f)
	}
	if nics != nil {
		stats := nics()
		sources := make([]*stream.NICStats, len(stats))
		for i := range stats {
			sources[i] = &stats[i]
		}
		send(w, nicFamilies, sources...)
	}
	if transfers != nil {
		s := transfers()
		send(w, transferFamilies, &s)
	}
	for _, read := range peers { // a pipeline has at most one such tier
		s := read()
		send(w, remoteFamilies, &s)
	}
	for _, read := range buckets {
		s := read()
		send(w, objectFamilies, &s)
	}
	if blocks != nil {
		s := blocks()
		send(w, blockFamilies, &s)
	}
	sendPools(w, buffers, arenas)
	if replay != nil {
		send(w, replayFamilies, replay)
	}
	send(w, processFamilies, readProcess())
}

// sendPools writes the metrics of buffers and arenas.
func sendPools(w *textWriter, buffers map[string]func() mem.BufferStats, arenas map[string]func() mem.ArenaStats) {
	var pools []*namedBuffers
	for _, name := range slices.Sorted(maps.Keys(buffers)) {
		pools = append(pools, &namedBuffers{name, buffers[name]()})
	}
	send(w, bufferFamilies, pools...)
	var growing []*namedArena
	for _, name := range slices.Sorted(maps.Keys(arenas)) {
		growing = append(growing, &namedArena{name, arenas[name]()})
	}
	send(w, arenaFamilies, growing...)
}

// send writes families with the values of all sources. A family without a value is omitted.
func send[S any](w *textWriter, fs []family[S], sources ...S) {
	for i := range fs {
		f, begun := &fs[i], false
		for _, s := range sources {
			f.read(s, func(v float64, labels ...string) {
				if !begun {
					w.header(&f.Metric)
					begun = true
				}
				w.sample(&f.Metric, "", v, labels, "")
			})
		}
	}
}

// sendTimes writes the store's histograms.
func sendTimes(w *textWriter, s *store.Stats) {
	for i := range storeTimes {
		f, begun := &storeTimes[i], false
		f.read(s, func(times *store.Latency, labels ...string) {
			if !begun {
				w.header(&f.Metric)
				begun = true
			}
			w.histogram(&f.Metric, times, labels)
		})
	}
}

// namedTier is a tier with its statistics at the time of a scrape.
type namedTier struct {
	name  string
	read  func() tier.Stats
	stats tier.Stats
}

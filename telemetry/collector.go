package telemetry

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/transfer"
)

// Metrics is a registry of everything in the Catalog, and of the Go runtime's and the process's own metrics. Sources are
// added as they are opened; a metric without a source has no value.
type Metrics struct {
	registry *prometheus.Registry
	collect  collector
}

// New returns Metrics without sources.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.collect.tiers = make(map[string]func() tier.Stats)
	m.registry.MustRegister(&m.collect, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry returns the registry, for what a caller wants to add or gather itself.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// SetStore makes stats the source of the store's metrics; nil takes it away, which must happen before the store's memory
// goes if stats would touch it. A later store takes the place of an earlier one.
func (m *Metrics) SetStore(stats func() store.Stats) {
	m.collect.mu.Lock()
	defer m.collect.mu.Unlock()
	m.collect.store = stats
}

// SetTier makes t the source of the metrics labeled with name; nil takes it away. Where t keeps no figures the error
// wraps ErrNotSupported.
func (m *Metrics) SetTier(name string, t tier.Tier) error {
	m.collect.mu.Lock()
	defer m.collect.mu.Unlock()
	if t == nil {
		delete(m.collect.tiers, name)
		return nil
	}
	s, ok := t.(tier.Statter)
	if !ok {
		return fmt.Errorf("add tier %q to the metrics: %T keeps no figures: %w", name, t, errdefs.ErrNotSupported)
	}
	m.collect.tiers[name] = s.Stats
	return nil
}

// SetReplay makes p the source of the replay's metrics; nil takes it away.
func (m *Metrics) SetReplay(p *Progress) {
	m.collect.mu.Lock()
	defer m.collect.mu.Unlock()
	m.collect.replay = p
}

// collector reads the sources when a scrape asks.
type collector struct {
	mu      sync.Mutex
	store   func() store.Stats
	tiers   map[string]func() tier.Stats
	replay  *Progress
	planner func() plan.Figures
	nics    func() []stream.NICStats
	files   func() streamfile.Stats

	transfer func() transfer.Stats
}

// Describe announces every metric of the catalog, so that the registry finds two of one name at once.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range Catalog() {
		ch <- m.desc()
	}
}

// Collect reads every source once, so that the figures of one source belong together.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	storeStats, replay, planner, nics, files, transfers := c.store, c.replay, c.planner, c.nics, c.files, c.transfer
	var tiers []namedTier
	for name, stats := range c.tiers {
		tiers = append(tiers, namedTier{name: name, read: stats})
	}
	c.mu.Unlock()

	// The sources are called without the lock: they take their own.
	send(ch, buildFamilies, struct{}{})
	if storeStats != nil {
		s := storeStats()
		send(ch, storeFamilies, &s)
		sendTimes(ch, &s)
	}
	for i := range tiers {
		tiers[i].stats = tiers[i].read()
		send(ch, tierFamilies, &tiers[i])
	}
	if planner != nil {
		f := planner()
		send(ch, plannerFamilies, &f)
	}
	if nics != nil {
		for _, s := range nics() {
			send(ch, nicFamilies, &s)
		}
	}
	if files != nil {
		s := files()
		send(ch, fileFamilies, &s)
	}
	if transfers != nil {
		s := transfers()
		send(ch, transferFamilies, &s)
	}
	if replay != nil {
		send(ch, replayFamilies, replay)
	}
}

func send[S any](ch chan<- prometheus.Metric, fs []family[S], s S) {
	for i := range fs {
		f := &fs[i]
		desc, typ := f.desc(), f.Type.value()
		f.read(s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, typ, v, labels...)
		})
	}
}

// sendTimes sends the store's histograms.
func sendTimes(ch chan<- prometheus.Metric, s *store.Stats) {
	for i := range storeTimes {
		f := &storeTimes[i]
		desc := f.desc()
		f.read(s, func(times *store.Latency, labels ...string) {
			upTo, n := make(map[float64]uint64, len(store.LatencyBounds)), uint64(0)
			for i, bound := range store.LatencyBounds {
				n += uint64(times.Counts[i])
				upTo[bound.Seconds()] = n
			}
			n += uint64(times.Counts[len(store.LatencyBounds)])
			ch <- prometheus.MustNewConstHistogram(desc, n, times.Sum.Seconds(), upTo, labels...)
		})
	}
}

func (m *Metric) desc() *prometheus.Desc { return prometheus.NewDesc(m.Name, m.Help, m.Labels, nil) }

// namedTier is one tier's figures at a scrape.
type namedTier struct {
	name  string
	read  func() tier.Stats
	stats tier.Stats
}

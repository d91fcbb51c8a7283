package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/transfer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// countingTier is a tier with fixed statistics. No other method is called.
type countingTier struct {
	tier.Tier
	stats tier.Stats
}

func (c *countingTier) Stats() tier.Stats { return c.stats }

// full returns Metrics with every source, in which no figure is zero.
func full(t *testing.T) *telemetry.Metrics {
	t.Helper()
	m := telemetry.New()
	m.SetStore(func() store.Stats {
		return store.Stats{
			Tiers: []store.TierStats{{Name: "cache", Hits: 7}, {Name: "file", Hits: 3, LeftOut: 2}}, Loads: 11, Mismatches: 1,
			StreamsReopened: 4, LoadsExpired: 5, Direct: 61, DirectFailed: 62,
			LoadPaths: []store.PathStats{{
				Path: stream.PathKernel, Bytes: 4096, Busy: 1500 * time.Millisecond, Copied: store.Latency{Counts: [20]int64{1, 2, 19: 4}, Sum: 50 * time.Second},
			}},
			WriteWaits: store.Latency{Counts: [20]int64{3: 5}, Sum: 400 * time.Microsecond},
			DumpPaths:  []store.PathStats{{Path: stream.PathKernel, Bytes: 8192}},
		}
	})
	for name, tr := range map[string]tier.Tier{
		"cache":  &countingTier{stats: tier.Stats{Blocks: 5, Bytes: 1 << 20, CapacityBytes: 1 << 30, Hits: 9, Evictions: 2}},
		"file":   &countingTier{stats: tier.Stats{Corrupt: 1, Swept: 6}},
		"remote": peers{}, "object": bucket{},
	} {
		if err := m.SetTier(name, tr); err != nil {
			t.Fatal(err)
		}
	}
	p := telemetry.NewProgress(100)
	p.Request(20, 15, 1<<20, 0)
	p.Request(10, 0, 0, 3)
	m.SetReplay(p)
	m.SetPlanner(planner(t).Figures)
	m.SetManager(func() manager.Stats { return manager.Stats{Blocks: 4, Jobs: 1, FromFiles: 6} })
	m.SetNICs(func() []stream.NICStats {
		return []stream.NICStats{{
			Name: "mlx5_0", Requests: 12, Bytes: 1 << 20, Doorbells: 2, Failed: 1, Flushed: 3, Broken: 1, QueuePairs: 4, QueuePairsOpened: 8, ConnectRetries: 9,
			Registrations:       []stream.RegistrationStats{{Method: "host", Live: 1, Bytes: 4096, Total: 5}, {Method: "dma-buf", Live: 2, Bytes: 8192, Total: 2}},
			RegistrationsFailed: 6,
		}}
	})
	m.SetBuffers("send", func() mem.BufferStats {
		return mem.BufferStats{SlotPoolStats: mem.SlotPoolStats{Slots: 128, Lent: 9, HighWater: 77, Quarantined: 2, Waiting: 3, Waits: 40, Unzeroed: 5}, Kept: 1}
	})
	m.SetArena("rpc-device", func() mem.ArenaStats {
		return mem.ArenaStats{Regions: 2, Bytes: 2 << 20, Blocks: 30, Lent: 7, HighWater: 29, Waiting: 3, Waits: 41, Grown: 5, Failed: 4, Trimmed: 6, Kept: 1}
	})
	m.SetTransfer(func() transfer.Stats {
		return transfer.Stats{
			Segments: 2, Connections: 3, Batches: 1, Requests: 14, Refused: 2, Malformed: 1, BytesIn: 4096, BytesOut: 8192, Retries: 5, Fences: 1, Fallbacks: 4, Reconnects: 6, Refusals: 7, QueuesLeft: 8, ConnectRetries: 10,
			Metadata: errdefs.ErrBusy,
			Paths:    []transfer.PathStats{{Path: transfer.PathTCP, Bytes: 100, Tasks: map[transfer.Status]int64{transfer.StatusCompleted: 9, transfer.StatusTimeout: 1}}},
		}
	})
	m.SetBlockServer(func() telemetry.BlockServer {
		return telemetry.BlockServer{
			Server: server.Stats{Connections: 3, Refused: 4, Denied: 5, FailedEntries: 6, Full: 17, TimedOut: 18, Waited: 19}, RDMA: &gateway.Stats{Attached: 13, Denied: 14, Requests: 15, Refused: 16}, CapacityBytes: 1 << 30, Identities: 7,
			Tenants: map[string]blockhost.Usage{"a": {Blocks: 8, Hits: 9, DiskErrors: 10, Unwritten: 11, DiskBlocks: 13, DiskBytes: 14, DiskEvictions: 15, DiskFull: 16}, "b": {Blocks: 12}},
		}
	})
	return m
}

// planner returns a planner with a budget that has chosen a path twice and observed twice the
// predicted time.
func planner(t *testing.T) *plan.Planner {
	t.Helper()
	b, err := plan.NewBudget(plan.BudgetOptions{MaxCTAs: 3})
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(plan.Default(), plan.Options{Budget: b})
	if err != nil {
		t.Fatal(err)
	}
	r := plan.Request{Dir: plan.H2D, Pieces: 1, Bytes: 4096}
	for range 2 { // a single observation has no effect
		c := p.Choose(r, plan.PathSet(stream.PathCopyEngine))
		p.Observe(c, r, 2*c.Predicted)
	}
	return p
}

// text returns the metrics in Prometheus's text format.
func text(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	var b bytes.Buffer
	if err := m.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// parse parses the metrics with Prometheus's own parser.
func parse(t *testing.T, m *telemetry.Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text(t, m)))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func scrape(t *testing.T, addr string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("scrape: status %d, %v", resp.StatusCode, err)
	}
	return string(body)
}

func TestScrape(t *testing.T) {
	srv, err := full(t).Serve(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := scrape(t, srv.Addr().String())
	for _, want := range []string{
		`kvlane_store_hits_total{tier="file"} 3`,
		"kvlane_store_loads_total 11",
		"kvlane_store_corrupt_total 1",
		`kvlane_store_left_out_total{tier="file"} 2`,
		"kvlane_store_stream_reopens_total 4",
		`kvlane_copy_bytes_total{path="kernel",direction="dump"} 8192`,
		`kvlane_copy_busy_seconds_total{path="kernel",direction="load"} 1.5`,
		`kvlane_copy_seconds_bucket{path="kernel",direction="load",le="1e-05"} 1`,
		`kvlane_copy_seconds_bucket{path="kernel",direction="load",le="2e-05"} 3`,
		`kvlane_copy_seconds_bucket{path="kernel",direction="load",le="10"} 3`,
		`kvlane_copy_seconds_bucket{path="kernel",direction="load",le="+Inf"} 7`,
		`kvlane_copy_seconds_sum{path="kernel",direction="load"} 50`,
		`kvlane_copy_seconds_count{path="kernel",direction="load"} 7`,
		`kvlane_store_queue_seconds_bucket{queue="write",le="5e-05"} 0`,
		`kvlane_store_queue_seconds_bucket{queue="write",le="0.0001"} 5`,
		`kvlane_store_load_seconds_count 0`,
		`kvlane_tier_capacity_bytes{tier="cache"} 1.073741824e+09`,
		`kvlane_tier_swept_total{tier="file"} 6`,
		"kvlane_manager_blocks 4",
		"kvlane_manager_file_loads_total 6",
		"kvlane_transfer_segments 2",
		"kvlane_transfer_refused_requests_total 2",
		"kvlane_transfer_fallbacks_total 4",
		"kvlane_transfer_nic_refusals_total 7",
		"kvlane_transfer_connect_retries_total 10",
		"kvlane_transfer_queues_left 8",
		"kvlane_transfer_reconnects_total 6",
		"kvlane_transfer_metadata_failing 1",
		"kvlane_remote_unavailable_total 21",
		"kvlane_remote_dropped_total 22",
		"kvlane_remote_unanchored_total 23",
		"kvlane_remote_lost_leases_total 27",
		"kvlane_remote_list_changes_total 28",
		"kvlane_remote_list_failures_total 29",
		`kvlane_remote_open{server="a:1"} 0`,
		`kvlane_remote_open{server="b:1"} 1`,
		`kvlane_remote_failures_total{server="a:1"} 24`,
		`kvlane_remote_opened_total{server="b:1"} 25`,
		`kvlane_remote_timeouts_total{server="b:1"} 26`,
		"kvlane_blockd_refused_total 4",
		"kvlane_blockd_denied_total 5",
		"kvlane_blockd_failed_entries_total 6",
		"kvlane_blockd_identities 7", "kvlane_blockd_full_total 17", "kvlane_blockd_late_requests_total 18", "kvlane_blockd_delayed_requests_total 19",
		"kvlane_blockd_rdma_attached_total 13",
		"kvlane_blockd_rdma_denied_total 14",
		"kvlane_blockd_rdma_requests_total 15",
		"kvlane_blockd_rdma_failed_total 16",
		`kvlane_blockd_blocks{tenant="a"} 8`,
		`kvlane_blockd_blocks{tenant="b"} 12`,
		`kvlane_blockd_disk_errors_total{tenant="a"} 10`,
		`kvlane_blockd_disk_blocks{tenant="a"} 13`, `kvlane_blockd_disk_bytes{tenant="a"} 14`,
		`kvlane_blockd_disk_evictions_total{tenant="a"} 15`, `kvlane_blockd_disk_full_total{tenant="a"} 16`,
		`kvlane_blockd_unwritten_bytes{tenant="a"} 11`,
		`kvlane_transfer_carried_bytes_total{path="tcp"} 100`,
		`kvlane_transfer_tasks_total{path="tcp",outcome="completed"} 9`,
		`kvlane_transfer_tasks_total{path="tcp",outcome="timeout"} 1`,
		"kvlane_replay_requests_total 2",
		"kvlane_replay_planned_requests 100",
		"kvlane_replay_wrong_bytes_total 3",
		`kvlane_plan_choices_total{path="copy-engine",direction="h2d"} 2`,
		`kvlane_plan_observed_total{path="copy-engine",direction="h2d"} 2`,
		`kvlane_plan_scale{path="copy-engine",direction="h2d"} 1.414213562373095`, // twice the time, of which half counts
		"kvlane_plan_budget_harm 0",
		`kvlane_arena_regions{pool="rpc-device"} 2`,
		`kvlane_arena_bytes{pool="rpc-device"} 2.097152e+06`,
		`kvlane_arena_blocks{pool="rpc-device"} 30`,
		`kvlane_arena_blocks_lent{pool="rpc-device"} 7`,
		`kvlane_arena_blocks_high_water{pool="rpc-device"} 29`,
		`kvlane_arena_waiting{pool="rpc-device"} 3`,
		`kvlane_arena_waits_total{pool="rpc-device"} 41`,
		`kvlane_arena_grown_total{pool="rpc-device"} 5`,
		`kvlane_arena_failed_total{pool="rpc-device"} 4`,
		`kvlane_arena_trimmed_total{pool="rpc-device"} 6`,
		`kvlane_arena_kept{pool="rpc-device"} 1`,
		`kvlane_buffers{pool="send"} 128`,
		`kvlane_buffers_lent{pool="send"} 9`,
		`kvlane_buffers_high_water{pool="send"} 77`,
		`kvlane_buffers_quarantined{pool="send"} 2`,
		`kvlane_buffers_waiting{pool="send"} 3`,
		`kvlane_buffers_waits_total{pool="send"} 40`,
		`kvlane_buffers_unzeroed_total{pool="send"} 5`,
		`kvlane_buffers_kept_total{pool="send"} 1`,
		`kvlane_nic_requests_total{nic="mlx5_0"} 12`,
		`kvlane_nic_bytes_total{nic="mlx5_0"} 1.048576e+06`,
		`kvlane_nic_doorbells_total{nic="mlx5_0"} 2`,
		`kvlane_nic_failed_requests_total{nic="mlx5_0"} 1`,
		`kvlane_nic_flushed_requests_total{nic="mlx5_0"} 3`,
		`kvlane_nic_broken_streams_total{nic="mlx5_0"} 1`,
		`kvlane_nic_queue_pairs{nic="mlx5_0"} 4`,
		`kvlane_nic_queue_pairs_opened_total{nic="mlx5_0"} 8`,
		`kvlane_nic_connect_retries_total{nic="mlx5_0"} 9`,
		`kvlane_nic_regions{nic="mlx5_0",method="host"} 1`,
		`kvlane_nic_registered_bytes{nic="mlx5_0",method="dma-buf"} 8192`,
		`kvlane_nic_registrations_total{nic="mlx5_0",method="host"} 5`,
		`kvlane_nic_registrations_failed_total{nic="mlx5_0"} 6`,
		"kvlane_plan_drifted 0",
		"kvlane_plan_budget_thread_blocks 3",
		"kvlane_plan_budget_chunk_bytes 1.34217728e+08",
		"go_goroutines ",
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("the scrape lacks %q", want)
		}
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// A scrape of all sources contains exactly the metrics of the catalog, with their types and help
// texts.
func TestCatalogIsWhatIsServed(t *testing.T) {
	served := make(map[string]string)
	for _, f := range parse(t, full(t)) {
		if strings.HasPrefix(f.GetName(), "kvlane_") {
			served[f.GetName()] = fmt.Sprintf("%s: %s", strings.ToLower(f.GetType().String()), f.GetHelp())
		}
	}
	for _, m := range telemetry.Catalog() {
		if want := fmt.Sprintf("%s: %s", m.Type, m.Help); served[m.Name] != want {
			t.Errorf("%s is served as %q, declared as %q", m.Name, served[m.Name], want)
		}
		delete(served, m.Name)
	}
	for name := range served {
		t.Errorf("%s is served and not declared", name)
	}
}

func TestNamesFollowPrometheus(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(text(t, full(t)))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	names := make(map[string]string)
	for _, m := range telemetry.Catalog() {
		if (m.Type == telemetry.Counter) != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Type)
		}
		// Python's client and OpenMetrics name counters without the suffix.
		name := strings.TrimSuffix(m.Name, "_total")
		if other, ok := names[name]; ok {
			t.Errorf("%s and %s have the same name without _total", other, m.Name)
		}
		names[name] = m.Name
		for _, unit := range []string{"bytes", "seconds"} {
			if (m.Unit == unit) != strings.HasSuffix(strings.TrimSuffix(m.Name, "_total"), "_"+unit) {
				t.Errorf("%s has the unit %s", m.Name, m.Unit)
			}
		}
		if m.Unit == "" || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s lacks a unit, or its help is no sentence: %q", m.Name, m.Help)
		}
	}
}

func TestSourcesCanBeTakenAway(t *testing.T) {
	m := full(t)
	m.SetStore(nil)
	m.SetReplay(nil)
	m.SetPlanner(nil)
	m.SetNICs(nil)
	m.SetTransfer(nil)
	m.SetBlockServer(nil)
	m.SetManager(nil)
	m.SetBuffers("send", nil)
	m.SetArena("rpc-device", nil)
	for _, name := range []string{"cache", "file", "remote", "object"} {
		if err := m.SetTier(name, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range parse(t, m) {
		if name := f.GetName(); strings.HasPrefix(name, "kvlane_") && name != "kvlane_build_info" {
			t.Errorf("%s is served without a source", name)
		}
	}
}

func TestTierWithoutFiguresIsRefused(t *testing.T) {
	var silent struct{ tier.Tier }
	if err := telemetry.New().SetTier("null", silent); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("error %v, want ErrNotSupported", err)
	}
}

func TestBadAddressIsNamed(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, addr := range []string{"127.0.0.1", "127.0.0.1:999999", l.Addr().String()} {
		if _, err := telemetry.New().Serve(t.Context(), addr); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("serve on %q: %v, want an error that names it", addr, err)
		}
	}
}

func TestServerEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	srv, err := telemetry.New().Serve(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := srv.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Addr().String()); err == nil {
		t.Error("the address still answers")
	}
}

// Label values and the version may contain any characters.
func TestLabelsAreEscaped(t *testing.T) {
	m := telemetry.New()
	name := "a\"b\\c\nd"
	if err := m.SetTier(name, &countingTier{}); err != nil {
		t.Fatal(err)
	}
	got := parse(t, m)["kvlane_tier_blocks"].GetMetric()
	if len(got) != 1 || got[0].GetLabel()[0].GetValue() != name {
		t.Errorf("a tier named %q is exposed as %v", name, got)
	}
}

// The metrics of the process have values.
func TestProcessIsExposed(t *testing.T) {
	families := parse(t, telemetry.New())
	for _, name := range []string{
		"process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes", "process_start_time_seconds",
		"process_open_fds", "process_max_fds", "go_goroutines", "go_memstats_heap_inuse_bytes",
	} {
		f := families[name]
		if f == nil || f.GetMetric()[0].GetGauge().GetValue()+f.GetMetric()[0].GetCounter().GetValue() <= 0 {
			t.Errorf("%s is exposed as %v", name, f)
		}
	}
	start := families["process_start_time_seconds"].GetMetric()[0].GetGauge().GetValue()
	if now := float64(time.Now().Unix()); start > now+2 || start < now-24*3600 {
		t.Errorf("the process started at %v, and it is %v", start, now)
	}
}

// get returns the status and the body of a page, over a connection to addr.
func get(t *testing.T, network, addr, path string) (int, string) {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Health and readiness are separate: a process may run without being ready.
func TestHealthAndReadiness(t *testing.T) {
	m := telemetry.New()
	srv, err := m.Serve(t.Context(), ":0") // without a host: only loopback
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = srv.Close() }()
	if at, ok := srv.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		t.Errorf("an address without a host is %v", srv.Addr())
	}
	addr := srv.Addr().String()
	for _, c := range []struct {
		path, body string
		ready      error
		status     int
	}{
		{"/healthz", "ok\n", errdefs.ErrBusy, http.StatusOK},
		{"/readyz", "not ready: " + errdefs.ErrBusy.Error() + "\n", errdefs.ErrBusy, http.StatusServiceUnavailable},
		{"/readyz", "ready\n", nil, http.StatusOK},
	} {
		m.SetReady(func() error { return c.ready })
		if status, body := get(t, "tcp", addr, c.path); status != c.status || body != c.body {
			t.Errorf("%s, ready %v: status %d, %q", c.path, c.ready, status, body)
		}
	}
	if status, body := get(t, "tcp", addr, "/"); status != http.StatusOK || !strings.Contains(body, "/readyz") {
		t.Errorf("/: status %d, %q", status, body)
	}
	if status, _ := get(t, "tcp", addr, "/other"); status != http.StatusNotFound {
		t.Errorf("/other: status %d", status)
	}
}

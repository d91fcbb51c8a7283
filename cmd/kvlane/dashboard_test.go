package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/kvlane/kvlane/telemetry"
)

// exposed describes a metric: its type, and the values of each label.
type exposed struct {
	typ    string // COUNTER or GAUGE
	labels map[string][]string
}

// exposedByReplays returns the metrics of a replay on the simulated device. The replay loads blocks
// from files of an earlier replay and dumps other blocks.
func exposedByReplays(t *testing.T) map[string]exposed {
	t.Helper()
	m := telemetry.New()
	dir := t.TempDir()
	for _, trace := range []string{goodLine, goodLine + strings.Replace(goodLine, "[0, 1]", "[2, 3]", 1)} {
		var out, errs bytes.Buffer
		args := small("replay", traceFile(t, trace), "--file-dir", dir)
		if code := run(withMetrics(t.Context(), m), args, &out, &errs); code != exitOK {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
	}
	var text bytes.Buffer
	if err := m.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]exposed)
	for _, f := range families {
		e, times := exposed{f.GetType().String(), make(map[string][]string)}, int64(0)
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				e.labels[l.GetName()] = append(e.labels[l.GetName()], l.GetValue())
			}
			times += int64(s.GetHistogram().GetSampleCount())
		}
		if e.typ != "HISTOGRAM" {
			all[f.GetName()] = e
			continue
		}
		if times == 0 && f.GetName() != "kvlane_store_lookup_seconds" { // a replay leases blocks and makes no lookups
			t.Errorf("a replay has timed nothing of %s", f.GetName())
		}
		e.typ = "COUNTER" // each of its series is one
		all[f.GetName()+"_sum"], all[f.GetName()+"_count"] = e, e
		e.labels = maps.Clone(e.labels)
		for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
			e.labels["le"] = append(e.labels["le"], fmt.Sprint(b.GetUpperBound()))
		}
		all[f.GetName()+"_bucket"] = e
	}
	return all
}

// The parts of a query that kvlane's queries use: a metric with its matchers and range, a function,
// and the labels of a grouping.
var (
	selector = regexp.MustCompile(`(?:\b(\w+)\()?\b(kvlane_\w+|go_\w+|process_\w+)(?:\{([^}]*)\})?(\[)?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	legend   = regexp.MustCompile(`\{\{(\w+)\}\}`)
	total    = regexp.MustCompile(`\bsum \((?:\w+\()?$`) // before a metric: all its labels are summed
	legal    = regexp.MustCompile(`^[\w\s(){}\[\]=~!<>"$.,+*/:|-]+$`)
)

// scraper lists the labels that Prometheus adds.
var scraper = []string{"instance", "job", "rank"}

// queryFaults returns the faults of a query: names that are not exposed, and counters used as
// gauges or gauges as counters. labels are the labels that the panel shows.
func queryFaults(query string, all map[string]exposed, labels ...string) (bad []string) {
	found := selector.FindAllStringSubmatch(query, -1)
	if len(found) == 0 || !legal.MatchString(query) || strings.Count(query, "(") != strings.Count(query, ")") {
		bad = append(bad, "it is no query of metrics")
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		labels = append(labels, strings.FieldsFunc(g[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	at := selector.FindAllStringIndex(query, -1)
	for i, s := range found {
		labels := labels
		if total.MatchString(query[:at[i][0]]) {
			labels = nil
		}
		function, name, conditions, ranged := s[1], s[2], s[3], s[4] != ""
		m, ok := all[name]
		if !ok {
			bad = append(bad, "nothing exposes "+name)
			continue
		}
		if strings.HasSuffix(name, "_bucket") != strings.Contains(query, "histogram_quantile(") || strings.HasSuffix(name, "_bucket") && !slices.Contains(labels, "le") {
			bad = append(bad, "quantiles are of buckets, by le")
		}
		if rate := ranged && (function == "rate" || function == "increase"); rate != (m.typ == "COUNTER") {
			bad = append(bad, fmt.Sprintf("%s is a %s, of which %q is taken", name, m.typ, function))
		}
		for _, c := range matcher.FindAllStringSubmatch(conditions, -1) {
			if !slices.Contains(scraper, c[1]) && (c[2] != "=" || !slices.Contains(m.labels[c[1]], c[3])) {
				bad = append(bad, name+" has no "+c[0])
			}
		}
		for _, l := range labels {
			if len(m.labels[l]) == 0 && !slices.Contains(scraper, l) {
				bad = append(bad, name+" has no label "+l)
			}
		}
	}
	return bad
}

// dashboard is the part of Grafana's model that the test reads.
type dashboard struct {
	UID    string
	Panels []struct {
		Title, Type, Description string
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct{ Expr, LegendFormat, RefID string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

// The dashboard uses only metrics that a replay exposes, and no panel is empty.
func TestDashboardAsksForWhatReplaysExpose(t *testing.T) {
	text, err := os.ReadFile("../../docs/grafana/kvlane.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	all := exposedByReplays(t)
	queries := 0
	for _, p := range d.Panels {
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %q has %d queries, description %q and unit %q", p.Title, len(p.Targets), p.Description, p.FieldConfig.Defaults.Unit)
		}
		for _, q := range p.Targets {
			var labels []string
			for _, l := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
				labels = append(labels, l[1])
			}
			for _, bad := range queryFaults(q.Expr, all, labels...) {
				t.Errorf("%s: %s: %s", p.Title, q.Expr, bad)
			}
			queries++
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			for _, bad := range queryFaults(strings.TrimSuffix(strings.TrimPrefix(v.Query, "label_values("), ", instance)"), all) {
				t.Errorf("variable %s: %s: %s", v.Name, v.Query, bad)
			}
		}
	}
	if queries < 15 || d.UID == "" || len(d.Templating.List) == 0 {
		t.Errorf("%d queries in dashboard %q with %d variables", queries, d.UID, len(d.Templating.List))
	}
}

// ruleFile is a file of alert rules.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For string
			Labels           map[string]string
			Annotations      map[string]string
		}
	}
}

// The alert rules use only metrics that a replay exposes, and each rule has a severity, a summary
// and an action.
func TestAlertsAreOfWhatReplaysExpose(t *testing.T) {
	text, err := os.ReadFile("../../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rules ruleFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	all, n := exposedByReplays(t), 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			for _, bad := range queryFaults(r.Expr, all) {
				t.Errorf("%s: %s: %s", r.Alert, r.Expr, bad)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["action"] == "" {
				t.Errorf("%s has the labels %v and the annotations %v", r.Alert, r.Labels, r.Annotations)
			}
			n++
		}
	}
	if n < 10 {
		t.Errorf("found only %d alert rules", n)
	}
}

// queryFaults detects wrong queries.
func TestQueriesThatAskForNothing(t *testing.T) {
	all := map[string]exposed{
		"kvlane_a_total":  {"COUNTER", map[string][]string{"tier": {"cache"}}},
		"kvlane_b":        {"GAUGE", nil},
		"kvlane_t_bucket": {"COUNTER", map[string][]string{"le": {"0.1"}, "queue": {"turn"}}},
	}
	for _, q := range []string{
		`sum by (tier, instance) (rate(kvlane_a_total{tier="cache",job=~"$job"}[5m])) > 0`,
		`max_over_time(kvlane_b[5m]) / 2`, `kvlane_b == 1`,
		`sum by (tier) (rate(kvlane_a_total[5m])) / on () group_left () sum (kvlane_b)`,
		`histogram_quantile(0.99, sum by (le, queue) (rate(kvlane_t_bucket{queue="turn"}[5m])))`,
	} {
		if bad := queryFaults(q, all); bad != nil {
			t.Errorf("%s: %q", q, bad)
		}
	}
	for _, q := range []string{
		`up`, `kvlane_c`, `kvlane_a_total`, `rate(kvlane_b[5m])`, `max_over_time(kvlane_a_total[5m])`, `rate(kvlane_a_total{tier="disk"}[5m])`,
		`rate(kvlane_a_total{path="kernel"}[5m])`, `sum by (path) (rate(kvlane_a_total[5m]))`, `sum(kvlane_b`, `kvlane_b; drop`,
		`histogram_quantile(0.99, sum by (queue) (rate(kvlane_t_bucket[5m])))`, `sum by (le) (rate(kvlane_t_bucket[5m]))`,
		`histogram_quantile(0.99, sum by (le) (kvlane_t_bucket))`, `histogram_quantile(0.99, sum by (le, path) (rate(kvlane_t_bucket[5m])))`,
		`histogram_quantile(0.99, sum by (le) (rate(kvlane_t[5m])))`, `histogram_quantile(0.99, sum by (le) (rate(kvlane_t_bucket{queue="write"}[5m])))`,
	} {
		if queryFaults(q, all) == nil {
			t.Errorf("%s passes", q)
		}
	}
	if queryFaults("kvlane_b", all, "tier") == nil {
		t.Error("a legend with an unknown label is accepted")
	}
}

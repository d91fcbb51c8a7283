package telemetry

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvlane/kvlane/store"
)

// Type is a metric's type, as Prometheus names it.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric declares one metric.
type Metric struct {
	Name   string // complete, with the unit and, for counters, "_total"
	Unit   string // what one is: "bytes", "blocks", "seconds", ...
	Type   Type
	Help   string   // one sentence
	Labels []string // in the order in which values are given
}

// emit reports one value of a metric, with a value for each of its labels.
type emit func(value float64, labels ...string)

// family is a Metric together with how it is read from a source of type S.
type family[S any] struct {
	Metric
	read func(s S, out emit)
}

// emitTimes reports the times of a histogram, with a value for each of its labels.
type emitTimes func(times *store.Latency, labels ...string)

// timesFamily is a Metric of type Histogram together with how its times are read from a source of type S.
type timesFamily[S any] struct {
	Metric
	read func(s S, out emitTimes)
}

// Catalog returns every metric there is, in the order of the documentation.
func Catalog() []Metric {
	var all []Metric
	all = appendMetrics(all, buildFamilies)
	all = appendMetrics(all, storeFamilies)
	for i := range storeTimes {
		all = append(all, storeTimes[i].Metric)
	}
	all = appendMetrics(all, tierFamilies)
	all = appendMetrics(all, managerFamilies)
	all = appendMetrics(all, plannerFamilies)
	all = appendMetrics(all, nicFamilies)
	all = appendMetrics(all, fileFamilies)
	all = appendMetrics(all, transferFamilies)
	all = appendMetrics(all, replayFamilies)
	return all
}

func appendMetrics[S any](all []Metric, fs []family[S]) []Metric {
	for i := range fs {
		all = append(all, fs[i].Metric)
	}
	return all
}

// intro is the text above the table.
const intro = `kvlane serves these metrics in Prometheus's text format:

- in vLLM, on vLLM's own /metrics ([vLLM](vllm.md#metrics));
- in an engine or a manager with the key metrics_addr in its configuration: in Go, C, Python, SGLang and transformers
  ([the library](library.md#figures));
- in a command with --metrics-addr, while it runs. replay and demo have the metrics of store, tiers and copies.
  transfer serve and bench transfer (kvlane's own protocol) have those of transfers. Every command has those of the
  build and of the process.

An address is HOST:PORT, on 127.0.0.1 without a host, or unix:/PATH, a socket of mode 0600. Each address serves
/metrics, /healthz (the process runs) and /readyz (it can serve; 503 while it opens or closes).

There are [alert rules](alerts.md) and a [dashboard](grafana/kvlane.json). The [glossary](glossary.md) defines the words.
Metrics of the process and of Go have the names of Prometheus's own clients (process_cpu_seconds_total, go_goroutines).

`

// WriteTable writes the catalog as a Markdown document.
func WriteTable(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Metrics\n\n")
	b.WriteString(intro)
	fmt.Fprintf(&b, "Histograms have %d buckets, from %v to %v in steps of 1, 2 and 5, and one for longer times.\n",
		len(store.LatencyBounds), store.LatencyBounds[0], store.LatencyBounds[len(store.LatencyBounds)-1])
	b.WriteString("This page is generated from the catalog in package telemetry by `make generate`; do not edit it.\n\n")
	b.WriteString("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, m := range Catalog() {
		labels := "none"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, m.Unit, labels, m.Help)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write metrics table: %w", err)
	}
	return nil
}

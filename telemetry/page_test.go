package telemetry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/telemetry"
)

// intro is the text above the table.
const intro = `kvlane serves these metrics in Prometheus's text format:

- in vLLM, on vLLM's own /metrics ([vLLM](vllm.md#metrics));
- in an engine or a manager with the key metrics_addr in its configuration: in Go, C, Python, SGLang and transformers
  ([the library](library.md#figures));
- in a command with --metrics-addr, while it runs. replay and demo have the metrics of store, tiers and copies.
  transfer serve and bench transfer (kvlane's own protocol) have those of transfers, and blockd those of a block
  server. Every command has those of the build and of the process.

An address is HOST:PORT, on 127.0.0.1 without a host, or unix:/PATH, a socket of mode 0600. Each address serves
/metrics, /healthz (the process runs), /readyz (it can serve; 503 while it opens or closes) and, at /, a
[status page](operating.md#the-status-page).

There are [alert rules](alerts.md) and a [dashboard](grafana/kvlane.json). The [glossary](glossary.md) defines the
words. Metrics of the process and of Go have the names of Prometheus's own clients (process_cpu_seconds_total,
go_goroutines).

`

// docs/metrics.md contains the catalog.
func TestDocumentationIsTheCatalog(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n")
	b.WriteString(intro)
	fmt.Fprintf(&b, "Histograms have %d buckets, from %v to %v in steps of 1, 2 and 5, and one for longer times.\n",
		len(store.LatencyBounds), store.LatencyBounds[0], store.LatencyBounds[len(store.LatencyBounds)-1])
	b.WriteString("This page is generated from the catalog in package telemetry by `make generate`; do not edit it.\n\n")
	b.WriteString("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, m := range telemetry.Catalog() {
		labels := "none"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, m.Unit, labels, m.Help)
	}
	testkit.Generated(t, "../docs/metrics.md", b.String())
}

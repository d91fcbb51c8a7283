// Package published contains only tests. They check that the section "Committed runs" of
// docs/benchmarks.md and the charts in docs/charts equal the runs in docs/runs.
//
// The section is docs/runs/measured.tmpl with the figures of the runs. To write section and charts
// again:
//
//	go test ./internal/published -rewrite
package published

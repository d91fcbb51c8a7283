// Package published contains only tests. They check that the section "Committed runs" of
// docs/benchmarks.md and the charts in docs/charts match the runs in docs/runs.
//
// The section is generated from docs/runs/measured.tmpl and the results of the runs. To generate
// the section and the charts:
//
//	go test ./internal/published -rewrite
package published

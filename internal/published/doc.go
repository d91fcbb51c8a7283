// Package published contains only tests. They check that the figures of the README and the chart in
// docs/charts are those of the runs in docs/runs.
//
// The section "Measured" of the README is docs/runs/measured.tmpl with the figures of the runs. To
// write both anew:
//
//	go test ./internal/published -rewrite
package published

// Package published has nothing but tests: that the README's figures and the charts are those of the runs that docs/runs keeps.
//
// The README's section "Measured" is docs/runs/measured.tmpl with the runs' figures filled in, and docs/charts is drawn of one of
// them. Both are written anew by
//
//	go test ./internal/published -rewrite
package published

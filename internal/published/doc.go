// Package published has nothing but tests: that the README's figures are those of the runs that docs/runs keeps.
//
// The README's section "Measured" is docs/runs/measured.tmpl with the runs' figures filled in, written anew by
//
//	go test ./internal/published -rewrite
package published

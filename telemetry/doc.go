// Package telemetry exposes Prometheus metrics.
//
// Every metric is declared once, in the tables of catalog.go and other files: its name, unit, type,
// help text, labels, and a function that reads its value from the Stats of a source. A scrape reads
// the Stats of each source once. The package implements the text format itself, because
// Prometheus's client library would increase the size of the C library by half.
//
// docs/metrics.md is generated from the catalog.
//
// Metrics and Progress are safe for concurrent use. Sources are called by the goroutines of scrapes
// and must not block.
package telemetry

//go:generate go test . -run TestDocumentationIsTheCatalog -update

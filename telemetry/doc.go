// Package telemetry exposes kvlane's figures as Prometheus metrics.
//
// Every metric is declared once, in the tables of catalog.go and other files: name, unit, type,
// help, labels, and a function that reads its value from the Stats of a source. A scrape reads the
// Stats of stores, tiers, NICs and replays once and writes them. The text format is written by this
// package itself: Prometheus's client library would make the C library half as large again.
//
// docs/metrics.md is generated from the catalog.
//
// Metrics and Progress are safe for concurrent use. Sources are called on the goroutines of scrapes
// and must not block.
package telemetry

//go:generate go test . -run TestDocumentationIsTheCatalog -update

// Package telemetry exposes kvlane's figures as Prometheus metrics.
//
// Every metric is declared once, in the tables of catalog.go and its neighbours: name, unit, type, help, labels, and how
// its value is read from the figures that stores, tiers, NICs and replays keep anyway. Nothing is counted twice: a scrape
// asks the sources for their Stats and writes those. The text format is written by this package itself: Prometheus's
// client library would make the C library half as large again.
//
// docs/metrics.md is generated from the catalog.
//
// Metrics and Progress are safe for concurrent use. Sources are called on the goroutines of scrapes and must not block.
package telemetry

//go:generate go run ./metricsdoc ../docs/metrics.md

// Package telemetry exposes what kvlane does as Prometheus metrics.
//
// Every metric is declared once, in the tables of catalog.go: name, unit, type, help, labels, and how its value is read
// from the figures that stores, tiers, NICs and replays keep anyway; a store counts its times by buckets (store.Latency). Nothing is counted twice: a scrape asks the sources for
// their Stats and reports those. The registry is the Metrics' own; the global one of the Prometheus library stays empty.
//
// docs/metrics.md is generated from the catalog.
//
// Metrics and Progress are safe for concurrent use. Sources are called on the goroutines of scrapes and must not block.
package telemetry

//go:generate go run ./metricsdoc ../docs/metrics.md

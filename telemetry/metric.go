package telemetry

import (
	"github.com/kvlane/kvlane/store"
)

// Type is the type of a metric. The values are Prometheus's names.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric is the declaration of a metric.
type Metric struct {
	Name   string // full name, with the unit and, for counters, "_total"
	Unit   string // unit of a value: "bytes", "blocks", "seconds", ...
	Type   Type
	Help   string   // one sentence
	Labels []string // names of labels, in the order of their values
}

// emit outputs one value of a metric with the values of its labels.
type emit func(value float64, labels ...string)

// family is a Metric and the function that reads it from a source of type S.
type family[S any] struct {
	Metric
	read func(s S, out emit)
}

// emitTimes outputs a histogram with the values of its labels.
type emitTimes func(times *store.Latency, labels ...string)

// timesFamily is a Metric of type Histogram and the function that reads it from a source of type S.
type timesFamily[S any] struct {
	Metric
	read func(s S, out emitTimes)
}

// Catalog returns all metrics in the order of the documentation.
func Catalog() []Metric {
	var all []Metric
	all = appendMetrics(all, buildFamilies)
	all = appendMetrics(all, storeFamilies)
	for i := range storeTimes {
		all = append(all, storeTimes[i].Metric)
	}
	all = appendMetrics(all, tierFamilies)
	all = appendMetrics(all, managerFamilies)
	all = appendMetrics(all, plannerFamilies)
	all = appendMetrics(all, nicFamilies)
	all = appendMetrics(all, transferFamilies)
	all = appendMetrics(all, remoteFamilies)
	all = appendMetrics(all, objectFamilies)
	all = appendMetrics(all, blockFamilies)
	all = appendMetrics(all, bufferFamilies)
	all = appendMetrics(all, arenaFamilies)
	all = appendMetrics(all, replayFamilies)
	return all
}

func appendMetrics[S any](all []Metric, fs []family[S]) []Metric {
	for i := range fs {
		all = append(all, fs[i].Metric)
	}
	return all
}

package telemetry

import (
	"github.com/kvlane/kvlane/store"
)

// Type is a metric's type, as Prometheus names it.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric declares one metric.
type Metric struct {
	Name   string // complete, with the unit and, for counters, "_total"
	Unit   string // what one is: "bytes", "blocks", "seconds", ...
	Type   Type
	Help   string   // one sentence
	Labels []string // in the order in which values are given
}

// emit reports one value of a metric, with a value for each of its labels.
type emit func(value float64, labels ...string)

// family is a Metric together with how it is read from a source of type S.
type family[S any] struct {
	Metric
	read func(s S, out emit)
}

// emitTimes reports the times of a histogram, with a value for each of its labels.
type emitTimes func(times *store.Latency, labels ...string)

// timesFamily is a Metric of type Histogram together with how its times are read from a source of
// type S.
type timesFamily[S any] struct {
	Metric
	read func(s S, out emitTimes)
}

// Catalog returns every metric there is, in the order of the documentation.
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
	all = appendMetrics(all, bufferFamilies)
	all = appendMetrics(all, replayFamilies)
	return all
}

func appendMetrics[S any](all []Metric, fs []family[S]) []Metric {
	for i := range fs {
		all = append(all, fs[i].Metric)
	}
	return all
}

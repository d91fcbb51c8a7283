package telemetry

import (
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/tier/object"
)

const labelRequests = "requests"

// requestStatter is a tier of a bucket. object.Tier implements it.
type requestStatter interface{ RequestStats() object.RequestStats }

// objectFamilies are the metrics of a tier of a bucket.
var objectFamilies = []family[*object.RequestStats]{
	objectCounter("kvlane_object_requests_total", "requests", "Requests to the bucket, including retries.", func(s *object.RequestStats) int64 { return s.Requests }),
	objectCounter("kvlane_object_retries_total", "requests", "Of these, retries.", func(s *object.RequestStats) int64 { return s.Retries }),
	objectCounter("kvlane_object_unavailable_total", "requests", "Requests that found the object store slow, gone or refusing, or were not sent for that reason. Reads are misses.", func(s *object.RequestStats) int64 { return s.Unavailable }),
	objectCounter("kvlane_object_timeouts_total", "requests", "Of these, requests that ended with the deadline of their operation.", func(s *object.RequestStats) int64 { return s.Timeouts }),
	objectCounter("kvlane_object_unanchored_total", "blocks", "Accesses of blocks without an anchor, which are placed by their own key.", func(s *object.RequestStats) int64 { return s.Unanchored }),
	breakerFigure("kvlane_object_open", "1", Gauge, "1 while no such requests are sent to the bucket, except for probes, because they failed.", func(b *breaker.Stats) int64 { return flag(b.State != breaker.Closed) }),
	breakerFigure("kvlane_object_opened_total", "times", Counter, "Times that such requests were stopped because they failed.", func(b *breaker.Stats) int64 { return b.Opened }),
	breakerFigure("kvlane_object_refused_total", "requests", Counter, "Requests that were not sent meanwhile.", func(b *breaker.Stats) int64 { return b.Refused }),
}

func objectCounter(name, unit, help string, read func(*object.RequestStats) int64) family[*object.RequestStats] {
	return family[*object.RequestStats]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *object.RequestStats, out emit) { out(float64(read(s))) }}
}

// breakerFigure is a metric of the breakers of reads and of writes.
func breakerFigure(name, unit string, kind Type, help string, read func(*breaker.Stats) int64) family[*object.RequestStats] {
	return family[*object.RequestStats]{
		Metric{name, unit, kind, help, []string{labelRequests}},
		func(s *object.RequestStats, out emit) {
			out(float64(read(&s.Reads)), "read")
			out(float64(read(&s.Writes)), "write")
		},
	}
}

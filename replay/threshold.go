package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// ErrThreshold means that a replay missed a threshold.
var ErrThreshold = errors.New("threshold missed")

// Threshold is a limit for a result of a replay, such as "hit_rate>=0.3" or "load_p99<5ms". The
// zero value has no limit.
type Threshold struct {
	text  string
	of    *measure
	sign  string
	bound float64
	unit  string // time unit in the text
}

// ThresholdReport reports whether a threshold was met.
type ThresholdReport struct {
	Threshold string  `json:"threshold"`
	Value     float64 `json:"value"`
	// Unit is the time unit of Value: the unit of the limit ("ms" for load_p99<5ms), or "us" if the
	// limit has none. It is empty for results that are not times.
	Unit string `json:"unit,omitempty"`
	Met  bool   `json:"met"`

	valueText string // Value as text
}

// measure is a result for which there may be a threshold.
type measure struct {
	name   string
	micros bool // a time in microseconds
	value  func(*Report) float64
}

var measures = []measure{
	{"hit_rate", false, func(r *Report) float64 { return r.HitRate }},
	{"requests_per_second", false, func(r *Report) float64 { return rate(r.Requests, r.Seconds) }},
	{"time", true, func(r *Report) float64 { return r.Seconds * 1e6 }},
	{"load_p50", true, func(r *Report) float64 { return float64(r.LoadUS.P50) }},
	{"load_p99", true, func(r *Report) float64 { return float64(r.LoadUS.P99) }},
	{"dump_p50", true, func(r *Report) float64 { return float64(r.DumpUS.P50) }},
	{"dump_p99", true, func(r *Report) float64 { return float64(r.DumpUS.P99) }},
	{"durable_p50", true, func(r *Report) float64 { return float64(r.DurableUS.P50) }},
	{"durable_p99", true, func(r *Report) float64 { return float64(r.DurableUS.P99) }},
	{"lag_p50", true, func(r *Report) float64 { return float64(r.LagUS.P50) }},
	{"lag_p99", true, func(r *Report) float64 { return float64(r.LagUS.P99) }},
}

// signs are tried in this order, so longer ones precede their prefixes.
var signs = []string{"<=", ">=", "<", ">"}

// ThresholdNames returns the names of the results for thresholds.
func ThresholdNames() []string {
	var names []string
	for i := range measures {
		names = append(names, measures[i].name)
	}
	return names
}

// ParseThreshold parses a name, one of < <= > >=, and a number or a time with its unit. The error
// wraps ErrInvalid.
func ParseThreshold(s string) (Threshold, error) {
	bad := func(format string, args ...any) (Threshold, error) {
		return Threshold{}, fmt.Errorf("threshold %q: %s: %w", abridge([]byte(s)), fmt.Sprintf(format, args...), errdefs.ErrInvalid)
	}
	at := strings.IndexAny(s, "<>")
	if at < 0 {
		return bad("write it as hit_rate>=0.3 or load_p99<5ms")
	}
	t := Threshold{text: s, sign: signs[slices.IndexFunc(signs, func(sign string) bool { return strings.HasPrefix(s[at:], sign) })]}
	name, bound := strings.TrimSpace(s[:at]), strings.TrimSpace(s[at+len(t.sign):])
	i := slices.IndexFunc(measures, func(m measure) bool { return m.name == name })
	if i < 0 {
		return bad("must start with one of %s", strings.Join(ThresholdNames(), ", "))
	}
	t.of = &measures[i]
	if t.of.micros {
		d, err := time.ParseDuration(bound)
		if err != nil {
			return bad("%s is a time, such as 5ms", name)
		}
		t.bound = float64(d) / float64(time.Microsecond)
		t.unit = cmp.Or(bound[strings.LastIndexAny(bound, "0123456789.")+1:], "us")
		return t, nil
	}
	var err error
	if t.bound, err = strconv.ParseFloat(bound, 64); err != nil || math.IsNaN(t.bound) {
		return bad("%s is a number, such as 0.3", name)
	}
	return t, nil
}

// NeedsSpeed reports whether the result exists only if Config.Speed is set.
func (t *Threshold) NeedsSpeed() bool { return t.of != nil && strings.HasPrefix(t.of.name, "lag_") }

func (t *Threshold) met(v float64) bool {
	switch t.sign {
	case "<":
		return v < t.bound
	case "<=":
		return v <= t.bound
	case ">":
		return v > t.bound
	}
	return v >= t.bound
}

// Judge adds the result of each threshold to the report. The error lists the missed ones and wraps
// ErrThreshold. A latency without samples is 0.
func (r *Report) Judge(thresholds []Threshold) error {
	var missed []string
	for i := range thresholds {
		t := &thresholds[i]
		if t.of == nil {
			continue
		}
		v := t.of.value(r)
		j := ThresholdReport{Threshold: t.text, Value: v, Met: t.met(v), valueText: strconv.FormatFloat(v, 'g', 4, 64)}
		if t.of.micros {
			j.valueText = present.Micros(v)
			// cannot fail: the unit is part of the parsed limit
			one, _ := time.ParseDuration("1" + t.unit)
			j.Value, j.Unit = v*float64(time.Microsecond)/float64(one), t.unit
		}
		if !j.Met {
			missed = append(missed, fmt.Sprintf("%s (%s)", t.text, j.valueText))
		}
		r.Thresholds = append(r.Thresholds, j)
	}
	if len(missed) > 0 {
		return fmt.Errorf("%w: %s", ErrThreshold, strings.Join(missed, ", "))
	}
	return nil
}

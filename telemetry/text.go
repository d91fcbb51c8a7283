package telemetry

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/store"
)

// ContentType is the media type of the output of WriteText: version 0.0.4 of Prometheus's text
// format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// WriteText writes the current values of all metrics with a source in Prometheus's text format.
func (m *Metrics) WriteText(w io.Writer) error {
	out := &textWriter{w: bufio.NewWriter(w)}
	m.collect(out)
	return out.w.Flush()
}

// textWriter writes metrics in Prometheus's text format. Flush returns the first write error.
type textWriter struct {
	w    *bufio.Writer
	line []byte
}

// header writes the HELP and TYPE lines of a metric.
func (t *textWriter) header(m *Metric) {
	t.line = append(t.line[:0], "# HELP "...)
	t.line = append(t.line, m.Name...)
	t.line = append(t.line, ' ')
	t.line = append(t.line, helpEscapes.Replace(m.Help)...)
	t.line = append(t.line, "\n# TYPE "...)
	t.line = append(t.line, m.Name...)
	t.line = append(t.line, ' ')
	t.line = append(t.line, m.Type...)
	t.line = append(t.line, '\n')
	_, _ = t.w.Write(t.line)
}

// sample writes one value. suffix is appended to the metric's name. le is the upper limit of a
// histogram bucket, or empty.
func (t *textWriter) sample(m *Metric, suffix string, v float64, values []string, le string) {
	t.line = append(t.line[:0], m.Name...)
	t.line = append(t.line, suffix...)
	open := byte('{')
	label := func(name, value string) {
		t.line = append(t.line, open)
		t.line = append(t.line, name...)
		t.line = append(t.line, `="`...)
		t.line = append(t.line, labelEscapes.Replace(value)...)
		t.line = append(t.line, '"')
		open = ','
	}
	for i, name := range m.Labels {
		label(name, values[i])
	}
	if le != "" {
		label("le", le)
	}
	if open == ',' {
		t.line = append(t.line, '}')
	}
	t.line = append(t.line, ' ')
	t.line = append(t.line, number(v)...)
	t.line = append(t.line, '\n')
	_, _ = t.w.Write(t.line)
}

// histogram writes the buckets, the sum and the count of a histogram.
func (t *textWriter) histogram(m *Metric, times *store.Latency, values []string) {
	n := int64(0)
	for i, bound := range store.LatencyBounds {
		n += times.Counts[i]
		t.sample(m, "_bucket", float64(n), values, number(bound.Seconds()))
	}
	n += times.Counts[len(store.LatencyBounds)]
	t.sample(m, "_bucket", float64(n), values, "+Inf")
	t.sample(m, "_sum", times.Sum.Seconds(), values, "")
	t.sample(m, "_count", float64(n), values, "")
}

// number formats a value in Prometheus's format.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

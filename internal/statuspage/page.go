// Package statuspage serves a web page with the state of a process: its metrics as tables and
// charts, recent failures, slow operations and its configuration. The page has no external parts.
// Its numbers are those of /metrics.
package statuspage

import (
	"bufio"
	"bytes"
	_ "embed" // the page
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/journal"
)

//go:embed page.html
var page []byte

const (
	// Interval is the time between the samples of the page's charts.
	Interval = 5 * time.Second
	// maxSamples is an hour of samples.
	maxSamples = 720
)

// charted are the metrics of the charts.
var charted = regexp.MustCompile(`^kvlane_(store|blockd)_(hits|misses)_total(\{.*\})?$`)

// A Setting is a row of the configuration. Passwords in URLs are masked when it is served.
type Setting struct{ Name, Value string }

// A Table is shown as it is.
type Table struct {
	Title   string
	Columns []string
	Rows    [][]string
}

// Source is where a page reads its contents.
type Source struct {
	Metrics  func(w io.Writer) error // in Prometheus's text format
	Ready    func() error
	Journals func() []*journal.Journal
	Config   func() []Setting
	Tables   func() []Table
}

// Page serves a Source. Its methods may be called concurrently.
type Page struct {
	source  Source
	started time.Time

	mu      sync.Mutex
	times   []int64              // of samples, Unix milliseconds; guarded by mu
	samples map[string][]float64 // by sample name with labels, as long as times; guarded by mu
}

// New returns a page that has no samples yet.
func New(s Source) *Page {
	return &Page{source: s, started: time.Now(), samples: map[string][]float64{}}
}

// state is the JSON object of /status.json.
type state struct {
	Now, Started int64 // Unix milliseconds
	NotReady     string
	Metrics      map[string]float64
	Times        []int64
	Samples      map[string][]float64
	Failures     []journal.Failure
	Slow         []journal.Operation
	Config       []Setting
	Tables       []Table
}

// Handle adds the page at / and its data at /status.json to mux.
func (p *Page) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(p.read())
	})
}

// Sample adds the present values to the charts. Call it every Interval.
func (p *Page) Sample() { p.sample(p.metrics(), time.Now()) }

func (p *Page) sample(all map[string]float64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.times)
	p.times = append(p.times, now.UnixMilli())
	for name, v := range all {
		if !charted.MatchString(name) {
			continue
		}
		s := p.samples[name]
		if s == nil {
			s = make([]float64, n) // 0 before the metric existed
		}
		p.samples[name] = append(s, v)
	}
	drop := max(0, len(p.times)-maxSamples)
	for name, s := range p.samples {
		if len(s) < len(p.times) {
			s = append(s, s[len(s)-1])
		}
		p.samples[name] = slices.Clone(s[drop:])
	}
	p.times = slices.Clone(p.times[drop:])
}

// metrics returns the values of /metrics by name with labels, without those that JSON cannot hold.
func (p *Page) metrics() map[string]float64 {
	var text bytes.Buffer
	_ = p.source.Metrics(&text) // a buffer takes all
	all := map[string]float64{}
	for lines := bufio.NewScanner(&text); lines.Scan(); {
		line := lines.Text()
		name, value := line, ""
		if i := strings.LastIndexByte(line, ' '); i >= 0 {
			name, value = line[:i], line[i+1:]
		}
		v, err := strconv.ParseFloat(value, 64)
		if err == nil && !math.IsInf(v, 0) && !math.IsNaN(v) && !strings.HasPrefix(line, "#") && !strings.Contains(name, "_bucket{") {
			all[name] = v
		}
	}
	return all
}

func (p *Page) read() *state {
	now := time.Now()
	s := &state{Now: now.UnixMilli(), Started: p.started.UnixMilli(), Metrics: p.metrics()}
	if err := p.source.Ready(); err != nil {
		s.NotReady = err.Error()
	}
	p.mu.Lock()
	s.Times, s.Samples = slices.Clone(p.times), maps.Clone(p.samples)
	p.mu.Unlock()
	for _, j := range p.source.Journals() {
		failures, slow := j.Read()
		s.Failures, s.Slow = append(s.Failures, failures...), append(s.Slow, slow...)
	}
	slices.SortStableFunc(s.Failures, func(a, b journal.Failure) int { return b.Last.Compare(a.Last) })
	slices.SortStableFunc(s.Slow, func(a, b journal.Operation) int { return int(b.Took - a.Took) })
	for _, c := range p.source.Config() {
		s.Config = append(s.Config, Setting{c.Name, mask(c.Value)})
	}
	s.Tables = p.source.Tables()
	return s
}

// credentials are a user and a password in a URL or an address.
var credentials = regexp.MustCompile(`[^/@,\s:]+:[^/@,\s]*@`)

// mask returns a setting's value without passwords. Other secrets are in files, whose paths are
// shown.
func mask(value string) string { return credentials.ReplaceAllString(value, "hidden@") }

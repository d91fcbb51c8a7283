package published

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/kvlane/kvlane/bench"
)

// figures provides the functions of measured.tmpl. Each function takes the names of runs, separated
// by spaces, and returns the figure or its range over the runs. A run without the figure is an
// error.
type figures map[string]*run

func (f figures) functions() template.FuncMap {
	return template.FuncMap{
		"rate": f.rate, "share": f.share, "p50": f.p50, "p99": f.p99, "large": f.large,
		"peer": f.peer, "peerLarge": f.peerLarge,
		"shown": f.shown, "request": f.request, "times": f.times, "concurrency": f.concurrency, "cost": f.cost, "trace": f.replayed,
		"lengths": f.lengths, "count": count, "first": f.first, "cite": f.cite, "made": f.made, "server": f.server,
	}
}

// shown returns the names of the runs that the index assigns to a part of the text. If there are
// none, the part is left out.
func (f figures) shown(part string) string {
	var names []string
	for name, r := range f {
		if r.Shows == part {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// runs returns the named runs.
func (f figures) runs(names string) ([]*run, error) {
	var list []*run
	for name := range strings.FieldsSeq(names) {
		if f[name] == nil {
			return nil, fmt.Errorf("unknown run %q", name)
		}
		list = append(list, f[name])
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no run is named")
	}
	return list, nil
}

// over returns a figure of each run as text: one value, or the lowest and the highest.
func (f figures) over(names string, digits int, of ...func(*run) (float64, error)) (string, error) {
	list, err := f.runs(names)
	if err != nil {
		return "", err
	}
	var v []float64
	for _, r := range list {
		for _, figure := range of {
			x, err := figure(r)
			if err != nil {
				return "", fmt.Errorf("%s: %w", r.File, err)
			}
			v = append(v, x)
		}
	}
	low, high := rounded(slices.Min(v), digits), rounded(slices.Max(v), digits)
	if low == high {
		return low, nil
	}
	return low + " to " + high, nil
}

// rounded formats v with the given number of digits after the point, without a minus before zero.
func rounded(v float64, digits int) string {
	if p := math.Pow10(digits); math.Round(v*p) == 0 {
		v = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// copied finds a point between host and device. If count is 0, it returns the one with the most
// blocks.
func copied(r *run, path string, size int64, count int, dir, host string) (*bench.Point, error) {
	var found *bench.Point
	if r.copies != nil {
		for i := range r.copies.Points {
			p := &r.copies.Points[i]
			if p.Path == path && p.Size == size && p.Direction == bench.Direction(dir) && p.Layout == bench.Layout("host "+host) &&
				(count == 0 && (found == nil || p.Count > found.Count) || count == p.Count) {
				found = p
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%s has no point of %d x %d, %s, host %s", path, count, size, dir, host)
	}
	return found, nil
}

func (f figures) point(names, path string, size int64, count int, dir, host string, digits int, of func(*bench.Point) float64) (string, error) {
	return f.over(names, digits, func(r *run) (float64, error) {
		p, err := copied(r, path, size, count, dir, host)
		if err != nil {
			return 0, err
		}
		return of(p), nil
	})
}

// rate returns GB/s at the largest number of blocks.
func (f figures) rate(names, path string, size int64, dir, host string) (string, error) {
	return f.point(names, path, size, 0, dir, host, 1, func(p *bench.Point) float64 { return p.GBps })
}

// share returns the same in percent of the large copies.
func (f figures) share(names, path string, size int64, dir, host string) (string, error) {
	return f.point(names, path, size, 0, dir, host, 0, func(p *bench.Point) float64 { return 100 * p.Share })
}

// p50 and p99 return the microseconds of a batch from Submit to its completion.
func (f figures) p50(names, path string, size int64, count int, dir, host string) (string, error) {
	return f.point(names, path, size, count, dir, host, 1, func(p *bench.Point) float64 { return p.P50Micros })
}

func (f figures) p99(names, path string, size int64, count int, dir, host string) (string, error) {
	return f.point(names, path, size, count, dir, host, 0, func(p *bench.Point) float64 { return p.P99Micros })
}

// large returns GB/s of the large copies of all points in a direction.
func (f figures) large(names, dir string) (string, error) {
	return f.over(names, 1, func(r *run) (float64, error) {
		if r.copies != nil {
			if c := r.copies.Reference.Of(bench.Direction(dir)); c.Samples > 0 {
				return c.GBps, nil
			}
		}
		return 0, fmt.Errorf("no large copy, %s", dir)
	})
}

// peer returns GB/s between two devices, with blocks scattered on both.
func (f figures) peer(names, path string, size int64, dir string) (string, error) {
	return f.over(names, 0, func(r *run) (float64, error) {
		if r.copies != nil && r.copies.Peers != nil {
			for _, p := range r.copies.Peers.Points {
				if p.Path == path && p.Size == size && p.Direction == bench.Direction(dir) && p.Layout == bench.BothScattered {
					return p.GBps, nil
				}
			}
		}
		return 0, fmt.Errorf("%s has no point of %d between devices, %s", path, size, dir)
	})
}

func (f figures) peerLarge(names, dir string) (string, error) {
	return f.over(names, 0, func(r *run) (float64, error) {
		if r.copies == nil || r.copies.Peers == nil {
			return 0, fmt.Errorf("the run has no second device")
		}
		return r.copies.Peers.Reference.Of(bench.Direction(dir)).GBps, nil
	})
}

// server returns a row of a table of servers: the time to the first token and per further token of one
// side, each as the median of the rounds (least to most).
func (f figures) server(name, side, workload string) (string, error) {
	ttft, tpot, err := f.rounds(name, side, workload)
	if err != nil {
		return "", err
	}
	return ttft.text(0) + " | " + tpot.text(1), nil
}

// rounds returns the sorted figures of the rounds of one side, in milliseconds.
func (f figures) rounds(name, side, workload string) (ttft, tpot sorted, err error) {
	list, err := f.runs(name)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range list {
		if r.servers == nil {
			continue
		}
		for _, row := range r.servers.Rows {
			if row.Side == side && row.Workload == workload {
				ttft, tpot = append(ttft, row.MedianTTFT), append(tpot, row.MeanTPOT)
			}
		}
	}
	if len(ttft) == 0 {
		return nil, nil, fmt.Errorf("%s has no round of %s, %s", name, side, workload)
	}
	slices.Sort(ttft)
	slices.Sort(tpot)
	return ttft, tpot, nil
}

// sorted are figures in ascending order.
type sorted []float64

func (s sorted) median() float64 { return s[len(s)/2] }

func (s sorted) text(digits int) string {
	if len(s) == 1 {
		return rounded(s[0], digits)
	}
	return fmt.Sprintf("%s (%s to %s)", rounded(s.median(), digits), rounded(s[0], digits), rounded(s[len(s)-1], digits))
}

// cite returns links to runs, by device and date.
func (f figures) cite(names string) (string, error) {
	list, err := f.runs(names)
	if err != nil {
		return "", err
	}
	var links []string
	for _, r := range list {
		links = append(links, fmt.Sprintf("[%s](runs/%s)", r.title(), r.File))
	}
	return strings.Join(links, ", "), nil
}

// title returns the device and the date: "H200, 2026-11-23".
func (r *run) title() string {
	device, _, _ := strings.Cut(strings.TrimPrefix(r.Device, "NVIDIA "), " ")
	return device + ", " + r.Date[:len("2006-01-02")]
}

// made returns a list of the devices, with driver, dates and notes.
func (f figures) made() string {
	type machine struct{ device, driver string }
	dates, notes := make(map[machine][]string), make(map[machine][]string)
	for _, r := range f {
		m := machine{r.Device, r.Driver}
		dates[m] = append(dates[m], r.Date[:len("2006-01-02")])
		if r.Note != "" {
			notes[m] = append(notes[m], fmt.Sprintf("%s: %s", r.Date[:len("2006-01-02")], r.Note))
		}
	}
	var texts []string
	for m, d := range dates {
		slices.Sort(d)
		text := fmt.Sprintf("%s, driver %s: %s", m.device, m.driver, strings.Join(slices.Compact(d), ", "))
		if n := notes[m]; len(n) > 0 {
			slices.Sort(n)
			text += " (" + strings.Join(slices.Compact(n), "; ") + ")"
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, ".\n") + "."
}

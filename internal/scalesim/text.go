package scalesim

import (
	"fmt"
	"io"
	"time"
)

// Write writes the report as a table of Markdown.
func (r *Report) Write(w io.Writer) error {
	c := &r.Config
	p := printer{w: w}
	p.line("%d servers in %d zones, %d runs, %d blocks, %.1f TiB; %d clients, %.0f requests/s, seed %d", c.Servers, c.Zones, c.Runs, r.Blocks,
		float64(r.Bytes)/(1<<40), c.Clients, c.Rate, c.Seed)
	p.line("hottest run: %.1f%% of the requests; cache of a client: %d runs (%.2f%%), hit rate %.3f", 100*r.Hottest, c.CacheRuns,
		100*float64(c.CacheRuns)/float64(c.Runs), r.HitRate)
	p.line("busiest server by the mean: bytes %.3f, requests %.3f\n", r.BytesRatio, r.RequestsRatio)
	p.line("| phase | lookups | hits | misses: lost | other | failed | refused | busiest by mean | moved | ideal |")
	p.line("|---|---|---|---|---|---|---|---|---|---|")
	for i := range r.Phases {
		f := &r.Phases[i]
		p.line("| %s | %d | %.5f | %d | %d | %d | %d | %.3f | %.5f | %.5f |", f.Name, f.Lookups, float64(f.Hits)/float64(f.Lookups), f.LostMisses,
			f.OtherMisses, f.Failures, f.Refusals, f.RequestsRatio, f.Moved, f.Ideal)
	}
	p.line("")
	for i := range r.Phases {
		switch f := &r.Phases[i]; {
		case f.LostShare > 0:
			back := fmt.Sprintf("%.0f%% of the lost hits were back", 100*f.Back)
			if f.Half > 0 {
				back = fmt.Sprintf("Half of the lost hits were back after %.0f s, %.0f%%", f.Half.Seconds(), 100*f.Back)
			}
			p.line("- %s: its share of the requests is %.5f, and %.5f of the first lookups missed. %s after %.0f s.", f.Name, f.LostShare, f.FirstLost, back, (f.End - f.Start).Seconds())
		case f.LeftOut > 0:
			p.line("- %s: its requests fell to a tenth after %.0f s.", f.Name, f.LeftOut.Seconds())
		}
	}
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

const (
	chartWidth, chartHeight = 720, 260
	left, right, top, base  = 60, 10, 34, 30
)

// curve is a line of a chart. The points have the same distance.
type curve struct {
	name, color string
	y           []float64
}

// chart writes an SVG of curves with y from low to high. ticks are names of places on the x axis, 0
// to 1.
func chart(w io.Writer, title string, curves []curve, low, high float64, ticks map[float64]string) error {
	p := printer{w: w}
	p.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`, chartWidth, chartHeight)
	p.line(`<rect width="%d" height="%d" fill="white"/>`, chartWidth, chartHeight)
	p.line(`<text x="%d" y="14" font-size="13">%s</text>`, left, title)
	wide, tall := float64(chartWidth-left-right), float64(chartHeight-top-base)
	y := func(v float64) float64 { return top + tall*(high-min(max(v, low), high))/(high-low) }
	for i := range 5 {
		v := low + (high-low)*float64(i)/4
		p.line(`<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.3g</text>`, left, y(v), chartWidth-right, left-6, y(v)+4, v)
	}
	for _, at := range sortedKeys(ticks) {
		x := left + wide*at
		p.line(`<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d">%s</text>`, x, top, chartHeight-base, x+2, chartHeight-base+14, ticks[at])
	}
	for n, c := range curves {
		path := ""
		for i, v := range c.y {
			path += fmt.Sprintf("%c%.1f %.1f", "ML"[min(i, 1)], left+wide*float64(i)/float64(max(len(c.y)-1, 1)), y(v))
		}
		p.line(`<path d="%s" fill="none" stroke="%s"/><text x="%d" y="28" fill="%s">%s</text>`, path, c.color, left+170*n, c.color, c.name)
	}
	p.line(`</svg>`)
	return p.err
}

// WriteBalance writes a chart of the servers by their share of bytes and requests.
func (r *Report) WriteBalance(w io.Writer) error {
	return chart(w, fmt.Sprintf("%d servers, sorted: bytes and requests by the mean", r.Config.Servers),
		[]curve{{"bytes", "#2563eb", r.BytesOf}, {"requests after the caches", "#dc2626", r.RequestsOf}}, 0.8, 1.25,
		map[float64]string{0: "least", 0.5: "median", 0.9: "90%"})
}

// WriteHits writes a chart of the hits over time, in steps of five seconds.
func (r *Report) WriteHits(w io.Writer) error {
	const step = 5 * time.Second
	first := r.Phases[0].Start
	var hits, caches []float64
	end := r.Phases[len(r.Phases)-1].End
	for t := first; t+step <= end; t += step {
		var x Second
		for _, y := range r.Seconds[t/time.Second : (t+step)/time.Second] {
			x.Requests, x.CacheHits, x.Lookups, x.Hits = x.Requests+y.Requests, x.CacheHits+y.CacheHits, x.Lookups+y.Lookups, x.Hits+y.Hits
		}
		hits = append(hits, float64(x.Hits)/float64(max(x.Lookups, 1)))
		caches = append(caches, float64(x.CacheHits)/float64(max(x.Requests, 1)))
	}
	ticks := make(map[float64]string)
	for i := range r.Phases {
		ticks[float64(r.Phases[i].Start-first)/float64(end-first)] = r.Phases[i].Name
	}
	return chart(w, "Hits of the servers and of the clients' caches over time",
		[]curve{{"servers", "#2563eb", hits}, {"caches", "#6b7280", caches}}, 0.5, 1, ticks)
}

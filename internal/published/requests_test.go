package published

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/internal/present"
)

// Figures of requests: loads and dumps of the store, replays, and times to first token.

// request returns a figure of single loads from the cache or of single dumps: gbps, percent (of a
// large copy), p50 or p99 in milliseconds, or first, the p50 of layer 0.
func (f figures) request(names, work string, blocks int, form, what string) (string, error) {
	digits := map[string]int{"gbps": 1, "percent": 0, "p50": 2, "p99": 2, "first": 2}[what]
	return f.over(names, digits, func(r *run) (float64, error) {
		if r.store == nil {
			return 0, fmt.Errorf("the run is not one of bench store")
		}
		at := request.Place{Geometry: "70b-tp8", Work: request.Work(work), Layerwise: form == string(request.Layers), Blocks: blocks, Requests: 1}
		if at.Work == request.Load {
			at.Hits = request.InCache
		}
		for i := range r.store.Points {
			p := &r.store.Points[i]
			if p.Place != at {
				continue
			}
			switch what {
			case "gbps":
				return p.GBps, nil
			case "percent":
				return p.PercentOfC, nil
			case "p50":
				return p.P50Micros / 1e3, nil
			case "p99":
				return p.P99Micros / 1e3, nil
			case "first":
				if len(p.LayersMicros) > 0 {
					return p.LayersMicros[0] / 1e3, nil
				}
			}
		}
		return 0, fmt.Errorf("a %s of %d blocks, %s, has no %s", work, blocks, form, what)
	})
}

// times returns the p50 and, in brackets, the p99 of a request.
func (f figures) times(names, work string, blocks int, form string) (string, error) {
	p50, err := f.request(names, work, blocks, form, "p50")
	if err != nil {
		return "", err
	}
	p99, err := f.request(names, work, blocks, form, "p99")
	return fmt.Sprintf("%s (%s)", p50, p99), err
}

// losses returns the slowdown of the matrix product during the run's requests.
func (r *run) losses() []request.Loss {
	if r.store == nil || r.store.ProductCost == nil {
		return nil
	}
	return r.store.ProductCost.Losses
}

// concurrency returns which requests ran concurrently with a matrix product.
func (f figures) concurrency(names string) (string, error) {
	list, err := f.runs(names)
	if err != nil {
		return "", err
	}
	losses := list[0].losses()
	if len(losses) == 0 {
		return "", fmt.Errorf("%s: nothing ran concurrently with a product", list[0].File)
	}
	return fmt.Sprintf("%d at a time of %s blocks", losses[0].Requests, count(losses[0].Blocks)), nil
}

// cost returns two cells: the rate of loads or dumps concurrent with a product in GB/s, and the
// slowdown of the product in percent with its 95% interval.
func (f figures) cost(names, work, form string) (string, error) {
	figure := func(of func(*request.Loss) float64) func(*run) (float64, error) {
		return func(r *run) (float64, error) {
			losses := r.losses()
			for i := range losses {
				if l := &losses[i]; l.Geometry == "70b-tp8" && l.Work == request.Work(work) && l.Layerwise == (form == string(request.Layers)) {
					return of(l), nil
				}
			}
			return 0, fmt.Errorf("no cost of a %s, %s, for a product", work, form)
		}
	}
	rate, err := f.over(names, 1, figure(func(l *request.Loss) float64 { return l.GBps }))
	if err != nil {
		return "", err
	}
	loss, err := f.over(names, 1, figure(func(l *request.Loss) float64 { return 100 * l.Loss }))
	if err != nil {
		return "", err
	}
	within, err := f.over(names, 1, figure(func(l *request.Loss) float64 { return 100 * l.Low }), figure(func(l *request.Loss) float64 { return 100 * l.High }))
	return fmt.Sprintf("%s | %s (%s)", rate, loss, within), err
}

// replayed returns a figure of a replay that completed without failures. Times of requests are in
// milliseconds.
func (f figures) replayed(names, what string) (string, error) {
	digits, ok := map[string]int{"seconds": 1, "GiB": 1, "requests": 0, "accesses": 0, "hits": 0}[what]
	if !ok {
		digits = 2
	}
	text, err := f.over(names, digits, func(r *run) (float64, error) {
		t := r.trace
		if t == nil || !t.Complete || t.Mismatches+t.Corrupt+t.BadCopies+t.LoadErrors+t.DumpErrors+t.DurableErrors > 0 {
			return 0, fmt.Errorf("the report is not of a replay, or some operations failed")
		}
		v, ok := map[string]float64{
			"seconds": t.Seconds, "requests": float64(t.Requests), "accesses": float64(t.BlockAccesses), "hits": float64(t.PrefixHits),
			"GiB":      float64(t.BytesVerified) / (1 << 30),
			"load p50": float64(t.LoadUS.P50) / 1e3, "load p99": float64(t.LoadUS.P99) / 1e3,
			"dump p50": float64(t.DumpUS.P50) / 1e3, "dump p99": float64(t.DumpUS.P99) / 1e3,
		}[what]
		if !ok {
			return 0, fmt.Errorf("a replay has no %s", what)
		}
		return v, nil
	})
	if n, bad := strconv.Atoi(text); bad == nil {
		text = count(n)
	}
	return text, err
}

// count formats a whole number.
func count(n int) string { return present.Count(int64(n)) }

// firstTokens returns the times to first token of one run.
func (f figures) firstTokens(name string) (*firstTokens, error) {
	list, err := f.runs(name)
	if err != nil {
		return nil, err
	}
	if len(list) > 1 || list[0].ttft == nil {
		return nil, fmt.Errorf("%s is not one run of times to first token", name)
	}
	return list[0].ttft, nil
}

// lengths returns the prompt lengths of a run in tokens.
func (f figures) lengths(name string) ([]int, error) {
	rep, err := f.firstTokens(name)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, row := range rep.Rows {
		all = append(all, row.Tokens)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// first returns a time to first token in milliseconds and, if several were measured, the 99th
// percentile in brackets. Loaded KV must equal that of a prefix kept on the device.
func (f figures) first(name string, tokens int, source string) (string, error) {
	rep, err := f.firstTokens(name)
	if err != nil {
		return "", err
	}
	for _, row := range rep.Rows {
		if row.Tokens != tokens || row.Source != source {
			continue
		}
		if row.Identical != nil && !*row.Identical {
			return "", fmt.Errorf("%d tokens, %s: the loaded KV was wrong", tokens, source)
		}
		if row.N == 1 {
			return rounded(1e3*row.Median, 0), nil
		}
		return fmt.Sprintf("%s (%s)", rounded(1e3*row.Median, 0), rounded(1e3*row.P99, 0)), nil
	}
	return "", fmt.Errorf("%s has no %q of %d tokens", name, source, tokens)
}

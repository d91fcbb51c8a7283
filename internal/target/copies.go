package target

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/bench"
)

const kib = 1 << 10

// find returns the point of a contender with the most blocks of a size, among those that want takes.
func find(points []bench.Point, path string, size int64, want func(*bench.Point) bool) *bench.Point {
	var best *bench.Point
	for i := range points {
		p := &points[i]
		if p.Path == path && p.Size == size && want(p) && (best == nil || p.Count > best.Count) {
			best = p
		}
	}
	return best
}

// shares are what the stream's own choice reaches of one large copy, by block size.
func shares(r *bench.Report) []Result {
	var all []Result
	add := func(l bench.Layout, d bench.Direction, size int64, least float64) {
		t := atLeast(100*least, PercentOfC, fmt.Sprintf("share/%s/%s/%s", strings.TrimPrefix(string(l), "host "), d, bench.BytesText(size)),
			"auto, blocks of %s, %s, %s", bench.BytesText(size), l, d)
		p := find(r.Points, bench.Auto, size, func(p *bench.Point) bool { return p.Direction == d && p.Layout == l })
		if p != nil {
			t = t.of(100*p.Share).note("%.1f GB/s of %.1f by %s, %d blocks", p.GBps, p.LargeGBps, p.Traveled, p.Blocks)
		}
		all = append(all, t)
	}
	for _, l := range []bench.Layout{bench.HostScattered, bench.HostContiguous} {
		for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
			add(l, d, 256, 0.6)
			add(l, d, kib, 0.9)
			least := 0.97
			switch {
			case l == bench.HostContiguous:
			case d == bench.ToDevice:
				least = 0.91
			default:
				least = 0.93
			}
			for _, size := range []int64{4, 8, 16, 32, 64, 256, 1024} {
				add(l, d, size*kib, least)
			}
		}
	}
	return all
}

// regrets are what the stream's own choice loses against the best of the single paths and against the baselines, where it
// loses most. Where it chose the best path itself, nothing was lost by choosing: two measurements of the same differ.
func regrets(r *bench.Report) []Result {
	path := atMost(100*bench.MaxLost, Percent, "regret/best-path", "auto slower than the best single path, at the worst point")
	base := atMost(100*bench.MaxBeaten, Percent, "regret/baselines", "auto slower than one copy a block or the driver's batched copy, at the worst point")
	all := r.Regrets()
	lost, beaten := worst(all, lostByChoosing), worst(all, func(g *bench.Regret) float64 { return g.Beaten })
	// Paths and baselines that were not measured leave nothing to regret.
	if lost.at != nil && lost.at.Best != "" {
		over, best := 0, 0
		for i := range all {
			if lostByChoosing(&all[i]) > bench.MaxLost {
				over++
			}
			if all[i].Chance() {
				best++
			}
		}
		path = path.of(100*lost.value).note("%s; beyond the target at %d of %d points, the best path itself at %d", where(lost.at, lost.at.Best), over, len(all), best)
	}
	if beaten.at != nil && beaten.at.Baseline != "" {
		over := 0
		for i := range all {
			if all[i].Beaten > bench.MaxBeaten {
				over++
			}
		}
		base = base.of(100*beaten.value).note("%s; beyond the target at %d of %d points", where(beaten.at, beaten.at.Baseline), over, len(all))
	}
	return []Result{path, base}
}

func lostByChoosing(g *bench.Regret) float64 {
	if g.Chance() {
		return 0
	}
	return g.Lost
}

type worstRegret struct {
	value float64
	at    *bench.Regret
}

func worst(all []bench.Regret, of func(*bench.Regret) float64) worstRegret {
	var w worstRegret
	for i := range all {
		if v := of(&all[i]); w.at == nil || v > w.value {
			w = worstRegret{v, &all[i]}
		}
	}
	return w
}

func where(g *bench.Regret, than string) string {
	return fmt.Sprintf("%d x %s, %s, %s: %s against %s", g.Count, bench.BytesText(g.Size), g.Layout, g.Direction, g.Traveled, than)
}

// latencies are medians from Submit to completion of one block of 4 KiB, by the planned path.
func latencies(r *bench.Report) []Result {
	var all []Result
	for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		t := atMost(14, Micros, fmt.Sprintf("latency/1/%s", d), "auto, 1 x 4 KiB from Submit to done, median, %s", d)
		p := find(r.Points, bench.Auto, 4*kib, func(p *bench.Point) bool {
			return p.Count == 1 && p.Direction == d && p.Layout == bench.HostScattered
		})
		if p != nil {
			t = t.of(p.P50Micros).note("p99 %.1f us", p.P99Micros)
		}
		all = append(all, t)
	}
	return all
}

// peers are what is reached between two devices, in GB/s of a link whose large copy has 396, or as a share of that copy.
func peers(r *bench.Report) []Result {
	var all []Result
	for _, d := range []struct {
		d    bench.Direction
		name string
	}{{bench.ToDevice, "pull"}, {bench.ToHost, "push"}} {
		small := atLeast(290, GBps, "peers/scattered/4 KiB/"+d.name, "between GPUs, blocks of 4 KiB, both scattered, %s", d.name)
		large := atLeast(90, PercentOfC, "peers/scattered/1 MiB/"+d.name, "between GPUs, blocks of 1 MiB, both scattered, %s", d.name)
		flat := atLeast(97, PercentOfC, "peers/contiguous/1 MiB/"+d.name, "between GPUs, blocks of 1 MiB, both contiguous, %s", d.name)
		if r.Peers == nil {
			const why = "it takes two GPUs that reach each other's memory"
			all = append(all, small.note(why), large.note(why), flat.note(why))
			continue
		}
		at := func(size int64, l bench.Layout) *bench.Point {
			return find(r.Peers.Points, bench.Auto, size, func(p *bench.Point) bool { return p.Direction == d.d && p.Layout == l })
		}
		if p := at(4*kib, bench.BothScattered); p != nil {
			small = small.of(p.GBps).note("%.0f%% of C, by %s", 100*p.Share, p.Traveled)
		}
		if p := at(1024*kib, bench.BothScattered); p != nil {
			large = large.of(100*p.Share).note("%.1f GB/s by %s", p.GBps, p.Traveled)
		}
		if p := at(1024*kib, bench.BothContiguous); p != nil {
			flat = flat.of(100*p.Share).note("%.1f GB/s by %s", p.GBps, p.Traveled)
		}
		all = append(all, small, large, flat)
	}
	return all
}

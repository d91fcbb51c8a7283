package request

import (
	"slices"
	"time"

	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// samples are the durations of the repetitions of an entrant in microseconds.
type samples struct {
	walls   []float64 // time until the last request of a repetition ended
	leased  []float64 // for each load, the time until LeasePrefix and Load returned
	begun   []float64
	loads   []float64 // for each request
	dumps   []float64
	durable []float64
	layers  [][]float64 // for each layer
	cpu     time.Duration
	allocs  uint64
	path    string
}

// init allocates the slices in advance, so that recording does not allocate.
func (s *samples) init(e *entrant) {
	const room = maxReps + mostReps
	s.walls = make([]float64, 0, room)
	for _, l := range e.lanes {
		if l.work == Load {
			s.loads, s.leased, s.begun = slices.Grow(s.loads, room), slices.Grow(s.leased, room), slices.Grow(s.begun, room)
		} else {
			s.dumps, s.durable = slices.Grow(s.dumps, room), slices.Grow(s.durable, room)
		}
	}
	for range e.lanes[0].arrived {
		s.layers = append(s.layers, make([]float64, 0, room))
	}
}

// clear removes all samples and keeps the memory.
func (s *samples) clear() {
	s.walls, s.loads, s.dumps, s.durable = s.walls[:0], s.loads[:0], s.dumps[:0], s.durable[:0]
	s.leased, s.begun = s.leased[:0], s.begun[:0]
	for i := range s.layers {
		s.layers[i] = s.layers[i][:0]
	}
	s.cpu, s.allocs = 0, 0
}

// add records a repetition.
func (s *samples) add(lanes []*lane) {
	var last time.Duration
	for _, l := range lanes {
		last = max(last, l.free)
		if l.work == Load {
			s.loads, s.leased, s.begun = append(s.loads, micros(l.free)), append(s.leased, micros(l.leased)), append(s.begun, micros(l.begun))
		} else {
			s.dumps = append(s.dumps, micros(l.free))
			s.durable = append(s.durable, micros(l.durable))
		}
		for k, d := range l.arrived {
			s.layers[k] = append(s.layers[k], micros(d))
		}
	}
	s.walls = append(s.walls, micros(last))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// points returns the points of the group. They include the results of the stream without a store.
func (g *group) points() []Point {
	raw := make(map[Work]*samples)
	for _, e := range g.entrants {
		if e.isBare() {
			raw[e.place.Work] = &e.samples
		}
	}
	var points []Point
	for _, e := range g.entrants {
		if e.isBare() {
			continue
		}
		cost := raw[e.place.Work]
		if e.place.Work == Both {
			cost = raw[Load]
		}
		points = append(points, e.point(cost, g.large[e.place.Work]))
	}
	for i := range points {
		both := &points[i]
		for k := range points {
			alone := points[k].Place
			if alone.Work = Both; both.Work == Both && points[k].Work == Load && alone == both.Place {
				both.LoadsOverAlone = both.P50Micros / max(points[k].P50Micros, 1e-3)
			}
		}
	}
	return points
}

func (e *entrant) point(raw *samples, large []float64) Point {
	g, s := &e.rig.geometry, &e.samples
	blocks := int64(e.place.Blocks * e.place.Requests)
	p := Point{Place: e.place, BlockBytes: g.BlockBytes(), PieceBytes: g.PieceBytes(), Reps: len(s.walls), Path: s.path}
	each := blocks * g.BlockBytes()
	if e.place.Work == Both {
		blocks *= 2
	}
	p.Bytes = blocks * g.BlockBytes()
	rate := func(bytes int64, us float64) float64 { return float64(bytes) / max(us, 1e-3) / 1e3 }
	quantile := func(v []float64, q float64) float64 { return measure.Quantile(v, q) }
	p.GBps = rate(p.Bytes, quantile(s.walls, 0.5))
	p.LowGBps, p.HighGBps = rate(p.Bytes, quantile(s.walls, 0.75)), rate(p.Bytes, quantile(s.walls, 0.25))
	if p.LargeGBps = quantile(large, 0.5); p.LargeGBps > 0 {
		p.PercentOfC = 100 * p.GBps / p.LargeGBps
	}
	if raw != nil {
		p.RawMicros = quantile(raw.walls, 0.5)
		p.RawGBps = rate(each, p.RawMicros)
	}
	if e.place.Requests > 1 && p.LargeGBps > 0 {
		p.SlowestOverFair = quantile(s.walls, 0.99) / (float64(p.Bytes) / p.LargeGBps / 1e3)
	}
	p.P50Micros, p.P99Micros = quantile(s.loads, 0.5), quantile(s.loads, 0.99)
	switch e.place.Work {
	case Dump:
		p.P50Micros, p.P99Micros = quantile(s.dumps, 0.5), quantile(s.dumps, 0.99)
	case Both:
		p.DumpP50Micros, p.DumpP99Micros = quantile(s.dumps, 0.5), quantile(s.dumps, 0.99)
	case Load:
	}
	p.DurableP50Micros, p.DurableP99Micros = quantile(s.durable, 0.5), quantile(s.durable, 0.99)
	p.LeasedMicros, p.BegunMicros = quantile(s.leased, 0.5), quantile(s.begun, 0.5)
	for _, v := range s.layers {
		p.LayersMicros = append(p.LayersMicros, quantile(v, 0.5))
	}
	total := float64(blocks) * float64(max(len(s.walls), 1))
	p.CPUMicrosPerBlock, p.AllocsPerBlock = micros(s.cpu)/total, float64(s.allocs)/total
	return p
}

// moved returns the path statistics of the store's streams for the kind of work. For Both, it
// returns those of loads.
func (r *rig) moved(w Work) []store.PathStats {
	st := r.engine.Store().Stats()
	if w == Dump {
		return st.DumpPaths
	}
	return st.LoadPaths
}

// mostMoved returns the path that copied most bytes between two snapshots of the statistics, or was
// if no bytes were copied.
func mostMoved(before, after []store.PathStats, was string) string {
	var most int64
	for _, a := range after {
		n := a.Bytes
		for _, b := range before {
			if b.Path == a.Path {
				n -= b.Bytes
			}
		}
		if n > most {
			most, was = n, a.Path.String()
		}
	}
	return was
}

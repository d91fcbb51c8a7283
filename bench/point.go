package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// samples are the durations of the repetitions of a point in microseconds.
type samples struct {
	all, prep, post, tx, predicted []float64
	paths                          []stream.Path
	rounds                         []int // index in all of the first repetition of each round

	// Total duration of the rounds, and CPU time and allocated heap objects in them.
	wall, cpu time.Duration
	mallocs   uint64
	started   time.Time
	before    Usage
}

func newSamples(n int) *samples {
	one := func() []float64 { return make([]float64, 0, n) }
	return &samples{all: one(), prep: one(), post: one(), tx: one(), predicted: one(), paths: make([]stream.Path, 0, n)}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// begin begins a round.
func (s *samples) begin() {
	s.rounds = append(s.rounds, len(s.all))
	s.before, s.started = UsageNow(), time.Now()
}

// end ends a round.
func (s *samples) end() {
	s.wall += time.Since(s.started)
	u := s.before.Since()
	s.cpu, s.mallocs = s.cpu+u.CPU, s.mallocs+u.Allocs
}

// cpuTime returns the CPU time of the process.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail for the own process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// mallocs returns the number of heap objects that the process has allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func (s *samples) add(c *planRunner, took, prep time.Duration) {
	s.all = append(s.all, micros(took))
	s.prep = append(s.prep, micros(prep))
	post := micros(c.post)
	s.post = append(s.post, post)
	s.tx = append(s.tx, micros(took)-post)
	done := c.movers[0].last()
	s.predicted = append(s.predicted, micros(done.predicted))
	s.paths = append(s.paths, done.path)
}

// point returns the point with the results of an entrant.
func (g *group) point(e *entrant) Point {
	s, bytes, blocks := e.samples, e.runner.bytes(), e.runner.plans[0].Count
	rates := make([]float64, len(s.all))
	for i, us := range s.all {
		rates[i] = float64(bytes) / max(us, 1e-3) / 1e3
	}
	var perRound []float64
	for i, from := range s.rounds {
		to := len(rates)
		if i+1 < len(s.rounds) {
			to = s.rounds[i+1]
		}
		if from < to {
			perRound = append(perRound, measure.Median(append([]float64(nil), rates[from:to]...)))
		}
	}
	all, prep, post, tx := summarize(s.all), summarize(s.prep), summarize(s.post), summarize(s.tx)
	p := Point{
		Path: e.who.Name(), Baseline: e.who.Baseline != NoBaseline, Form: e.form, Cell: g.at.Cell, Blocks: blocks,
		Direction: g.at.dir, Layout: g.at.layout, Bytes: bytes, Reps: len(s.all),
		GBps: measure.Median(rates), LowGBps: measure.Quantile(rates, 0.25), HighGBps: measure.Quantile(rates, 0.75), RoundGBps: perRound,
		LargeGBps:  measure.Median(g.large),
		MeanMicros: all.mean, P50Micros: all.p50, P99Micros: all.p99,
		PrepMicros: prep.mean, PrepP99Micros: prep.p99, PostMicros: post.mean, PostP50Micros: post.p50, PostP99Micros: post.p99,
		TxMicros: tx.mean, TxP99Micros: tx.p99, Summed: e.runner.movers[0].last().summed,
	}
	if s.wall > 0 {
		p.BusyCPUs = s.cpu.Seconds() / s.wall.Seconds()
	}
	if p.LargeGBps > 0 {
		p.Share = p.GBps / p.LargeGBps
	}
	if moved := float64(len(s.all) * blocks * len(e.runner.plans)); moved > 0 {
		p.AllocsPerBlock = float64(s.mallocs) / moved
	}
	if e.who.Baseline == NoBaseline {
		p.Traveled = mode(s.paths).String()
		p.PredictedMicros = measure.Median(s.predicted)
	} else {
		p.Form = Lists
	}
	return p
}

// mode returns the most frequent path.
func mode(paths []stream.Path) stream.Path {
	var count [256]int
	most := stream.PathNone
	for _, p := range paths {
		if count[p]++; count[p] > count[most] {
			most = p
		}
	}
	return most
}

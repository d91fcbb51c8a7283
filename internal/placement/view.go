package placement

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/kvlane/kvlane/internal/rendezvous"
)

// MaxReplicas is the maximum number of servers that have a run.
const MaxReplicas = 16

// RampSteps is the number of steps in which the weight of a server that joins grows.
const RampSteps = 16

// None is the index of no server.
const None = -1

// Server is a server as one client sees it.
type Server struct {
	Name     string // determines the runs of the server
	Zone     string // empty: unknown
	Weight   int    // at least 1
	Draining bool   // it leaves: it gets no new blocks, and its blocks are read

	// Joined is the time when the client saw the server join. Zero: it was there before the client.
	Joined time.Time
}

// Options are the options of a View.
type Options struct {
	// Ramp is the time in which the weight of a server that joins grows. Zero: it has its weight at
	// once.
	Ramp time.Duration
	// Zone is the zone of the client. Empty: unknown.
	Zone string
}

// View places runs on the servers of one time. It is immutable.
type View struct {
	all     []candidate
	changes bool      // a server drains, or joined not long before
	next    time.Time // of the next change by time alone; zero: none
}

type candidate struct {
	seed   uint64
	weight float64 // now; zero: home of no run
	before float64 // weight for the previous home
	local  bool
}

// NewView returns the view at a time. If all servers drain they are used like others. servers must
// not be empty.
func NewView(servers []Server, o Options, now time.Time) *View {
	v := &View{all: make([]candidate, len(servers))}
	leaving := 0
	for i := range servers {
		if servers[i].Draining {
			leaving++
		}
	}
	for i := range servers {
		s, c := &servers[i], &v.all[i]
		full := float64(s.Weight)
		c.seed, c.local = rendezvous.Seed(s.Name), s.Zone != "" && s.Zone == o.Zone
		if !s.Draining || leaving == len(servers) {
			c.weight = full * v.ramp(s.Joined, o.Ramp, now)
		}
		// The previous home is that of the servers that did not join not long before.
		if !v.recent(s.Joined, 2*o.Ramp, now) {
			c.before = full
		}
		v.changes = v.changes || c.before != c.weight
	}
	return v
}

// ramp returns the fraction of the weight of a server that joined: RampSteps equal steps.
func (v *View) ramp(joined time.Time, ramp time.Duration, now time.Time) float64 {
	if joined.IsZero() || ramp <= 0 || now.Sub(joined) >= ramp {
		return 1
	}
	step := max(int64(now.Sub(joined)*RampSteps/ramp), 0) + 1
	v.changeAt(joined.Add(time.Duration(step) * ramp / RampSteps))
	return float64(step) / RampSteps
}

func (v *View) recent(since time.Time, d time.Duration, now time.Time) bool {
	if since.IsZero() || now.Sub(since) >= d {
		return false
	}
	v.changeAt(since.Add(d))
	return true
}

func (v *View) changeAt(t time.Time) {
	if v.next.IsZero() || t.Before(v.next) {
		v.next = t
	}
}

// Next returns the time from which another view must be made of the same servers, or zero.
func (v *View) Next() time.Time { return v.next }

// Order appends the first k servers of the run with an anchor to buf: the home, and then those that
// have replicas. k is at most MaxReplicas. There are fewer if the view has fewer servers.
func (v *View) Order(anchor []byte, k int, buf []int) []int {
	return v.order(anchor, k, buf, false)
}

// Home returns the server that gets the new blocks of the run with an anchor.
func (v *View) Home(anchor []byte) int {
	var buf [1]int
	return v.order(anchor, 1, buf[:0], false)[0]
}

// Previous returns the server that was the home of the run before the last changes, or None if it
// still is, or is not known. It may have blocks that the home misses.
func (v *View) Previous(anchor []byte, home int) int {
	if !v.changes {
		return None
	}
	var buf [1]int
	if p := v.order(anchor, 1, buf[:0], true); len(p) > 0 && p[0] != home {
		return p[0]
	}
	return None
}

// order returns the first k servers in the order of cost, by the weights of now or of before.
func (v *View) order(anchor []byte, k int, buf []int, before bool) []int {
	k = min(max(k, 1), MaxReplicas)
	var costs [MaxReplicas]float64
	n, most := 0, math.Inf(1)
	first := len(buf)
	for i := range v.all {
		c := &v.all[i]
		weight := c.weight
		if before {
			weight = c.before
		}
		if weight == 0 {
			continue
		}
		cost, below := rendezvous.CostBelow(anchor, c.seed, weight, most)
		if !below {
			continue
		}
		if n < k {
			buf = append(buf, i)
			n++
		}
		at := n - 1
		for ; at > 0 && costs[at-1] > cost; at-- {
			costs[at], buf[first+at] = costs[at-1], buf[first+at-1]
		}
		costs[at], buf[first+at] = cost, i
		if n == k {
			most = costs[k-1]
		}
	}
	return buf
}

// better is the ratio of scores from which the other one of two servers is chosen. Without it all
// clients would choose the one that is a little faster.
const better = 2

// Choose returns the server to read from, of those with a run: one by chance, or another one that
// is much better. Servers of the client's zone come first. A lower score is better.
func (v *View) Choose(order []int, random *rand.Rand, score func(server int) float64) int {
	if len(order) == 1 {
		return order[0]
	}
	var buf [MaxReplicas]int
	local := buf[:0]
	for _, s := range order {
		if v.all[s].local {
			local = append(local, s)
		}
	}
	from := order
	if len(local) > 1 {
		from = local
	}
	i := random.IntN(len(from))
	a, b := from[i], from[(i+1+random.IntN(len(from)-1))%len(from)]
	if len(local) == 1 {
		if b == local[0] {
			b = a
		}
		a = local[0]
	}
	if score(a) > better*score(b) {
		return b
	}
	return a
}

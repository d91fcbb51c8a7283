package placement_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/internal/rendezvous"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const runs = 20000

var start = time.Unix(1_000_000, 0)

// anchor returns the anchor of run i.
func anchor(i int) []byte {
	b := make([]byte, 32)
	r := rand.New(rand.NewPCG(uint64(i), 7))
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], r.Uint64())
	}
	return b
}

func servers(weights ...int) (list []placement.Server) {
	for i, w := range weights {
		list = append(list, placement.Server{Name: fmt.Sprintf("host-%d:9000", i), Weight: w})
	}
	return list
}

func view(list []placement.Server) *placement.View {
	return placement.NewView(list, placement.Options{}, start)
}

// homes returns the names of the homes of all runs.
func homes(v *placement.View, list []placement.Server) []string {
	names := make([]string, runs)
	for i := range names {
		names[i] = list[v.Home(anchor(i))].Name
	}
	return names
}

// TestOrderIsThatOfTheCosts compares with a sort of all costs.
func TestOrderIsThatOfTheCosts(t *testing.T) {
	list := servers(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 1, 65536, 3)
	v := view(list)
	for run := range 500 {
		a := anchor(run)
		all := make([]int, len(list))
		for i := range all {
			all[i] = i
		}
		cost := func(i int) float64 {
			return rendezvous.Cost(a, rendezvous.Seed(list[i].Name), float64(list[i].Weight))
		}
		slices.SortFunc(all, func(x, y int) int {
			if cost(x) < cost(y) {
				return -1
			}
			return 1
		})
		for k := range 20 {
			want := all[:min(max(k, 1), placement.MaxReplicas)]
			if got := v.Order(a, k, []int{77})[1:]; !slices.Equal(got, want) {
				t.Fatalf("run %d: the first %d servers are %v, want %v", run, k, got, want)
			}
		}
		if v.Home(a) != all[0] {
			t.Fatalf("run %d: home %d, want %d", run, v.Home(a), all[0])
		}
	}
}

func TestHomesFollowWeights(t *testing.T) {
	for _, weights := range [][]int{{1}, {1, 1, 1, 1}, {1, 2, 5}, {7, 7, 7, 7, 7, 7, 7, 7}, {1, 1 << 16}} {
		list, total := servers(weights...), 0
		count := make(map[string]int)
		for _, name := range homes(view(list), list) {
			count[name]++
		}
		for _, w := range weights {
			total += w
		}
		for i, w := range weights {
			share := float64(w) / float64(total)
			want, got := share*runs, float64(count[list[i].Name])
			if sigma := math.Sqrt(want * (1 - share)); math.Abs(got-want) > 5*sigma+1 {
				t.Errorf("weights %v: server %d has %.0f of %d runs, want %.0f", weights, i, got, runs, want)
			}
		}
	}
}

// TestMovesOnlyWhatMustMove adds, removes and changes servers.
func TestMovesOnlyWhatMustMove(t *testing.T) {
	list := servers(1, 2, 3, 4)
	before := homes(view(list), list)
	removed := append(servers(1, 2), list[3])
	for i, name := range homes(view(removed), removed) {
		if before[i] != list[2].Name && name != before[i] {
			t.Fatalf("run %d moved from %s to %s, but %s was removed", i, before[i], name, list[2].Name)
		}
	}
	for what, c := range map[string]struct {
		after []placement.Server
		ideal float64
	}{
		"host-4:9000": {servers(1, 2, 3, 4, 5), 5.0 / 15}, "host-1:9000": {servers(1, 6, 3, 4), 6.0/14 - 2.0/10},
	} {
		moved := 0
		for i, name := range homes(view(c.after), c.after) {
			if name == before[i] {
				continue
			}
			if moved++; name != what {
				t.Fatalf("run %d moved from %s to %s, want only moves to %s", i, before[i], name, what)
			}
		}
		if got := float64(moved) / runs; math.Abs(got-c.ideal) > 0.2*c.ideal {
			t.Errorf("%.3f of the runs moved to %s, want %.3f", got, what, c.ideal)
		}
	}
	other := slices.Clone(list)
	slices.Reverse(other)
	if !slices.Equal(homes(view(other), other), before) {
		t.Error("the homes depend on the order of the list")
	}
}

// TestGoldenHomes has the homes of the format: it never changes, because servers keep their blocks.
func TestGoldenHomes(t *testing.T) {
	list, got := servers(1, 2, 3, 1), ""
	v := view(list)
	for i := range 40 {
		for _, s := range v.Order(anchor(i), 2, nil) {
			got += fmt.Sprint(s)
		}
	}
	const want = "13121001130231021221120202231013212331022321321310013121122121233221300223322123"
	if got != want {
		t.Errorf("servers %s, want %s", got, want)
	}
}

// TestWeightOfAServerThatJoinsGrows follows the share of the new server through the ramp.
func TestWeightOfAServerThatJoinsGrows(t *testing.T) {
	const ramp = 160 * time.Second
	list := servers(1, 1, 1, 1)
	list[3].Joined = start
	o := placement.Options{Ramp: ramp}
	old := homes(view(list[:3]), list)
	last, now := 0, start
	for step := 1; step <= placement.RampSteps; step++ {
		v := placement.NewView(list, o, now)
		count := 0
		for i, name := range homes(v, list) {
			if name != list[3].Name {
				if name != old[i] {
					t.Fatalf("step %d: run %d moved from %s to %s", step, i, old[i], name)
				}
				continue
			}
			count++
			a := anchor(i)
			if p := v.Previous(a, 3); p == placement.None || list[p].Name != old[i] {
				t.Fatalf("step %d: previous home %d of run %d, want %s", step, p, i, old[i])
			}
		}
		f := float64(step) / placement.RampSteps
		if want := runs * f / (3 + f); math.Abs(float64(count)-want) > 0.05*want+100 || count < last {
			t.Errorf("step %d: %d runs, want about %.0f, and at least %d", step, count, want, last)
		}
		last = count
		if want := start.Add(time.Duration(step) * ramp / placement.RampSteps); !v.Next().Equal(want) {
			t.Fatalf("step %d: the next view is due %v after the join, want %v", step, v.Next().Sub(start), want.Sub(start))
		}
		if e := placement.NewView(list, o, v.Next().Add(-1)); !slices.Equal(homes(e, list), homes(v, list)) {
			t.Errorf("step %d: homes change before the next view is due", step)
		}
		now = v.Next()
	}
	if v := placement.NewView(list, o, start.Add(2*ramp)); !v.Next().IsZero() || v.Previous(anchor(1), v.Home(anchor(1))) != placement.None {
		t.Error("the view changes after the ramp")
	}
}

func TestServersThatDrain(t *testing.T) {
	list := servers(1, 1, 1)
	before := homes(view(list), list)
	list[1].Draining = true
	v := view(list)
	for i, name := range homes(v, list) {
		p := v.Previous(anchor(i), v.Home(anchor(i)))
		switch {
		case name == list[1].Name:
			t.Fatalf("run %d is at a server that drains", i)
		case before[i] == list[1].Name && p != 1:
			t.Fatalf("run %d has the previous home %d, want 1", i, p)
		case before[i] != list[1].Name && (name != before[i] || p != placement.None):
			t.Fatalf("run %d of %s is at %s, previous %d", i, before[i], name, p)
		}
	}
	for i := range list {
		list[i].Draining = true
	}
	if !slices.Equal(homes(view(list), list), before) {
		t.Error("if all servers drain, they are not used like others")
	}
}

func TestChoose(t *testing.T) {
	list := servers(1, 1, 1, 1, 1, 1)
	for i := range list {
		list[i].Zone = fmt.Sprint(i % 3)
	}
	load := []float64{9, 1, 4, 7, 1, 9}
	score := func(s int) float64 { return load[s] }
	for _, c := range []struct {
		name, zone string
		order      []int
		never      []int
		most       int // the server that is chosen most
	}{
		{"home only", "1", []int{0}, nil, 0},
		{"better of two", "", []int{0, 1, 2}, nil, 1},
		{"local servers", "2", []int{0, 1, 2, 5}, []int{0, 1}, 2},
		{"local server that is a little slower", "0", []int{2, 3}, []int{2}, 3},
		{"local server that is much slower", "0", []int{0, 1, 2}, []int{0}, 1},
	} {
		v := placement.NewView(list, placement.Options{Zone: c.zone}, start)
		random, count := rand.New(rand.NewPCG(1, 2)), make([]int, len(list))
		for range 1000 {
			count[v.Choose(c.order, random, score)]++
		}
		if slices.Max(count) != count[c.most] {
			t.Errorf("%s: chosen %v, want %d most", c.name, count, c.most)
		}
		for _, s := range c.never {
			if count[s] > 0 {
				t.Errorf("%s: server %d is chosen %d times", c.name, s, count[s])
			}
		}
	}
}

func TestMarks(t *testing.T) {
	m := placement.NewMarks(8, 10*time.Second)
	now := start
	m.Set(1, 4, now)
	m.Set(1, 2, now)
	m.Set(2, 99, now)
	for run, want := range map[uint32]int{1: 4, 2: placement.MaxReplicas, 3: 1} {
		if got := m.Replicas(run, now); got != want {
			t.Errorf("run %d has %d replicas, want %d", run, got, want)
		}
	}
	m.Set(2, 2, now.Add(6*time.Second)) // renewed, with fewer
	if got := m.Replicas(1, now.Add(4*time.Second)); got != 4 {
		t.Errorf("a mark of 4 s is %d, want 4", got)
	}
	if got := m.Replicas(1, now.Add(12*time.Second)); got != 1 {
		t.Errorf("a mark of 12 s is %d, want 1", got)
	}
	if got := m.Replicas(2, now.Add(12*time.Second)); got != 2 {
		t.Errorf("a renewed mark is %d, want 2", got)
	}
	for run := range uint32(1000) {
		m.Set(run, 2, now.Add(13*time.Second))
	}
	known := 0
	for run := range uint32(1000) {
		if m.Replicas(run, now.Add(13*time.Second)) > 1 {
			known++
		}
	}
	if known > 8 || known < 4 {
		t.Errorf("%d marks are kept, want 4 to 8", known)
	}
}

func BenchmarkHome(b *testing.B) {
	list := servers(make([]int, 1000)...)
	for i := range list {
		list[i].Weight = 1
	}
	v := view(list)
	a := anchor(1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		binary.LittleEndian.PutUint32(a, uint32(i))
		v.Home(a)
	}
}

func TestLoad(t *testing.T) {
	var a, b placement.Load
	now := start
	a.Begin()
	a.Begin()
	if a.Score(now) != 3*b.Score(now) {
		t.Errorf("scores %v with two requests and %v with none", a.Score(now), b.Score(now))
	}
	a.End(0, now)
	a.End(80*time.Millisecond, now)
	b.Begin()
	b.End(10*time.Millisecond, now)
	if a.Score(now) < 7*b.Score(now) {
		t.Errorf("scores %v after 80 ms, %v after 10 ms", a.Score(now), b.Score(now))
	}
	now = now.Add(2 * time.Second)
	if a.Score(now) != b.Score(now) || a.Score(now) > 1 {
		t.Errorf("scores %v and %v, idle for two seconds", a.Score(now), b.Score(now))
	}
	a.Begin()
	a.End(time.Millisecond, now)
	if got := time.Duration(a.Score(now)); got > 2*time.Millisecond {
		t.Errorf("score of %v after a request of 1 ms, idle before", got)
	}
}

package scalesim

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/hotrun"
	"github.com/kvlane/kvlane/internal/placement"
)

// none is no server, in holders and homes.
const none = 1<<16 - 1

// node is a server of the simulation.
type node struct {
	up       bool
	at       int // in the directory
	factor   int // of the time of its requests
	busy     time.Duration
	requests int64
	counter  *hotrun.Counter
}

// pool is all servers with their runs, and the directory of the servers.
type pool struct {
	c       Config
	nodes   []*node
	listed  []placement.Server // the directory
	index   []int              // in nodes, of each listed server
	views   []*placement.View  // of each zone
	homes   []uint16           // by run, of version; indices in nodes
	version []uint8
	current uint8

	// holders are the servers that have a run: two for each run, and more for hot runs. A server's
	// own index is thus the only truth: a lost server has no runs.
	holders [][2]uint16
	more    map[uint32][]uint16
	lost    []bool // runs that only lost servers had
}

// epoch is the time of the simulation's start for the packages that want a time.
var epoch = time.Unix(1<<30, 0)

func newPool(c Config) *pool {
	p := &pool{c: c, homes: make([]uint16, c.Runs), version: make([]uint8, c.Runs), holders: make([][2]uint16, c.Runs), more: make(map[uint32][]uint16), lost: make([]bool, c.Runs)}
	for range c.Servers {
		p.join(time.Time{})
	}
	p.refresh(0)
	for run := range p.holders {
		p.holders[run] = [2]uint16{none, none}
	}
	p.place(func(run uint32, home uint16) { p.holders[run][0] = home })
	return p
}

// join adds a server to the directory.
func (p *pool) join(joined time.Time) {
	i := len(p.nodes)
	p.nodes = append(p.nodes, &node{up: true, factor: 1, counter: hotrun.New(p.c.HotRate)})
	p.list(i, joined)
}

func (p *pool) list(i int, joined time.Time) {
	p.listed = append(p.listed, placement.Server{
		Name: fmt.Sprintf("server-%04d:7000", i), Zone: fmt.Sprint(i % p.c.Zones), Weight: 1, Joined: joined,
	})
	p.index = append(p.index, i)
}

// remove removes a server from the directory.
func (p *pool) remove(i int) {
	for at, n := range p.index {
		if n == i {
			p.listed = append(p.listed[:at:at], p.listed[at+1:]...)
			p.index = append(p.index[:at:at], p.index[at+1:]...)
			return
		}
	}
}

// lose stops a server and loses its runs.
func (p *pool) lose(lost ...int) {
	gone := make(map[uint16]bool)
	for _, i := range lost {
		p.nodes[i].up = false
		gone[uint16(i)] = true
	}
	for run := range p.holders {
		for at, s := range p.holders[run] {
			if gone[s] {
				p.holders[run][at] = none
			}
		}
	}
	defer func() {
		for run := range p.holders {
			h := p.holders[run]
			p.lost[run] = p.lost[run] || h[0] == none && h[1] == none && len(p.more[uint32(run)]) == 0
		}
	}()
	for run, list := range p.more {
		kept := list[:0]
		for _, s := range list {
			if !gone[s] {
				kept = append(kept, s)
			}
		}
		p.more[run] = kept
	}
}

// refresh makes the view of a time.
func (p *pool) refresh(now time.Duration) {
	p.views = p.views[:0]
	for zone := range p.c.Zones {
		p.views = append(p.views, placement.NewView(p.listed, placement.Options{Ramp: rampTime, Zone: fmt.Sprint(zone)}, epoch.Add(now)))
	}
	for at, i := range p.index {
		p.nodes[i].at = at
	}
	if p.current++; p.current == 0 {
		clear(p.version)
		p.current = 1
	}
}

// expire makes another view if time alone has changed it.
func (p *pool) expire(now time.Duration) {
	if next := p.views[0].Next(); !next.IsZero() && !epoch.Add(now).Before(next) {
		p.refresh(now)
	}
}

// place calls f with the home of each run, in the order of the runs.
func (p *pool) place(f func(run uint32, home uint16)) {
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for run := len(p.homes) * w / workers; run < len(p.homes)*(w+1)/workers; run++ {
				p.home(uint32(run))
			}
		})
	}
	wg.Wait()
	for run := range p.homes {
		f(uint32(run), p.homes[run])
	}
}

// home returns the home of a run.
func (p *pool) home(run uint32) int {
	if p.version[run] != p.current {
		a := anchor(p.c.Seed, run)
		p.homes[run], p.version[run] = uint16(p.index[p.views[0].Home(a[:])]), p.current
	}
	return int(p.homes[run])
}

// choose returns the server of the run's first k that a client reads from, and the second one.
func (p *pool) choose(run uint32, k, zone int, random *rand.Rand, score func(node int) float64) (chosen, second int) {
	var buf [placement.MaxReplicas]int
	a := anchor(p.c.Seed, run)
	order := p.views[zone].Order(a[:], max(k, 2), buf[:0])
	if len(order) > 1 {
		second = p.index[order[1]]
	}
	if k == 1 {
		return p.index[order[0]], second
	}
	return p.index[p.views[zone].Choose(order, random, func(at int) float64 { return score(p.index[at]) })], second
}

// previous returns the previous home of a run, or placement.None.
func (p *pool) previous(run uint32) int {
	a := anchor(p.c.Seed, run)
	if prev := p.views[0].Previous(a[:], p.nodes[p.home(run)].at); prev != placement.None {
		return p.index[prev]
	}
	return placement.None
}

// has reports whether a server has a run.
func (p *pool) has(i int, run uint32) bool {
	if h := p.holders[run]; h[0] == uint16(i) || h[1] == uint16(i) {
		return true
	}
	for _, s := range p.more[run] {
		if s == uint16(i) {
			return true
		}
	}
	return false
}

// store stores a run at a server.
func (p *pool) store(i int, run uint32) {
	if !p.nodes[i].up || p.has(i, run) {
		return
	}
	for at := range p.holders[run] {
		if p.holders[run][at] == none {
			p.holders[run][at] = uint16(i)
			return
		}
	}
	p.more[run] = append(p.more[run], uint16(i))
}

// bytes returns the bytes at each server.
func (p *pool) bytes() (blocks int64, all []int64) {
	all = make([]int64, len(p.nodes))
	add := func(s uint16, n int64) {
		if s != none {
			all[s] += n
		}
	}
	for run := range p.holders {
		b, n := sizeOf(p.c.Seed, uint32(run))
		blocks += b
		add(p.holders[run][0], n)
		add(p.holders[run][1], n)
		for _, s := range p.more[uint32(run)] {
			add(s, n)
		}
	}
	return blocks, all
}

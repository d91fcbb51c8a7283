package breaker

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// LatencyOptions are the options of Latencies. Zero values are the defaults.
type LatencyOptions struct {
	// Factor is the ratio to the median of the peers from which a peer is slow. Default 8.
	Factor float64
	// Least is the latency below which no peer is slow. Default 50 ms.
	Least time.Duration
}

const (
	leastSamples = 8       // of a peer that is compared
	leastPeers   = 3       // with as many samples
	decay        = 1.0 / 8 // part of a sample in the mean
)

// Latencies compares the latencies of peers that do the same work. A peer is slow if its mean is
// far above the median of all peers.
type Latencies struct {
	o LatencyOptions

	mu      sync.Mutex
	peers   []*Latency
	samples int           // since limit was computed
	limit   time.Duration // zero: not known
}

// NewLatencies returns latencies of no peers. It returns ErrInvalid for negative options.
func NewLatencies(o LatencyOptions) (*Latencies, error) {
	if o.Factor < 0 || o.Least < 0 {
		return nil, fmt.Errorf("compare latencies by %+v: negative options: %w", o, errdefs.ErrInvalid)
	}
	o.Factor, o.Least = cmp.Or(o.Factor, 8), cmp.Or(o.Least, 50*time.Millisecond)
	return &Latencies{o: o}, nil
}

// Latency is the latency of a peer. Its methods are safe for concurrent use.
type Latency struct {
	of *Latencies

	// The mutex of Latencies guards these.
	mean    float64 // nanoseconds
	samples int
	slow    bool // the next sample alone decides
}

// SlowError is the error of a slow peer. It wraps ErrBusy.
type SlowError struct{ Latency, Limit time.Duration }

// Error returns the latencies.
func (e *SlowError) Error() string {
	return fmt.Sprintf("latency of %v, the limit by other peers is %v", e.Latency.Round(time.Microsecond), e.Limit.Round(time.Microsecond))
}

// Unwrap returns ErrBusy.
func (e *SlowError) Unwrap() error { return errdefs.ErrBusy }

// Add adds a peer.
func (l *Latencies) Add() *Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &Latency{of: l}
	l.peers = append(l.peers, p)
	return p
}

// Remove removes a peer from the comparison.
func (l *Latencies) Remove(p *Latency) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers = slices.DeleteFunc(l.peers, func(o *Latency) bool { return o == p })
}

// Observe records the latency of a call that succeeded. It returns a *SlowError if the peer is
// slow; the caller then passes it to Permit.Open. The sample after such an error decides by itself,
// since it is that of a probe.
func (p *Latency) Observe(d time.Duration) error {
	l := p.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.samples++; p.samples <= 1 {
		p.mean = float64(d)
	}
	sample := float64(d)
	if l.limit > 0 { // one late answer does not make a peer slow
		sample = min(sample, 2*float64(l.limit))
	}
	p.mean += decay * (sample - p.mean)
	if l.samples++; l.samples > max(64, len(l.peers)/4) {
		l.update()
	}
	mean := time.Duration(p.mean)
	if p.slow {
		mean = d
	} else if p.samples < leastSamples {
		return nil
	}
	if l.limit == 0 || mean <= l.limit {
		if p.slow {
			p.slow, p.samples, p.mean = false, 1, float64(d)
		}
		return nil
	}
	p.slow = true
	return &SlowError{mean, l.limit}
}

// update computes the limit. The caller holds mu.
func (l *Latencies) update() {
	l.samples = 0
	means := make([]float64, 0, len(l.peers))
	for _, p := range l.peers {
		if p.samples >= leastSamples {
			means = append(means, p.mean)
		}
	}
	if l.limit = 0; len(means) < leastPeers {
		return
	}
	slices.Sort(means)
	l.limit = max(time.Duration(l.o.Factor*means[len(means)/2]), l.o.Least)
}

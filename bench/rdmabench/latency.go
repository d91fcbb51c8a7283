package rdmabench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// latency returns how long each of so many messages takes, one at a time.
func (p *pair) latency(ctx context.Context, op Op, size int64, iterations int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, iterations)
	if op == Read {
		err := p.repeat(ctx, Read, size, size, iterations, func(d time.Duration) { times = append(times, d) })
		return times, err
	}
	p.near.poll.alarm, p.far.poll.alarm = p.far.failed, p.near.failed
	ping, pong := p.message(&p.near, &p.far, op, size), p.message(&p.far, &p.near, op, size)
	for _, e := range []*end{&p.near, &p.far} {
		if err := e.expect(size); err != nil {
			return nil, err
		}
	}
	for i := range iterations {
		if err := ended(ctx, i); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := p.near.pass(ctx, &p.far, ping); err != nil {
			return nil, err
		}
		if err := p.far.pass(ctx, &p.near, pong); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start)/2)
	}
	return times, nil
}

// message returns the request for one message from one end to the other, which completes a receive there.
func (p *pair) message(from, to *end, op Op, size int64) []rdma.SendWR {
	w := rdma.SendWR{Opcode: rdma.WRSend, SGEs: []rdma.SGE{from.sge(0, size)}}
	if op == Write {
		w.Opcode, w.RKey, w.RemoteAddr = rdma.WRRDMAWriteWithImm, to.info.RKey, to.base
	}
	return []rdma.SendWR{w}
}

// pass posts a message and waits until the other end has received it.
func (e *end) pass(ctx context.Context, to *end, message []rdma.SendWR) error {
	if e.Outstanding() == txDepth {
		if _, err := e.completed(ctx); err != nil {
			return err
		}
	}
	message[0].Flags = 0
	if (e.Posted()+1)%signaled == 0 {
		message[0].Flags = rdma.SendSignaled
	}
	if _, err := e.Post(message); err != nil {
		return err
	}
	wcs, err := to.poll.wait(ctx, to.channel.Receives)
	if err != nil {
		return fmt.Errorf("wait for a message: %w", err)
	}
	return to.expectMore(len(wcs))
}

// failed takes what has completed of the messages of e, and returns how the first of them failed: the other end waits in vain
// for such a one.
func (e *end) failed() error {
	n, err := e.channel.CQ.Poll(e.poll.wcs)
	for i := range e.poll.wcs[:n] {
		if err := e.poll.wcs[i].Err(); err != nil {
			return err
		}
		e.channel.Completed(&e.poll.wcs[i])
	}
	return err
}

// summarize returns what perftest says of latencies. It sorts them.
func summarize(op Op, size int64, times []time.Duration) Latency {
	slices.Sort(times)
	n := len(times)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	at := func(q float64) float64 { return micros(times[min(int(math.Ceil(q*float64(n))), n-1)]) }
	l := Latency{
		Op: op, Bytes: size, Iterations: n,
		MinMicros: micros(times[0]), MaxMicros: micros(times[n-1]), TypicalMicros: micros(times[n/2]), P99Micros: at(0.99), P999Micros: at(0.999),
	}
	for _, t := range times {
		l.MeanMicros += micros(t) / float64(n)
	}
	for _, t := range times {
		d := micros(t) - l.MeanMicros
		l.StdevMicros += d * d / float64(n)
	}
	l.StdevMicros = math.Sqrt(l.StdevMicros)
	return l
}

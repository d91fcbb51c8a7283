package rdmabench

import (
	"context"
	"time"

	"github.com/kvlane/kvlane/rdma"
)

// train is a chain of messages that were posted together, and complete together.
type train struct {
	posted, completed time.Time
	end               int // messages up to its last
}

// bandwidth keeps the queue of the near end full until so many messages have completed.
func (p *pair) bandwidth(ctx context.Context, op Op, size int64, iterations int) ([]train, error) {
	off := int64(0)
	if op == Read {
		off = size
	}
	wrs := make([]rdma.SendWR, postList)
	for i := range wrs {
		wrs[i] = p.request(op, off, size)
	}
	credit := 0 // receives that are posted and not spoken for
	if op == Send {
		if err := p.far.expect(size); err != nil {
			return nil, err
		}
		credit = rxDepth
	}
	trains := make([]train, 0, iterations/postList+1)
	posted := 0 // messages
	for done := 0; done < len(trains) || posted < iterations; {
		if err := ended(ctx, 0); err != nil {
			return nil, err
		}
		for posted < iterations {
			n := min(postList, iterations-posted)
			if int(p.near.Outstanding())+n > txDepth || op == Send && n > credit {
				break
			}
			chain := wrs[:n]
			chain[n-1].Flags = rdma.SendSignaled // the last chain may be a shorter one
			trains = append(trains, train{posted: time.Now(), end: posted + n})
			if _, err := p.near.Post(chain); err != nil {
				return nil, err
			}
			posted += n
			credit -= n
		}
		wcs, err := p.near.completed(ctx)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for range wcs {
			trains[done].completed = now
			done++
		}
		if op == Send {
			n, err := p.far.received()
			if err != nil {
				return nil, err
			}
			credit += n
		}
	}
	return trains, nil
}

// received posts a receive in place of each that has completed, and returns how many those are.
func (e *end) received() (total int, err error) {
	for {
		n, err := e.channel.Receives.Poll(e.poll.wcs)
		if err != nil || n == 0 {
			return total, err
		}
		for i := range e.poll.wcs[:n] {
			if err := e.poll.wcs[i].Err(); err != nil {
				return total, err
			}
		}
		if err := e.expectMore(n); err != nil {
			return total, err
		}
		total += n
	}
}

// peakWindow is over how many chains at most the peak is looked for.
const peakWindow = 256

// rates returns the bandwidth in MiB/s, at its peak and on the average, and millions of messages a second. The peak is the
// highest of all runs of neighbouring chains, from posting the first to the completion of the last.
func rates(trains []train, size int64) (peak, average, mpps float64) {
	over := func(i, j int) float64 {
		first := 0
		if i > 0 {
			first = trains[i-1].end
		}
		return float64(trains[j].end-first) / max(trains[j].completed.Sub(trains[i].posted), 1).Seconds()
	}
	last := len(trains) - 1
	average = over(0, last)
	peak = average
	for i := range trains {
		for j := i; j < min(i+peakWindow, len(trains)); j++ {
			peak = max(peak, over(i, j))
		}
	}
	mib := float64(size) / (1 << 20)
	return peak * mib, average * mib, average / 1e6
}

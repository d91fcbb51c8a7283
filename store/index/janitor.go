package index

import (
	"time"

	"github.com/jonboulle/clockwork"
)

func newJanitor(clock clockwork.Clock) *janitor {
	j := &janitor{
		clock: clock,
		wake:  make(chan struct{}, 1),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
		live:  make(map[*Lease]struct{}),
	}
	go j.run()
	return j
}

// add schedules the end of l at its deadline. It returns false if the janitor is closed.
func (j *janitor) add(l *Lease) bool {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return false
	}
	j.live[l] = struct{}{}
	first := l.deadline.Before(j.next)
	j.mu.Unlock()
	if first {
		j.wakeUp()
	}
	return true
}

func (j *janitor) remove(l *Lease) {
	j.mu.Lock()
	delete(j.live, l)
	j.mu.Unlock()
}

func (j *janitor) wakeUp() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *janitor) counts() (live int, expired int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.live), j.expired
}

func (j *janitor) run() {
	defer close(j.done)
	timer := j.clock.NewTimer(idle)
	defer timer.Stop()
	for {
		due, wait := j.due()
		for _, l := range due {
			if l.finish(false) {
				j.mu.Lock()
				j.expired++
				j.mu.Unlock()
			}
		}
		timer.Reset(wait)
		select {
		case <-timer.Chan():
		case <-j.wake:
		case <-j.quit:
			return
		}
	}
}

// idle is the longest sleep of the janitor.
const idle = time.Hour

// due removes and returns the leases whose deadline has passed, and the time until the next
// deadline. It visits all leases: there is about one per running request, and due runs once per
// deadline.
func (j *janitor) due() ([]*Lease, time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.clock.Now()
	j.next = now.Add(idle)
	var due []*Lease
	for l := range j.live {
		if !now.Before(l.deadline) {
			delete(j.live, l)
			due = append(due, l)
		} else if l.deadline.Before(j.next) {
			j.next = l.deadline
		}
	}
	return due, j.next.Sub(now)
}

// close ends every lease and stops the goroutine.
func (j *janitor) close() {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.closed = true
	live := j.live
	j.live = map[*Lease]struct{}{}
	j.mu.Unlock()
	close(j.quit)
	<-j.done
	for l := range live {
		l.finish(false)
	}
}

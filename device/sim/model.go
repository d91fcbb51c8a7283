package sim

import (
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/mem"
)

// direction is the part of the link that a transfer occupies.
type direction uint8

const (
	toDevice direction = iota
	toHost
	inside // device to device: does not use the link
	directions
)

func directionOf(dst, src mem.Kind) direction {
	switch {
	case dst == mem.KindHostPinned:
		return toHost
	case src == mem.KindHostPinned:
		return toDevice
	default:
		return inside
	}
}

// traffic counts the bytes that one operation has moved, by direction.
type traffic [directions]int64

// Traffic counts the bytes that a device has copied, by engines and kernels. It does not include
// files: see StorageFigures.
type Traffic struct {
	ToDevice, ToHost int64 // from and to host memory
	Inside           int64 // within device memory
}

// Traffic returns the bytes that were copied since the device was opened. It is safe for concurrent
// use.
func (d *Device) Traffic() Traffic {
	t := &d.traffic
	return Traffic{ToDevice: t[toDevice].Load(), ToHost: t[toHost].Load(), Inside: t[inside].Load()}
}

// link models the link to the host, which all queues of a device share. Each of its two directions
// is used by one operation at a time. It computes in model time, so that a sleep that takes too
// long does not delay later operations.
type link struct {
	clock     clockwork.Clock
	latency   time.Duration
	nsPerByte float64

	mu   sync.Mutex
	free [directions]time.Time
}

// on reports whether latency or bandwidth is modelled.
func (l *link) on() bool { return l.latency > 0 || l.nsPerByte > 0 }

func (l *link) now() time.Time {
	if !l.on() {
		return time.Time{}
	}
	return l.clock.Now()
}

// reserve reserves direction dir for cost, from ready on or as soon as it is free. It returns the
// end of the reserved time.
func (l *link) reserve(ready time.Time, dir direction, cost time.Duration) time.Time {
	if dir == inside {
		return ready.Add(cost)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free[dir].After(ready) {
		ready = l.free[dir]
	}
	l.free[dir] = ready.Add(cost)
	return l.free[dir]
}

// move reserves the link for t and returns the time at which the last byte arrives.
func (l *link) move(ready time.Time, t *traffic) time.Time {
	end := ready
	for dir := range inside {
		if t[dir] > 0 && l.nsPerByte > 0 {
			if e := l.reserve(ready, dir, time.Duration(float64(t[dir])*l.nsPerByte)); e.After(end) {
				end = e
			}
		}
	}
	return end
}

// sleep waits until the clock has advanced by wait, or the device is closed. It returns false if
// the device was closed.
func (d *Device) sleep(wait time.Duration) bool {
	if wait <= 0 {
		return true
	}
	t := d.o.Clock.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.Chan():
		return true
	case <-d.dead:
		return false
	}
}

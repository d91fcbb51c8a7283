package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// resident is device.KernelResident. It does not run as the others do, to its end under space.mu, but step by step.
var resident = kernel.Kernel{
	Name: device.KernelResident, NArgs: 5, Run: func(*kernel.Machine, *kernel.Args) error { return nil },
	Pieces: func(*kernel.Machine, *kernel.Args) uint64 { return 0 },
}

// stay is a resident kernel that runs.
type stay struct {
	generation uint64
	idle       time.Duration
	leaseEnd   time.Time
	workers    []resider
	ended      chan struct{} // closed when the kernel has ended
}

// resider is one of its workers.
type resider struct {
	control mem.DevAddr // of the control block
	ring    mem.DevAddr
	depth   uint64
	next    uint64
	since   time.Time // when it became idle
	left    bool
	// fault is what entry seq suffers, if it is hit; served: what holds it up is over. While seq is next, that entry was
	// taken and is not done.
	fault  fault.Fault
	hit    bool
	served bool
	seq    uint64
}

const callResident = device.KernelResident

// reside runs a resident kernel. Where operations run one at a time it does one round over the workers and comes again;
// else it stays, looking less and less often while nothing happens: the host writes entries without telling anybody.
func (q *Queue) reside(o *op) error {
	if o.hit && o.fault.Action == fault.Partial {
		return errInjected(o.name(), &o.fault)
	}
	if o.stay == nil {
		s, err := q.settle(o)
		if err != nil {
			return err
		}
		o.stay = s
		q.dev.began(s)
	}
	t := time.NewTimer(pollFirst)
	defer t.Stop()
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		worked, err := q.round(o.stay)
		switch {
		case err != nil || o.stay.over():
			q.dev.ended(o.stay)
			return err
		case q.dev.sched != nil:
			q.again(o)
			return nil
		case worked:
			pause = pollFirst
			continue
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-q.dev.dead:
			q.dev.ended(o.stay)
			return errClosed("simCtxDestroy")
		}
	}
}

// began notes that a resident kernel runs.
func (d *Device) began(s *stay) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stays = append(d.stays, s)
}

// ended notes that it does not any more.
func (d *Device) ended(s *stay) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stays = slices.DeleteFunc(d.stays, func(o *stay) bool { return o == s })
	close(s.ended)
}

// outstay waits until the resident kernels that run now have ended. Where operations run one at a time it does not: who
// has them run may be who waits.
func (d *Device) outstay() {
	if d.sched != nil {
		return
	}
	d.mu.Lock()
	running := slices.Clone(d.stays)
	d.mu.Unlock()
	for _, s := range running {
		<-s.ended
	}
}

// again puts o back to the head of the queue that it was just taken from.
func (q *Queue) again(o *op) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == 0 { // the list has been moved down since
		q.ops = slices.Insert(q.ops, 0, op{})
		q.head = 1
	}
	q.head--
	q.ops[q.head] = *o
}

func (s *stay) over() bool {
	for i := range s.workers {
		if !s.workers[i].left {
			return false
		}
	}
	return true
}

// settle starts the workers of o.
func (q *Queue) settle(o *op) (*stay, error) {
	q.dev.space.mu.RLock()
	defer q.dev.space.mu.RUnlock()
	now := q.dev.o.Clock.Now()
	a := device.ResidentArgsOf(&o.args)
	s := &stay{generation: a.Generation, idle: time.Duration(a.Idle), leaseEnd: now.Add(time.Duration(a.Lease)), ended: make(chan struct{})}
	for w := range uint64(o.ctas) {
		r := resider{control: a.Control + mem.DevAddr(w*a.Stride), since: now}
		b, err := q.exec.machine.View(callResident, r.control, device.ResidentControlBytes)
		if err != nil {
			return nil, fmt.Errorf("control block %d: %w", w, err)
		}
		r.next = hostmem.LoadUint64(b[device.ResidentNext:])
		r.ring = mem.DevAddr(hostmem.LoadUint64(b[device.ResidentRing:]))
		r.depth = hostmem.LoadUint64(b[device.ResidentDepth:])
		if r.control%device.ResidentLine != 0 || r.ring%device.ResidentLine != 0 || r.depth == 0 || r.depth&(r.depth-1) != 0 || s.generation == 0 {
			return nil, fmt.Errorf("control block %d: %w", w, errInvalidValue(callResident,
				fmt.Sprintf("control=%#x, ring=%#x, depth=%d, generation=%d", r.control, r.ring, r.depth, s.generation), ""))
		}
		s.workers = append(s.workers, r)
	}
	return s, nil
}

// round lets every worker look once.
func (q *Queue) round(s *stay) (worked bool, err error) {
	for i := range s.workers {
		r := &s.workers[i]
		if r.left {
			continue
		}
		if r.heldUp() && q.dev.sched == nil {
			if err := q.waitOut(r); err != nil {
				return worked, err
			}
		}
		var t traffic
		did, err := q.look(s, r, &t)
		if err != nil {
			return worked, fmt.Errorf("worker %d, entry %d: %w", i, r.next, err)
		}
		worked = worked || did
		if did && q.dev.link.on() {
			now := q.dev.link.now()
			if now.After(q.exec.at) {
				q.exec.at = now
			}
			q.exec.at = q.dev.link.move(q.exec.at, &t)
			if err := q.until(q.exec.at); err != nil {
				return worked, err
			}
		}
	}
	return worked, nil
}

// look takes r's next entry if it is there, and has r leave if it must.
func (q *Queue) look(s *stay, r *resider, t *traffic) (did bool, err error) {
	x := &q.exec
	x.hold()
	defer x.release()
	x.traffic = t
	control, err := x.machine.View(callResident, r.control, device.ResidentControlBytes)
	if err != nil {
		return false, err
	}
	now := q.dev.o.Clock.Now()
	leaves := r.seq != r.next && !now.Before(s.leaseEnd)
	if !leaves {
		w, here, err := q.entry(r)
		if err != nil {
			return false, err
		}
		if here {
			if err := q.strikeEntry(r, w); err != nil {
				return false, err
			}
		}
		switch {
		case !here:
			leaves = now.Sub(r.since) >= s.idle
		case !r.heldUp():
			did = true
			o, known := entryWork(w)
			o.fault, o.hit = r.fault, r.hit
			if err := x.carryOut(&o); err != nil {
				return false, err
			}
			leaves = !known || w[1] == device.ResidentStop
			if known {
				hostmem.StoreUint64(control[device.ResidentDone:], r.next)
				r.next++
				r.since = now
			}
		}
	}
	if leaves {
		r.left = true
		hostmem.StoreUint64(control[device.ResidentExited:], s.generation)
	}
	return did, nil
}

// stirs reports whether a resident kernel would do anything if it looked now.
func (q *Queue) stirs(s *stay) bool {
	q.dev.space.mu.RLock()
	defer q.dev.space.mu.RUnlock()
	now := q.dev.o.Clock.Now()
	for i := range s.workers {
		r := &s.workers[i]
		if r.left || r.heldUp() {
			continue
		}
		if _, here, err := q.entry(r); here || err != nil || now.Sub(r.since) >= s.idle || !now.Before(s.leaseEnd) {
			return true
		}
	}
	return false
}

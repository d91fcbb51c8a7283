package rail

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
)

// Queue is a queue pair. One goroutine may call Send while another calls Wait. All other methods
// must be called by one goroutine, before the first Send or after the last.
type Queue struct {
	d         *Domain
	nic       int
	c         *channel.Channel
	pair      *channel.Pair
	scratch   rdma.SGE
	completed chan struct{} // has an element after requests have completed
	// wrs is the buffer for one chain of requests. sges has each entries for every request. Only
	// Send uses them.
	wrs  []rdma.SendWR
	sges []rdma.SGE
	each int

	mu   sync.Mutex // guards the channel and the fields below
	jobs []sentJob  // posted jobs, oldest first
	wcs  [64]rdma.WC
}

// sentJob is a job whose requests are all posted.
type sentJob struct {
	job  *Job
	last uint64 // number of the job's last request
}

// Job moves bytes between extents of leased local memory and spans of one buffer of the peer. The
// extents and the spans have the same total length.
type Job struct {
	Write  bool // false: read
	Lease  *Lease
	Local  []mem.Extent
	Key    Key
	Remote []Span
}

// Endpoint returns the data that the peer needs to connect to the queue.
func (q *Queue) Endpoint() Endpoint {
	e := &q.pair.Endpoint
	return Endpoint{QP: e.QPNum, PSN: e.PSN, GID: e.GID[:], LID: e.LID, MTU: uint8(e.MTU), Reads: e.RDepth}
}

// Connect connects the queue to the endpoint of a peer. On error the caller closes the queue.
func (q *Queue) Connect(to Endpoint) error {
	if err := to.Validate(); err != nil {
		return err
	}
	return q.pair.Connect(rdma.Endpoint{
		QPNum: to.QP, PSN: to.PSN, GID: rdma.GID(to.GID), LID: to.LID, MTU: rdma.MTU(to.MTU), RDepth: to.Reads,
	})
}

// Send posts all requests of the job. It blocks while the queue is full, until ctx ends. Jobs
// complete in the order of the Send calls. After an error the caller closes the queue.
func (q *Queue) Send(ctx context.Context, j *Job) error {
	b := builder{q: q, j: j, op: rdma.WRRDMARead, local: j.Local, remote: j.Remote}
	if j.Write {
		b.op = rdma.WRRDMAWrite
	}
	for more := true; more; {
		var wrs []rdma.SendWR
		wrs, more = b.next()
		for {
			ok, err := q.post(wrs, j, !more)
			if err != nil {
				return err
			}
			if ok {
				break
			}
			select {
			case <-q.completed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// post posts all of wrs. It returns false if the queue has too little space.
func (q *Queue) post(wrs []rdma.SendWR, j *Job, last bool) (ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pair.Outstanding()+uint64(len(wrs)) > uint64(q.c.Depth) {
		return false, nil
	}
	if last {
		q.jobs = append(q.jobs, sentJob{j, q.pair.Posted() + uint64(len(wrs)) - 1})
	}
	wrs[len(wrs)-1].Flags |= rdma.SendSignaled
	if _, err = q.pair.Post(wrs); err != nil {
		return false, fmt.Errorf("post requests: %w", err)
	}
	return true, nil
}

// Wait waits for completed requests and returns the number of jobs that completed, which may be 0.
// After an error the caller closes the queue; the returned jobs are complete even then. ErrInvalid
// means that a NIC refused the first incomplete job; the caller may send later jobs again.
func (q *Queue) Wait(ctx context.Context) (jobs int, err error) {
	for {
		some, jobs, err := q.poll()
		if some || err != nil {
			return jobs, err
		}
		if err := q.c.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// poll processes completions and requests an event for later ones.
func (q *Queue) poll() (some bool, jobs int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.c.CQ.RequestNotify(false); err != nil {
		return false, 0, err
	}
	for {
		n, err := q.c.CQ.Poll(q.wcs[:])
		for i := range q.wcs[:n] {
			wc := &q.wcs[i]
			_, seq, over := q.c.Completed(wc)
			switch {
			case over == 0:
				continue
			case wc.Status != rdma.WCSuccess:
				return some, jobs, wc.Err()
			}
			some = true
			for len(q.jobs) > 0 && q.jobs[0].last <= seq {
				if err := q.flushWrites(q.jobs[0].job); err != nil {
					return some, jobs, err
				}
				q.jobs = q.jobs[1:]
				jobs++
			}
		}
		if err != nil || n < len(q.wcs) {
			if some {
				select {
				case q.completed <- struct{}{}:
				default:
				}
			}
			return some, jobs, err
		}
	}
}

// flushWrites makes the job's writes to device memory visible to the devices.
func (q *Queue) flushWrites(j *Job) error {
	if j.Write || q.d.o.Flush == nil {
		return nil
	}
	for r := range j.Lease.by {
		if r.Kind() == mem.KindDevice {
			if err := q.d.o.Flush(r.Device()); err != nil {
				return fmt.Errorf("flush a NIC's writes: %w", err)
			}
		}
	}
	return nil
}

// Close closes the queue pair. If it returns nil, its requests no longer access local memory. They
// may still write bytes to the peer's memory that the peer's NIC has already received. Close
// returns ErrBusy while a transfer is in progress; the caller may retry it.
func (q *Queue) Close() error { return q.c.Close() }

// builder builds the requests of a job.
type builder struct {
	q      *Queue
	j      *Job
	op     rdma.WROpcode
	local  []mem.Extent
	remote []Span
	at, to int64 // bytes already covered of the first local extent and of the first remote span
	done   bool  // all requests but the read after a write are built
}

// next returns the next chain of requests and whether another one follows.
func (b *builder) next() (wrs []rdma.SendWR, more bool) {
	wrs = b.q.wrs[:0]
	for bytes := int64(0); len(wrs) < cap(wrs) && bytes < chainBytes && !b.done; {
		w, n := b.request(b.q.sges[len(wrs)*b.q.each : len(wrs)*b.q.each])
		wrs, bytes = append(wrs, w), bytes+n
	}
	switch {
	case !b.done:
		return wrs, true
	case !b.j.Write:
		return wrs, false
	case len(wrs) == cap(wrs):
		return wrs, true
	}
	end := b.j.Remote[len(b.j.Remote)-1]
	return append(wrs, rdma.SendWR{
		Opcode: rdma.WRRDMARead, RKey: b.j.Key.RKey, RemoteAddr: b.j.Key.Addr + uint64(end.Off+end.Len-1), SGEs: []rdma.SGE{b.q.scratch},
	}), false
}

// request builds the next request and returns its length in bytes. It covers one span of the peer's
// memory, or a part of it if the span has too many local extents.
func (b *builder) request(sges []rdma.SGE) (w rdma.SendWR, bytes int64) {
	span := b.remote[0]
	w = rdma.SendWR{Opcode: b.op, RKey: b.j.Key.RKey, RemoteAddr: b.j.Key.Addr + uint64(span.Off+b.to), SGEs: sges}
	limit := min(span.Len-b.to, requestBytes, b.q.c.MessageBytes)
	for bytes < limit && len(w.SGEs) < b.q.c.MaxSGE(b.op) {
		e := b.local[0]
		n := min(e.Len-b.at, limit-bytes)
		m := b.j.Lease.by[e.Region]
		w.SGEs = append(w.SGEs, rdma.SGE{Addr: m.Addr(e) + uint64(b.at), Length: uint32(n), LKey: m.Info().LKey})
		bytes += n
		if b.at += n; b.at == e.Len {
			b.local, b.at = b.local[1:], 0
		}
	}
	if b.to += bytes; b.to == span.Len {
		b.remote, b.to = b.remote[1:], 0
	}
	b.done = len(b.remote) == 0
	return w, bytes
}

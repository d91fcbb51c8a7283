package server

import (
	"cmp"
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
)

// requestReads is the number of blocks that one request reads from disk at a time.
const requestReads = 8

// work is the part of a request that may wait for the disk. Its goroutine uses result and blocks.
// The connection goes on meanwhile: the result is sent when the work ends, or without it when the
// request's time is over or the request is cancelled.
type work struct {
	result blockio.Result
	blocks []blockhost.Block
	timer  *time.Timer

	// conn.mu guards these.
	ended bool
	last  bool // the request has ended before: the work returns its memory
}

// later carries a request out beside the connection. The caller must not use a any more.
func (c *conn) later(a *answer, f func(ctx context.Context, w *work)) {
	w := &work{result: a.result, blocks: a.blocks}
	deadline := a.deadline
	c.mu.Lock()
	defer c.mu.Unlock()
	a.blocks, a.work = nil, w
	w.timer = time.AfterFunc(time.Until(deadline), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.work == w { // otherwise a is another request
			c.enqueue(a)
		}
	})
	c.works.Go(func() {
		ctx, cancel := context.WithDeadline(c.ctx, deadline)
		defer cancel()
		f(ctx, w)
		c.complete(a, w)
	})
}

// complete ends a work. It releases what the work takes if the request has a result without it.
func (c *conn) complete(a *answer, w *work) {
	w.timer.Stop()
	c.mu.Lock()
	w.ended = true
	if w.last {
		c.unreserve(a)
		c.wake()
	}
	if !a.queued && !c.over {
		a.result, a.blocks, a.work = w.result, w.blocks, nil
		c.enqueue(a)
		c.mu.Unlock()
		return
	}
	queued := a.queued // then the sender ends the request
	c.mu.Unlock()
	for _, b := range w.blocks {
		b.Release()
	}
	if w.result.LeaseID != 0 {
		c.leases.change(w.result.LeaseID, 0)
	}
	if !queued {
		c.finish(a)
	}
}

// enqueue gives a request to the sender, once. The sender has space for all requests in progress.
// The caller holds mu.
func (c *conn) enqueue(a *answer) {
	if !a.queued && !c.over {
		a.queued = true
		c.answers <- a
	}
}

// retrieve pins the blocks of a retrieve, one for each entry. Those on disk are read beside the
// connection: then later is true.
func (c *conn) retrieve(a *answer) (later bool) {
	q := &a.request
	var missing []int
	for i := range q.Entries {
		a.blocks = append(a.blocks, blockhost.Block{})
		s, err := c.space(&q.Entries[i])
		if err == nil {
			a.blocks[i], err = s.Get(q.Entries[i].Key)
		}
		if errors.Is(err, errdefs.ErrNotFound) && c.s.o.Host.Durable() {
			missing = append(missing, i)
		}
		a.result.Entries = append(a.result.Entries, blockio.EntryResult{Status: blockio.StatusOf(err)})
	}
	if len(missing) == 0 {
		return false
	}
	c.later(a, func(ctx context.Context, w *work) {
		var group errgroup.Group
		group.SetLimit(requestReads)
		for _, i := range missing {
			e := &q.Entries[i]
			group.Go(func() error {
				b, err := c.spaces[e.Identity].Read(ctx, e.Key)
				w.blocks[i], w.result.Entries[i].Status = b, diskStatus(err)
				return nil
			})
		}
		_ = group.Wait() // the entries have the errors
	})
	return true
}

// diskStatus returns the status of an error of the disk. Errors of a file are a miss or a failure
// of the server: no client's request is wrong.
func diskStatus(err error) blockio.Status {
	switch s := blockio.StatusOf(err); s {
	case blockio.StatusOK, blockio.StatusNotFound, blockio.StatusBusy, blockio.StatusLeased, blockio.StatusNotSupported, blockio.StatusNoSpace,
		blockio.StatusReadOnly, blockio.StatusCanceled:
		return s
	case blockio.StatusCorrupt:
		return blockio.StatusNotFound // it is set aside
	default:
		return blockio.StatusFailed
	}
}

// look carries out a request about keys, or a flush: at once, or beside the connection if there is
// a disk: then later is true.
func (c *conn) look(a *answer) (later bool) {
	q := &a.request
	f := func(ctx context.Context, w *work) {
		r := &w.result
		switch q.Op {
		case blockio.OpExist:
			c.exist(ctx, q, r)
		case blockio.OpLease:
			if r.LeaseID, r.Leased = c.lease(ctx, q); r.Leased > 0 {
				r.LeaseMillis = c.granted(q)
			}
		case blockio.OpDelete:
			for i := range q.Keys {
				r.Statuses = append(r.Statuses, c.remove(ctx, &q.Keys[i]))
			}
			r.Status = c.s.summary(r.Statuses)
		default:
			r.Status = c.flush(ctx)
		}
	}
	if c.s.o.Host.Durable() {
		c.later(a, f)
		return true
	}
	w := work{result: a.result}
	f(c.ctx, &w)
	a.result = w.result
	return false
}

func (c *conn) exist(ctx context.Context, q *blockio.Request, r *blockio.Result) {
	n := len(q.Keys)
	keys, present, durable := make([]block.Key, n), make([]bool, n), make([]bool, n)
	for i := range q.Keys {
		keys[i] = q.Keys[i].Key
	}
	for i := 0; i < n; {
		first, s := i, c.spaces[q.Keys[i].Identity]
		for ; i < n && c.spaces[q.Keys[i].Identity] == s; i++ {
		}
		if s == nil {
			continue
		}
		if err := s.Find(ctx, keys[first:i], present[first:i], durable[first:i]); err != nil {
			*r = blockio.Result{Status: diskStatus(err), Credits: r.Credits}
			return
		}
	}
	for i := range keys {
		r.Presence = append(r.Presence, blockio.Presence{Present: present[i], Durable: durable[i]})
	}
}

// flush makes the blocks of the connection's identities durable.
func (c *conn) flush(ctx context.Context) blockio.Status {
	if !c.s.o.Host.Durable() {
		return blockio.StatusNotSupported
	}
	var errs []error
	for _, s := range c.spaces {
		errs = append(errs, s.Flush(ctx))
	}
	return diskStatus(errors.Join(errs...))
}

// summary returns the status of a request with these of its entries, and counts failures.
func (s *Server) summary(all []blockio.Status) blockio.Status {
	sum := blockio.StatusOK
	for _, status := range all {
		if s.failed(status) {
			sum = blockio.StatusPartial
		}
	}
	return sum
}

// count counts a request that failed as a whole, or whose time ended.
func (s *Server) count(a *answer) {
	switch a.result.Status {
	case blockio.StatusOK, blockio.StatusPartial, blockio.StatusNotFound, blockio.StatusNotSupported, blockio.StatusCanceled:
	default:
		s.failedEntries.Add(int64(a.entries))
	}
	if a.late || a.result.Status == blockio.StatusTimeout {
		s.timedOut.Add(1)
	}
}

// noteSlow adds a retrieve or store to the journal, if it was slow. err is the error of sending its
// result.
func (s *Server) noteSlow(a *answer, err error) {
	q := &a.request
	if s.o.Journal == nil || q.Op != blockio.OpRetrieve && q.Op != blockio.OpStore {
		return
	}
	took := time.Since(a.arrived)
	if took < s.o.SlowAfter {
		return
	}
	blocks := make(map[block.Key]bool)
	for i := range q.Entries {
		blocks[q.Entries[i].Key] = true
	}
	s.o.Journal.Took(q.Op.String(), len(blocks), took, cmp.Or(err, a.result.Status.Err()))
}

// failed reports whether an entry has failed, and counts it unless it is a miss.
func (s *Server) failed(status blockio.Status) bool {
	if status != blockio.StatusOK && status != blockio.StatusNotFound {
		s.failedEntries.Add(1)
	}
	return status != blockio.StatusOK
}

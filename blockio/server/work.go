package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
)

// requestReads is the number of blocks that one request reads from disk at a time.
const requestReads = 8

// work is the part of a request that may wait for the disk. Its goroutine alone uses result and
// blocks until done is closed. The connection goes on meanwhile.
type work struct {
	result blockio.Result
	blocks []blockhost.Block
	done   chan struct{}
	stop   chan struct{} // closed by the cancellation of the request
}

// later carries a request out beside the connection.
func (c *conn) later(a *answer, f func(ctx context.Context, w *work)) {
	w := &work{result: a.result, blocks: a.blocks, done: make(chan struct{}), stop: make(chan struct{})}
	deadline := a.deadline
	c.mu.Lock()
	a.blocks, a.work = nil, w
	c.mu.Unlock()
	c.works.Go(func() {
		ctx, cancel := context.WithDeadline(c.ctx, deadline)
		defer cancel()
		f(ctx, w)
		close(w.done)
	})
}

// await waits for the work of a request, until its deadline or its cancellation.
func (c *conn) await(a *answer) {
	w := a.work // only await changes it
	timer := time.NewTimer(time.Until(a.deadline))
	defer timer.Stop()
	select {
	case <-w.done:
		a.result, a.blocks = w.result, w.blocks
		c.mu.Lock()
		defer c.mu.Unlock()
		a.work = nil
	case <-w.stop:
	case <-timer.C:
	case <-c.ctx.Done():
	}
}

// abandon releases what a work takes whose request has a result without it.
func (c *conn) abandon(w *work) {
	c.works.Go(func() {
		<-w.done
		for _, b := range w.blocks {
			b.Release()
		}
		if w.result.LeaseID != 0 {
			c.leases.change(w.result.LeaseID, 0)
		}
	})
}

// retrieve pins the blocks of a retrieve, one for each entry. Those on disk are read beside the
// connection.
func (c *conn) retrieve(a *answer) {
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
		return
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
// a disk.
func (c *conn) look(a *answer) {
	q := &a.request
	f := func(ctx context.Context, w *work) {
		r := &w.result
		switch q.Op {
		case blockio.OpExist:
			c.exist(ctx, q, r)
		case blockio.OpLease:
			if r.LeaseID, r.Leased = c.lease(ctx, q); r.Leased > 0 {
				r.LeaseMillis = q.LeaseMillis
			}
		case blockio.OpDelete:
			for i := range q.Keys {
				r.Statuses = append(r.Statuses, c.remove(ctx, &q.Keys[i]))
			}
			r.Status = summary(r.Statuses)
		default:
			r.Status = c.flush(ctx)
		}
	}
	if c.s.o.Host.Durable() {
		c.later(a, f)
		return
	}
	w := work{result: a.result}
	f(c.ctx, &w)
	a.result = w.result
}

func (c *conn) exist(ctx context.Context, q *blockio.Request, r *blockio.Result) {
	for i := range q.Keys {
		var p blockio.Presence
		if s := c.spaces[q.Keys[i].Identity]; s != nil {
			var err error
			if p.Present, p.Durable, err = s.Find(ctx, q.Keys[i].Key); err != nil {
				*r = blockio.Result{Status: diskStatus(err), Credits: r.Credits}
				return
			}
		}
		r.Presence = append(r.Presence, p)
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

// summary returns the status of a request with these of its entries.
func summary(all []blockio.Status) blockio.Status {
	for _, s := range all {
		if s != blockio.StatusOK {
			return blockio.StatusPartial
		}
	}
	return blockio.StatusOK
}

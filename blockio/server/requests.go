package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
)

// handle carries out a request, except for the bytes of a retrieve. If later is true the request
// goes on beside the connection, and the caller must not use it. handle returns errors of the
// connection only.
func (c *conn) handle(a *answer) (later bool, err error) {
	q, r := &a.request, &a.result
	r.Status = blockio.StatusOK
	if a.late {
		r.Status = blockio.StatusTimeout
		q.Entries, q.Keys, q.IDs = nil, nil, nil // their memory is not counted
		return false, nil
	}
	if c.s.draining.Load() && !blockio.Control(q.Op) && q.Op != blockio.OpRelease {
		r.Status = blockio.StatusDraining
		return false, nil
	}
	switch q.Op {
	case blockio.OpStore:
		full, err := c.store(a)
		if err != nil || full == nil {
			return false, err
		}
		// The client sends the pieces again after the result. A slow disk thus slows it down.
		end := time.Now().Add(time.Until(a.deadline) / 4 * 3)
		c.later(a, func(ctx context.Context, _ *work) {
			ctx, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			full.WaitWritable(ctx)
		})
		return true, nil
	case blockio.OpRetrieve:
		return c.retrieve(a), nil
	case blockio.OpExist, blockio.OpLease, blockio.OpDelete, blockio.OpFlush:
		return c.look(a), nil
	case blockio.OpRenew, blockio.OpRelease:
		r.LeaseMillis = c.granted(q)
		for _, id := range q.IDs {
			status := blockio.StatusOK
			if !c.leases.change(id, time.Duration(r.LeaseMillis)*time.Millisecond) {
				status = blockio.StatusNotFound
			}
			r.Statuses = append(r.Statuses, status)
		}
		r.Status = c.s.summary(r.Statuses)
	case blockio.OpAttach: // a gateway handles it
		r.Status = blockio.StatusNotSupported
	case blockio.OpStat:
		u := c.s.o.Host.Usage(c.tenant)
		r.Stat = blockio.Stat{
			Blocks: uint64(u.Blocks), Bytes: uint64(u.Bytes), CapacityBytes: uint64(c.s.o.Host.CapacityBytes()),
			Hits: uint64(u.Hits), Misses: uint64(u.Misses), Stores: uint64(u.Stores), Evictions: uint64(u.Evictions), Leased: uint64(u.Leased),
		}
	case blockio.OpCancel:
		c.cancel(q, r)
	case blockio.OpHello, blockio.OpKeepAlive: // an answer is all
	}
	return false, nil
}

// cancel marks a request, whose result precedes that of the cancellation.
func (c *conn) cancel(q *blockio.Request, r *blockio.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.progress[q.IDs[0]]
	if a == nil {
		r.Status = blockio.StatusNotFound
		return
	}
	a.canceled = true
	if a.work != nil {
		c.enqueue(a)
	}
	c.s.canceled.Add(1)
}

// space returns the space of a piece, or an error for an unknown identity and for shards that the
// piece does not touch.
func (c *conn) space(e *blockio.Entry) (*blockhost.Space, error) {
	s := c.spaces[e.Identity]
	if s == nil {
		return nil, errdefs.ErrMismatch
	}
	l := s.Layout()
	if int(e.EndShard) > l.Shards() || e.Offset+e.Length > uint64(l.ImageBytes()) {
		return nil, errdefs.ErrInvalid
	}
	off, end := int64(e.Offset), int64(e.Offset+e.Length)
	from, to := e.FirstShard, e.EndShard
	switch {
	case from == to && end > l.ShardOff(0): // more than the header
		return nil, errdefs.ErrInvalid
	case from == to:
		return s, nil
	case from > 0 && off < l.ShardOff(int(from)), end <= l.ShardOff(int(to)-1),
		int(to) < l.Shards() && end > l.ShardOff(int(to)), int(from)+1 < l.Shards() && off >= l.ShardOff(int(from)+1):
		return nil, errdefs.ErrInvalid
	}
	return s, nil
}

// store receives the pieces of a store. It returns the space of a piece that was refused as busy.
func (c *conn) store(a *answer) (full *blockhost.Space, err error) {
	q, r := a.request, &a.result
	for i := range q.Entries {
		e := &q.Entries[i]
		if err := c.reading.extend(time.Now()); err != nil {
			return nil, err
		}
		status, err := c.receive(e, a.deadline)
		if err != nil {
			return nil, err
		}
		switch status {
		case blockio.StatusBusy:
			full = c.spaces[e.Identity]
		case blockio.StatusTimeout:
			a.late = true
		default:
		}
		result := blockio.EntryResult{Status: status}
		if c.s.failed(status) {
			r.Status = blockio.StatusPartial
		} else {
			result.Bytes, result.Sum = e.Length, e.Sum
			r.Bytes += e.Length
		}
		r.Entries = append(r.Entries, result)
	}
	return full, nil
}

// receive receives a piece: to its place, or else it discards the bytes. A piece whose bytes
// are not complete at the deadline is given up. It returns errors of the connection.
func (c *conn) receive(e *blockio.Entry, deadline time.Time) (blockio.Status, error) {
	s, failure := c.space(e)
	if time.Now().After(deadline) {
		failure = blockio.ErrTimeout
	}
	var w *blockhost.Write
	if failure == nil {
		w, failure = s.Write(e.Key, int64(e.Offset), int64(e.Length))
	}
	if failure != nil {
		sum, err := c.discard(e.Length)
		if err != nil {
			return 0, err
		}
		if errors.Is(failure, errdefs.ErrExists) {
			failure = compare(s, e, sum)
		}
		return blockio.StatusOf(failure), nil
	}
	if err := c.r.ReadData(w.Bytes()); err != nil {
		w.Abort()
		return 0, err
	}
	switch {
	case time.Now().After(deadline):
		w.Abort()
		return blockio.StatusTimeout, nil
	case xxh3.Hash(w.Bytes()) != e.Sum:
		w.Abort()
		return blockio.StatusCorrupt, nil
	}
	return blockio.StatusOf(w.Done()), nil
}

// discard reads bytes of a refused piece and returns their checksum.
func (c *conn) discard(n uint64) (sum uint64, err error) {
	if c.refused == nil {
		c.refused = make([]byte, 64<<10)
	}
	h := xxh3.New()
	for n > 0 {
		part := c.refused[:min(n, uint64(len(c.refused)))]
		if err := c.r.ReadData(part); err != nil {
			return 0, err
		}
		_, _ = h.Write(part) // it returns no error
		n -= uint64(len(part))
	}
	return h.Sum64(), nil
}

// compare returns nil if a stored block has the bytes of a piece with that checksum, and ErrExists
// if it has others.
func compare(s *blockhost.Space, e *blockio.Entry, sum uint64) error {
	if sum != e.Sum {
		return errdefs.ErrCorrupt
	}
	b, err := s.Get(e.Key)
	if err != nil {
		return errdefs.ErrBusy // it was evicted: the client sends the piece again
	}
	defer b.Release()
	if xxh3.Hash(b.Bytes()[e.Offset:e.Offset+e.Length]) != e.Sum {
		return errdefs.ErrExists
	}
	return nil
}

// collect completes the result of a retrieve and appends its data.
func (c *conn) collect(a *answer, data [][]byte) [][]byte {
	r := &a.result
	for i := range r.Entries {
		if c.s.failed(r.Entries[i].Status) {
			r.Status = blockio.StatusPartial
			continue
		}
		e := &a.request.Entries[i]
		piece := a.blocks[i].Bytes()[e.Offset : e.Offset+e.Length]
		r.Entries[i].Bytes, r.Entries[i].Sum = e.Length, xxh3.Hash(piece)
		r.Bytes += e.Length
		data = append(data, piece)
	}
	return data
}

func (c *conn) remove(ctx context.Context, k *blockio.KeyEntry) blockio.Status {
	s := c.spaces[k.Identity]
	if s == nil {
		return blockio.StatusMismatch
	}
	err := s.Delete(ctx, k.Key)
	if errors.Is(err, blockhost.ErrLeased) {
		return blockio.StatusLeased
	}
	return diskStatus(err)
}

// leases are the leases of a connection.
type leases struct {
	mu    sync.Mutex
	all   map[uint64]*lease
	last  uint64
	ended bool
}

type lease struct {
	blocks  []blockhost.Block
	timer   *time.Timer
	expires time.Time
}

// granted returns the time of a lease or renewal in milliseconds. It is zero for a release.
func (c *conn) granted(q *blockio.Request) uint32 {
	return uint32(min(time.Duration(q.LeaseMillis)*time.Millisecond, c.s.o.LeaseMax).Milliseconds())
}

// lease leases the longest prefix of the keys.
func (c *conn) lease(ctx context.Context, q *blockio.Request) (id uint64, n uint32) {
	l := new(lease)
	seen := make(map[block.Key]bool, len(q.Keys))
	for i := 0; i < len(q.Keys); {
		// Keys of one identity are leased together.
		s := c.spaces[q.Keys[i].Identity]
		var keys []block.Key
		for ; i < len(q.Keys) && s != nil && c.spaces[q.Keys[i].Identity] == s && !seen[q.Keys[i].Key]; i++ {
			seen[q.Keys[i].Key] = true
			keys = append(keys, q.Keys[i].Key)
		}
		if len(keys) == 0 {
			break
		}
		blocks, err := s.LeasePrefix(ctx, keys)
		if l.blocks = append(l.blocks, blocks...); err != nil {
			break
		}
	}
	if len(l.blocks) == 0 {
		return 0, 0
	}
	return c.leases.add(l, time.Duration(c.granted(q))*time.Millisecond)
}

func (s *leases) add(l *lease, d time.Duration) (id uint64, n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.all) >= maxLeases {
		l.release()
		return 0, 0
	}
	s.last++
	id = s.last
	s.all[id] = l
	l.expires = time.Now().Add(d)
	l.timer = time.AfterFunc(d, func() { s.expire(id) })
	return id, uint32(len(l.blocks))
}

func (l *lease) release() {
	for _, b := range l.blocks {
		b.Release()
	}
}

// change extends a lease, or ends it if d is zero. It reports whether there is one.
func (s *leases) change(id uint64, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.all[id]
	switch {
	case l == nil:
		return false
	case d > 0:
		l.expires = time.Now().Add(d)
		l.timer.Reset(d)
	default:
		l.timer.Stop()
		delete(s.all, id)
		l.release()
	}
	return true
}

// expire ends a lease, unless it was extended while its timer fired.
func (s *leases) expire(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.all[id]; l != nil && !time.Now().Before(l.expires) {
		delete(s.all, id)
		l.release()
	}
}

// end ends all leases.
func (s *leases) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for id, l := range s.all {
		l.timer.Stop()
		delete(s.all, id)
		l.release()
	}
}

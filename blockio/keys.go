package blockio

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Exist sets out[i] to the presence of keys[i]. The slices have equal lengths.
func (c *Client) Exist(ctx context.Context, keys []KeyEntry, out []Presence) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for len(keys) > 0 {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		n := min(len(keys), int(conn.limits.Keys))
		r, _, err := c.do(ctx, Request{Op: OpExist, Keys: keys[:n]})
		if err != nil {
			return err
		}
		copy(out, r.Presence)
		keys, out = keys[n:], out[n:]
	}
	return nil
}

// Delete deletes blocks and sets errs[i] to the error of keys[i]: ErrNotFound, ErrLeased while the
// block is leased, or ErrBusy while it is being stored. The slices have equal lengths.
func (c *Client) Delete(ctx context.Context, keys []KeyEntry, errs []error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	n := int(c.o.Limits.Keys)
	if conn, err := c.connect(ctx); err == nil {
		n = int(conn.limits.Keys)
	}
	for at := 0; at < len(keys); at += n {
		end := min(at+n, len(keys))
		r, _, err := c.do(ctx, Request{Op: OpDelete, Keys: keys[at:end]})
		for i := at; i < end; i++ {
			if errs[i] = err; err == nil {
				errs[i] = r.Statuses[i-at].Err()
			}
		}
	}
}

// Flush makes the completed stores of the client's identities durable.
func (c *Client) Flush(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	_, _, err := c.do(ctx, Request{Op: OpFlush})
	return err
}

// Stat returns the figures of the server.
func (c *Client) Stat(ctx context.Context) (Stat, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, _, err := c.do(ctx, Request{Op: OpStat})
	if err != nil {
		return Stat{}, err
	}
	return r.Stat, nil
}

// Lease keeps blocks from being evicted and deleted at the server. It ends with its time, or with
// the connection. The methods are safe for concurrent use.
type Lease struct {
	client *Client
	conn   *conn
	id     uint64
	keys   int

	mu      sync.Mutex
	expires time.Time
}

// Lease leases the longest prefix of keys that is present, for a time that the server may shorten.
// A lease has at most as many keys as the limits allow. A lease of no keys is valid.
func (c *Client) Lease(ctx context.Context, keys []KeyEntry, d time.Duration) (*Lease, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	q := Request{Op: OpLease, LeaseMillis: leaseMillis(d), Keys: slices.Clone(keys[:min(len(keys), int(conn.limits.Keys))])}
	r, conn, err := c.do(ctx, q)
	if err != nil {
		return nil, err
	}
	return &Lease{client: c, conn: conn, id: r.LeaseID, keys: int(r.Leased), expires: start.Add(time.Duration(r.LeaseMillis) * time.Millisecond)}, nil
}

func leaseMillis(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 0), MaxMillis+1)) }

// Keys returns the number of leased keys, the first of those requested.
func (l *Lease) Keys() int { return l.keys }

// Lost returns a channel that is closed when the connection of the lease has ended.
func (l *Lease) Lost() <-chan struct{} { return l.conn.ended }

// Expires returns the earliest time at which the server may end the lease.
func (l *Lease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires
}

// Renew extends the lease to d from now. It returns ErrExpired if the lease has ended.
func (l *Lease) Renew(ctx context.Context, d time.Duration) error {
	start := time.Now()
	r, err := l.send(ctx, Request{Op: OpRenew, LeaseMillis: leaseMillis(d), IDs: []uint64{l.id}})
	if err != nil || r == nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = start.Add(time.Duration(r.LeaseMillis) * time.Millisecond)
	return nil
}

// Release ends the lease. It returns ErrExpired if the lease has ended.
func (l *Lease) Release(ctx context.Context) error {
	_, err := l.send(ctx, Request{Op: OpRelease, IDs: []uint64{l.id}})
	return err
}

// send sends a request about the lease over its connection. The result is nil if the lease has no
// keys.
func (l *Lease) send(ctx context.Context, q Request) (*Result, error) {
	if l.keys == 0 {
		return nil, nil
	}
	ctx, cancel := l.client.bound(ctx)
	defer cancel()
	k := &call{request: q, ctx: ctx, deadline: l.client.deadline(ctx)}
	if l.conn.failure() != nil {
		return nil, fmt.Errorf("%v: its connection has ended: %w", q.Op, errdefs.ErrExpired)
	}
	if err := l.client.one(ctx, l.conn, k); err != nil {
		return nil, err
	}
	if k.result.Statuses[0] == StatusNotFound {
		return nil, fmt.Errorf("%v: %w", q.Op, errdefs.ErrExpired)
	}
	return &k.result, k.result.Statuses[0].Err()
}

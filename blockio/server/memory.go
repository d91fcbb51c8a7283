package server

import "context"

// Memory of requests, in addition to the blocks. A connection has ownBytes. Beyond that it takes
// memory from the server's requestMemory, up to connectionBytes. If there is none, it reads no
// further frame until earlier requests have ended.
const (
	ownBytes        = 128 << 10
	connectionBytes = 4 << 20
	requestMemory   = 64 << 20
	keptBytes       = 128 << 10 // of ended requests of a connection, for further ones
	costBytes       = 1 << 10   // of a request without entries
	diskCostBytes   = 16 << 10  // of the goroutines of a request that may wait for the disk
	bodyCost        = 4         // bytes of a request and its result for each byte of its frame
	controlRequests = 16        // without a result, in addition to one for each credit
)

// reserve takes memory for a request with a body of that length. It waits until there is some. It
// returns false if the request's time or the connection ends before. The caller holds mu, which is
// released meanwhile.
func (c *conn) reserve(a *answer, body int) bool {
	cost := int64(costBytes + bodyCost*body)
	if c.s.o.Host.Durable() {
		cost += diskCostBytes
	}
	if c.held+cost > ownBytes {
		fits := func() bool { return c.held == 0 || c.held+cost <= connectionBytes }
		if !fits() || !c.s.memory.tryTake(c.tenant, cost) {
			c.s.waited.Add(1)
			ctx, cancel := context.WithDeadline(c.ctx, a.deadline)
			defer cancel()
			if !c.wait(ctx, fits) || !c.take(ctx, cost) {
				return false
			}
		}
		a.shared = true
	}
	c.held += cost
	a.cost = cost
	return true
}

// take takes memory of the server. The caller holds mu, which is released meanwhile.
func (c *conn) take(ctx context.Context, n int64) bool {
	c.mu.Unlock()
	defer c.mu.Lock()
	return c.s.memory.take(ctx, c.tenant, n)
}

// unreserve returns the memory of a request. The caller holds mu.
func (c *conn) unreserve(a *answer) {
	if a.shared {
		c.s.memory.release(c.tenant, a.cost)
	}
	c.held -= a.cost
	a.cost, a.shared = 0, false
}

// wake lets wait check its condition again. The caller holds mu.
func (c *conn) wake() {
	if c.waiting {
		c.waiting = false
		c.freed <- struct{}{} // it buffers one
	}
}

// wait waits until ok returns true, or until ctx ends, and reports whether it does. Only the
// goroutine that reads requests calls it. The caller holds mu, which is released meanwhile.
func (c *conn) wait(ctx context.Context, ok func() bool) bool {
	for !ok() {
		c.waiting = true
		c.mu.Unlock()
		ended := false
		select {
		case <-c.freed:
		case <-ctx.Done():
			ended = true
		}
		c.mu.Lock()
		if ended {
			c.waiting = false
			select {
			case <-c.freed: // notified meanwhile
			default:
			}
			return ok()
		}
	}
	return true
}

// bytes returns the memory of an ended answer, about, which newAnswer uses again.
func (a *answer) bytes() int {
	q, r := &a.request, &a.result
	return 512 + 88*cap(q.Entries) + 40*cap(q.Keys) + 8*cap(q.IDs) + 24*cap(r.Entries) + 2*cap(r.Presence) + 2*cap(r.Statuses) + 56*cap(a.blocks)
}

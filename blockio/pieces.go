package blockio

import (
	"context"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Piece is a contiguous piece of a block's image, with its memory.
type Piece struct {
	Key                  block.Key
	Identity             uint64 // IdentityHash of an identity of the client
	Offset               uint64 // in the image
	FirstShard, EndShard uint32 // shards that the bytes touch; both zero for the header alone
	Mem                  mem.Extent
}

// Split appends the pieces of a whole image in m, each of at most most bytes. m has the length of
// the layout's image.
func Split(dst []Piece, k block.Key, id block.Digest, l *block.Layout, m mem.Extent, most int64) []Piece {
	shard := uint32(0)
	for off := int64(0); off < m.Len; off += most {
		n := min(most, m.Len-off)
		p := Piece{Key: k, Identity: IdentityHash(id), Offset: uint64(off), Mem: m.Sub(off, n)}
		for int(shard) < l.Shards()-1 && l.ShardOff(int(shard)+1) <= off {
			shard++
		}
		if end := shard; off+n > l.ShardOff(int(shard)) {
			for int(end) < l.Shards() && l.ShardOff(int(end)) < off+n {
				end++
			}
			p.FirstShard, p.EndShard = shard, end
		}
		dst = append(dst, p)
	}
	return dst
}

// Store stores pieces and sets errs[i] to the error of pieces[i]. The pieces of one image may be in
// any order. The server publishes a block when it has all of its bytes. The slices have equal
// lengths. The memory must not change until Store returns. Without RDMA the CPU must reach it.
func (c *Client) Store(ctx context.Context, pieces []Piece, errs []error) {
	c.transfer(ctx, OpStore, pieces, errs)
}

// Retrieve reads pieces to their memory, verifies their checksums, and sets errs[i] to the error of
// pieces[i]: ErrNotFound for a miss, ErrCorrupt for a wrong checksum. After an error the memory is
// undefined. The slices have equal lengths. Without RDMA the CPU must reach the memory. Nothing
// writes to it after Retrieve has returned.
func (c *Client) Retrieve(ctx context.Context, pieces []Piece, errs []error) {
	c.transfer(ctx, OpRetrieve, pieces, errs)
}

func (c *Client) transfer(ctx context.Context, op Op, pieces []Piece, errs []error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var few [4]int
	pending := few[:0]
	var sums []uint64
	if op == OpStore {
		sums = make([]uint64, len(pieces))
	}
	for i := range pieces {
		errs[i] = c.check(&pieces[i])
		if errs[i] == nil && op == OpStore {
			sums[i], errs[i] = c.sum(pieces[i].Mem)
		}
		if errs[i] == nil {
			pending = append(pending, i)
		}
	}
	for attempt := 0; len(pending) > 0; attempt++ {
		c.attempt(ctx, op, attempt, pieces, sums, errs, pending)
		var failure error
		again := pending[:0]
		for _, i := range pending {
			if retryable(errs[i]) {
				again, failure = append(again, i), errs[i]
			}
		}
		if pending = again; failure == nil || !c.retry(ctx, attempt, failure) {
			return
		}
		c.retries.Add(int64(len(pending)))
	}
}

func (c *Client) check(p *Piece) error {
	if err := p.Mem.Validate(); err != nil {
		return err
	}
	return c.o.RDMA.checkPiece(p.Mem)
}

// sum returns the checksum of memory.
func (c *Client) sum(e mem.Extent) (uint64, error) {
	if b := e.Bytes(); b != nil {
		return xxh3.Hash(b), nil
	}
	return c.o.RDMA.Sum(e)
}

// batch is a sub-batch: a call, and the indices of its pieces.
type batch struct {
	call
	pieces []int
}

// reset makes an ended batch an empty one. It keeps the memory of its slices.
func (b *batch) reset(op Op) {
	clear(b.memory)
	clear(b.extents)
	*b = batch{
		call: call{
			request: Request{Op: op, Entries: b.request.Entries[:0]}, memory: b.memory[:0], extents: b.extents[:0], result: Result{Entries: b.result.Entries[:0]},
		},
		pieces: b.pieces[:0],
	}
}

// attempt sends the pending pieces in sub-batches and sets their errors. All sub-batches are sent
// before the first is waited for, and a failure of one does not affect the others.
func (c *Client) attempt(ctx context.Context, op Op, number int, pieces []Piece, sums []uint64, errs []error, pending []int) {
	conn, err := c.connect(ctx)
	if err != nil {
		for _, i := range pending {
			errs[i] = err
		}
		return
	}
	var few [4]*batch
	started := few[:0]
	for len(pending) > 0 {
		b := c.build(conn, op, pieces, sums, pending)
		b.ctx, b.deadline, b.request.Phase, b.request.Run = ctx, c.deadline(ctx), number&1 == 1, runOf(ctx, op)
		pending = pending[len(b.pieces):]
		c.batches.Add(1)
		if err := conn.start(&b.call); err != nil {
			for _, i := range b.pieces {
				errs[i] = err
			}
			continue
		}
		started = append(started, b)
	}
	for _, b := range started {
		err := c.wait(ctx, conn, &b.call)
		if err == nil {
			c.reportReplicas(&b.call)
		}
		c.resolve(b, err, errs)
		c.batchPool.Put(b)
	}
}

// build returns a sub-batch of the first pending pieces, within the bounds.
func (c *Client) build(conn *conn, op Op, pieces []Piece, sums []uint64, pending []int) *batch {
	entries, bytes := min(c.o.BatchEntries, int(conn.limits.Entries)), min(c.o.BatchBytes, conn.limits.RequestBytes)
	b, _ := c.batchPool.Get().(*batch)
	if b == nil {
		b = new(batch)
	}
	b.reset(op)
	sum := uint64(0)
	for _, i := range pending {
		p := &pieces[i]
		n := uint64(p.Mem.Len)
		if sum += n; len(b.pieces) == entries || len(b.pieces) > 0 && sum > bytes {
			break
		}
		e := Entry{Key: p.Key, Identity: p.Identity, Offset: p.Offset, Length: n, FirstShard: p.FirstShard, EndShard: p.EndShard}
		if op == OpStore {
			e.Sum = sums[i]
		}
		b.pieces = append(b.pieces, i)
		b.memory, b.extents = append(b.memory, p.Mem.Bytes()), append(b.extents, p.Mem)
		b.request.Entries = append(b.request.Entries, e)
	}
	return b
}

// resolve sets the errors of the pieces of a sub-batch that has ended with err.
func (c *Client) resolve(b *batch, err error, errs []error) {
	if err == nil && b.result.Status != StatusPartial {
		err = b.result.Status.Err()
	}
	for n, i := range b.pieces {
		if errs[i] = err; err != nil {
			continue
		}
		e := &b.result.Entries[n]
		sum := b.request.Entries[n].Sum
		if errs[i] = e.Status.Err(); errs[i] != nil {
			continue
		}
		if b.request.Op == OpRetrieve {
			if sum, errs[i] = c.sum(b.extents[n]); errs[i] != nil {
				continue
			}
		}
		if sum != e.Sum {
			c.corrupt.Add(1)
			errs[i] = fmt.Errorf("%v a piece: its checksum is %016x, the server has %016x: %w", b.request.Op, sum, e.Sum, errdefs.ErrCorrupt)
		}
	}
}

package file

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// batch is a set of blocks that are copied together. Block i is at block i of the memory and at
// offs[i] of the file.
type batch struct {
	Place
	file   *scratch
	offs   []int64
	memory *mem.Region
}

func (b *batch) bytes() int64 { return int64(len(b.offs)) * b.Size }

// block returns the host memory of block i.
func (b *batch) block(i int) []byte { return b.memory.Bytes()[int64(i)*b.Size:][:b.Size] }

// mover copies batches.
type mover interface {
	// move copies a batch and waits until nothing is in flight. It returns the name of the path.
	move(ctx context.Context, b *batch) (by string, err error)
	close(ctx context.Context) error
}

// threads copies blocks with n threads that call pread or pwrite.
type threads int

func (n threads) move(_ context.Context, b *batch) (string, error) {
	call := unix.Pread
	if b.Work == Write {
		call = unix.Pwrite
	}
	var g errgroup.Group
	var next atomic.Int64
	for range min(int(n), len(b.offs)) {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(b.offs); i = int(next.Add(1)) - 1 {
				if err := transfer(call, b.file.fd(b.From), b.block(i), b.offs[i]); err != nil {
					return fmt.Errorf("%s %w", b.Work, err)
				}
			}
			return nil
		})
	}
	return "posix", g.Wait()
}

func (threads) close(context.Context) error { return nil }

// ring copies blocks with io_uring.
type ring struct {
	*uring.Ring
	done []uring.Completion
}

func openRing(depth int, memory *mem.Region) (*ring, error) {
	r, err := uring.Open(uring.Options{Depth: depth})
	if err != nil {
		return nil, err
	}
	// Registration may fail, for example because of the limit of locked memory. Then the kernel
	// pins the memory for each request.
	_ = r.RegisterBuffers(memory.Bytes())
	return &ring{r, make([]uring.Completion, depth)}, nil
}

func (r *ring) move(_ context.Context, b *batch) (string, error) {
	ops := make([]uring.Op, len(b.offs))
	for i, off := range b.offs {
		ops[i] = uring.Op{Code: uring.Read, FD: b.file.fd(b.From), Off: off, Buf: b.block(i), Buffer: 1}
		if b.Work == Write {
			ops[i].Code = uring.Write
		}
	}
	var failed error
	for len(ops) > 0 && failed == nil || r.InFlight() > 0 {
		if failed == nil && len(ops) > 0 {
			n, err := r.Submit(ops...)
			ops = ops[n:]
			if err != nil && !errors.Is(err, errdefs.ErrBusy) {
				return "", err
			}
		}
		if r.InFlight() == 0 {
			time.Sleep(100 * time.Microsecond) // the kernel was busy
			continue
		}
		n, err := r.Wait(r.done)
		if err != nil {
			return "", err
		}
		for i := range r.done[:n] {
			c := &r.done[i]
			if rest := c.Op.Buf[c.N:]; c.Err == nil && c.N > 0 && len(rest) > 0 {
				c.Op.Off, c.Op.Buf = c.Op.Off+int64(c.N), rest
				ops = append(ops, c.Op)
			} else if c.Err != nil || c.N == 0 {
				failed = errors.Join(fmt.Errorf("%s block: moved %d bytes", b.Work, c.N), c.Err)
			}
		}
	}
	return "uring", failed
}

func (r *ring) close(context.Context) error { return r.Close() }

// streamed copies blocks with a file stream.
type streamed struct{ stream stream.Stream }

func (s *streamed) move(ctx context.Context, b *batch) (string, error) {
	var list mem.Batch
	for i, off := range b.offs {
		dst, src := mem.Extent{Region: b.memory, Off: int64(i) * b.Size, Len: b.Size}, mem.Extent{Region: b.file.region, Off: off, Len: b.Size}
		if b.Work == Write {
			dst, src = src, dst
		}
		list.Dst, list.Src = append(list.Dst, dst), append(list.Src, src)
	}
	tickets, _, err := measure.Copy(ctx, nil, []measure.Job{{By: s.stream, Batch: &list}})
	if err != nil {
		return "", err
	}
	return tickets[0].Completion().Path.String(), nil
}

func (s *streamed) close(ctx context.Context) error { return s.stream.Close(ctx) }

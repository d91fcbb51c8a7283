package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Copier copies device memory. It is safe for concurrent use.
type Copier interface {
	// Copy copies each extent of src to that of dst and returns when no byte moves any more. If ctx
	// ends before, it returns a *PendingError, and the caller keeps the memory until Done is
	// closed. Host memory must be pinned.
	Copy(ctx context.Context, dst, src []mem.Extent) error
}

// PendingError is the error of a copy that was in progress when its context ended. The device may
// write the destination until Done is closed; until then it must not be used for anything else.
// Done stays open if the device never ends the copy.
type PendingError struct {
	Cause error
	Done  <-chan struct{}
}

// Error returns the cause.
func (e *PendingError) Error() string {
	return fmt.Sprintf("the device still copies; its memory stays in use: %v", e.Cause)
}

// Unwrap returns ErrBusy and the cause.
func (e *PendingError) Unwrap() []error { return []error{errdefs.ErrBusy, e.Cause} }

// AfterCopy calls release when the copy that returned err no longer accesses memory: at once, or
// later, by another goroutine, for a *PendingError.
func AfterCopy(err error, release func()) {
	var p *PendingError
	if !errors.As(err, &p) {
		release()
		return
	}
	go func() {
		<-p.Done
		release()
	}()
}

// NewDevice returns a block of device memory with the copier that reads it. The last Release calls
// free, which may be nil. It returns ErrInvalid for other memory and extents outside their region.
func NewDevice(e mem.Extent, c Copier, free func()) (*Block, error) {
	b, err := NewRegistered(e, free)
	if err == nil && !b.OnDevice() {
		err = fmt.Errorf("make device block of the %s: %w", e.Region, errdefs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	b.copier = c
	return b, nil
}

// CopyFromGPU copies n bytes from offset pos to the start of dst, which is pinned or device memory,
// and returns the number of copied bytes. That is less than n if dst is shorter or the chain ends
// before. The chain does not change. It returns ErrInvalid for an offset outside the chain and a
// dst outside its region, and ErrNotSupported, with nothing copied, if the chain has memory that no
// copier reads. After an error of the copier it reports no bytes. If ctx ends before the copy, the
// error is a *PendingError: dst stays in use until its Done is closed.
func (c *Chain) CopyFromGPU(ctx context.Context, dst mem.Extent, n, pos int64) (int64, error) {
	if err := dst.Validate(); err != nil {
		return 0, fmt.Errorf("copy from a chain: %w", err)
	}
	if pos < 0 || n < 0 || pos > c.Len() {
		return 0, fmt.Errorf("copy %d bytes from %d of a chain of %d: %w", n, pos, c.Len(), errdefs.ErrInvalid)
	}
	n = min(n, dst.Len, c.Len()-pos)
	var copier Copier
	var to, from []mem.Extent
	var plain []func()
	first := pos
	for i, done := 0, int64(0); done < n; i++ {
		p := &c.parts[i]
		if pos >= p.len {
			pos -= p.len
			continue
		}
		k := min(p.len-pos, n-done)
		d := dst.Sub(done, k)
		switch b, out := p.block, d.Bytes(); {
		case !b.OnDevice() && out != nil:
			in := p.host()[pos : pos+k]
			plain = append(plain, func() { copy(out, in) })
		case b.copier == nil || copier != nil && copier != b.copier:
			return 0, fmt.Errorf("copy from a chain: %w: no copier, or several, for its memory", errdefs.ErrNotSupported)
		default:
			copier = b.copier
			to, from = append(to, d), append(from, b.extent.Sub(p.off+pos, k))
		}
		done += k
		pos = 0
	}
	if copier != nil {
		if err := copier.Copy(ctx, to, from); err != nil {
			if held, errSlice := c.Slice(first, n); errSlice == nil { // the range is valid
				AfterCopy(err, held.Release)
			}
			return 0, fmt.Errorf("copy from a chain: %w", err)
		}
	}
	for _, f := range plain {
		f()
	}
	return n, nil
}

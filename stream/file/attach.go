package file

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
)

var _ dirfs.Reader = (*Stream)(nil)

// Attach implements dirfs.Reader: the stream reads f. It returns ErrNotSupported if f has no
// descriptor, since only ReadAt can read such a file.
func (s *Stream) Attach(f dirfs.File, name string) (dirfs.Attached, error) {
	d, ok := f.(dirfs.Descriptor)
	if !ok {
		return nil, fmt.Errorf("attach file %s: it has no descriptor: %w", name, errdefs.ErrNotSupported)
	}
	a, err := New(borrowed{d}, name)
	if err != nil {
		return nil, err
	}
	return &attached{stream: s, file: a}, nil
}

// borrowed is a file that its owner closes.
type borrowed struct{ dirfs.Descriptor }

func (borrowed) Close() error { return nil }

type attached struct {
	stream *Stream
	file   *File
}

// ReadExtent implements dirfs.Attached.
func (a *attached) ReadExtent(ctx context.Context, dst mem.Extent, off int64) error {
	from, err := a.file.Region(off + dst.Len)
	if err != nil {
		return err
	}
	t, err := a.stream.Submit(ctx, &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{{Region: from, Off: off, Len: dst.Len}}})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, t.Cancel)()
	err = t.Wait(context.WithoutCancel(ctx)) // dst is in use until the ticket resolves
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", io.EOF, err)
	case errors.Is(err, errdefs.ErrCanceled) && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// Close implements dirfs.Attached. It does not wait, since the caller has no read in progress.
func (a *attached) Close() error { return a.file.Close(context.Background()) }

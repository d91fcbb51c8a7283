package transfer

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
)

// TestDefectStoppedImporterStopsTheSegment: as long as an importer does not let go of memory that is being unregistered, others still learn
// what the segment has, more is registered, and closing it ends with its context.
func TestDefectStoppedImporterStopsTheSegment(t *testing.T) {
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	more := host(t, 4096)
	p := newPair(t, Options{Share: shareServer(t)}, Options{})
	_, err = p.segment.Register(h.Region(), RegisterOptions{Source: h})
	must(t, err)
	theirs, err := importer(t, nil).Import(t.Context(), *p.segment.Describe().Buffers[0].Share)
	must(t, err)
	origin := theirs.Region().Origin()
	must(t, origin.Hold())
	unregistered := make(chan error, 1)
	defer func() {
		origin.Release()
		must(t, <-unregistered)
		must(t, p.segment.Close(t.Context()))
		must(t, theirs.Close())
	}()
	go func() { unregistered <- p.segment.Unregister(context.Background(), 0) }()
	until(t, "it is not withdrawn", func() bool { return origin.Check() != nil })
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	must(t, p.remote.Refresh(within(5*time.Second)))
	off, err := p.segment.Register(more, RegisterOptions{})
	must(t, err)
	must(t, p.segment.Unregister(within(5*time.Second), off))
	wantErr(t, "unregister what another call waits for", p.segment.Unregister(within(50*time.Millisecond), 0), errdefs.ErrBusy)
	wantErr(t, "close", p.segment.Close(within(50*time.Millisecond)), errdefs.ErrBusy)
	_, err = p.segment.Register(more, RegisterOptions{})
	wantErr(t, "register in a closed segment", err, errdefs.ErrClosed)
}

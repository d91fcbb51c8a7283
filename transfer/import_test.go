package transfer

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// TestDefectLostImportsStay checks that a long-lived Remote unmaps memory that is no longer part of
// its segment, after a refresh or after a batch has detected the change.
func TestDefectLostImportsStay(t *testing.T) {
	p := newPair(t, Options{Share: shareServer(t)}, Options{Importer: importer(t, nil)})
	here := host(t, 1<<16)
	// add registers and imports memory. It returns the offset, and a function that unregisters and
	// frees the memory.
	add := func() (off int64, drop func() error) {
		t.Helper()
		h, err := share.AllocHost(nil, 1<<16)
		must(t, err)
		off, err = p.segment.Register(t.Context(), h.Region(), RegisterOptions{Source: h})
		must(t, err)
		must(t, p.remote.Refresh(t.Context()))
		must(t, p.remote.Shared(off))
		return off, func() error { return errors.Join(p.segment.Unregister(t.Context(), off), h.Close()) }
	}
	before := currentUsage(t)
	for range 20 {
		_, drop := add()
		must(t, drop())
	}
	must(t, p.remote.Refresh(t.Context()))
	noMore(t, before)

	off, drop := add()
	must(t, drop())
	until(t, "nobody tells that the memory is lost", func() bool { return p.remote.Shared(off) != nil })
	b := p.submit(t, SubmitOptions{}, Task{Op: Write, Local: mem.All(here), Offset: off})
	wantErr(t, "a write to what was unregistered", wait(t, b), errdefs.ErrNotFound)
	noMore(t, before)

	// Memory that a running copy uses stays mapped until a later refresh.
	off, drop = add()
	buf, err := p.remote.buffer(off, 0)
	must(t, err)
	origin := buf.imported.Region().Origin()
	must(t, origin.Acquire())
	dropped := make(chan error, 1)
	go func() { dropped <- drop() }()
	until(t, "nobody tells that the memory is lost", func() bool { return p.remote.Shared(off) != nil })
	must(t, p.remote.Refresh(t.Context()))
	origin.Release()
	must(t, <-dropped)
	must(t, p.remote.Refresh(t.Context()))
	noMore(t, before)
}

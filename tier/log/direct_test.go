package log_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func directConfig(t *testing.T) (log.Config, *tiertest.Direct) {
	t.Helper()
	c, d := config(t), tiertest.NewDirect(t)
	c.Formats, c.Direct = block.Formats{tiertest.LeafFormat(t)}, d
	return c, d
}

func TestReadDirect(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 6)
	put(t, tr, f, ks...)
	for range 2 {
		for _, key := range ks {
			tiertest.WantDirect(t, tr, f, key)
		}
	}
	if st := tr.Stats(); st.Hits != 12 || st.ReadBytes != 12*f.Layout.ImageBytes() {
		t.Errorf("%+v", st)
	}
	d.Fail = errors.New("no luck")
	tiertest.WantNotDirect(t, tr, f, ks[0], tier.ErrDirectFailed)
	d.Fail = nil
	if err := get(t, tr, f, ks[0]); err != nil {
		t.Error(err)
	}
	tiertest.WantNotDirect(t, tr, f, keys(7, 8)[0], tier.ErrNotDirect)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := tr.ReadDirect(ended, ks[0], tiertest.Buffer(t, f.Layout.ImageBytes()), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
	if _, _, err := tr.ReadDirect(t.Context(), ks[0], tiertest.Buffer(t, 4096), nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a short extent: %v", err)
	}
}

// Short blocks are stored in compact records without their own header, so they cannot be read
// directly.
func TestCompactRecordsAreNotReadDirectly(t *testing.T) {
	c, d := config(t), tiertest.NewDirect(t)
	c.Direct = d
	f := c.Formats[0]
	tr := open(t, c)
	key := keys(0, 1)[0]
	put(t, tr, f, key)
	tiertest.WantNotDirect(t, tr, f, key, tier.ErrNotDirect)
	if err := get(t, tr, f, key); err != nil || d.Kept() != 0 {
		t.Errorf("%v; %d files are kept", err, d.Kept())
	}
}

// If a block is removed during a direct read, its place may become a hole. The bytes of the hole
// are not returned.
func TestDefectBlockMovedDuringADirectRead(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 2)
	put(t, tr, f, ks...)
	d.Before = func() {
		if err := tr.Delete(t.Context(), ks[0]); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Error(err)
		}
	}
	tiertest.WantNotDirect(t, tr, f, ks[0], tier.ErrNotDirect)
	d.Before = nil
	tiertest.WantDirect(t, tr, f, ks[1])
}

// A segment that is open for direct reads is closed before it is removed, so that its space is
// freed.
func TestDefectRemovedSegmentKeepsItsSpace(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 60)
	put(t, tr, f, ks...)
	for _, key := range ks {
		tiertest.WantDirect(t, tr, f, key)
	}
	before := d.Kept()
	if n, err := tr.GC(t.Context(), 1); n == 0 || err != nil {
		t.Fatalf("%d blocks were removed: %v", n, err)
	}
	if after := d.Kept(); before < 2 || after >= before || len(d.Missed()) > 0 {
		t.Errorf("%d segments were kept open, then %d; %d were forgotten too late", before, after, len(d.Missed()))
	}
}

// If the context of a direct read ended while the segment was being opened, the file stayed in use.
func TestDefectCanceledDirectReadHoldsItsFile(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	key := keys(0, 1)[0]
	put(t, tr, f, key)
	ctx, cancel := context.WithCancel(t.Context())
	d.Opened = cancel
	_, _, _ = tr.ReadDirect(ctx, key, tiertest.Buffer(t, f.Layout.ImageBytes()), nil) // may succeed or fail
	if n := d.Held(); n != 0 {
		t.Errorf("%d files are in use", n)
	}
}

// A block that is stored from device memory is read like any other block, also after the log was
// reopened.
func TestPutDirect(t *testing.T) {
	for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
		c, d := directConfig(t)
		c.Fsync = policy
		f := c.Formats[0]
		tr := open(t, c)
		ks := keys(0, 12)
		for i, key := range ks {
			src := image(t, f, key)
			if i%3 == 0 { // between other blocks
				if err := tr.Put(t.Context(), key, src); err != nil {
					t.Error(err)
				}
			}
			for n := range 2 { // the second Put finds the block
				written, quiesced, err := tr.PutDirect(t.Context(), key, src)
				if err != nil || quiesced != nil || written != (i%3 != 0 && n == 0) {
					t.Fatal(written, err)
				}
			}
			tiertest.WantDirect(t, tr, f, key)
		}
		if st := tr.Stats(); st.Puts != 12 || st.WrittenBytes != 12*f.Layout.ImageBytes() || st.Errors != 0 {
			t.Errorf("%+v", st)
		}
		src := image(t, f, tiertest.Key(20))
		d.Fail = errors.New("no luck")
		if written, _, err := tr.PutDirect(t.Context(), tiertest.Key(20), src); written || !errors.Is(err, tier.ErrDirectFailed) || !errors.Is(err, d.Fail) {
			t.Error(err)
		}
		d.Fail = nil
		if st := tr.Stats(); st.Errors != 0 {
			t.Errorf("a failure that Put follows is counted: %+v", st)
		}
		if err := tr.Put(t.Context(), tiertest.Key(20), src); err != nil {
			t.Error(err)
		}
		closeTier(t, tr)
		tr = open(t, c)
		for _, key := range append(ks, tiertest.Key(20)) {
			if err := get(t, tr, f, key); err != nil {
				t.Error(err)
			}
		}
		closeTier(t, tr)
		if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || !r.Clean() {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// The header of a group is written after its shards, so that a torn group has no header.
func TestDefectTornDirectGroupHasAHeader(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, tiertest.Key(0)) // creates the segment
	var first []byte
	d.Writing = func(b []byte) { first = bytes.Clone(b) }
	key := tiertest.Key(1)
	src := image(t, f, key)
	if _, _, err := tr.PutDirect(t.Context(), key, src); err != nil {
		t.Fatal(err)
	}
	at := int64(len(first)) - f.Layout.ImageBytes()
	if head := first[at-block.AlignBytes : at]; !bytes.Equal(head, make([]byte, len(head))) {
		t.Error("the header was written before the block")
	}
}

// Blocks that are put concurrently share writes. Blocks that are put directly do not.
func TestConcurrentDirectPuts(t *testing.T) {
	c, _ := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 48)
	srcs := make([]mem.Extent, len(ks))
	for i, key := range ks {
		srcs[i] = image(t, f, key)
	}
	var group sync.WaitGroup
	for i, key := range ks {
		group.Go(func() {
			if err := store(t.Context(), tr, key, srcs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, key := range ks {
		if err := get(t, tr, f, key); err != nil {
			t.Error(err)
		}
	}
}

// A write whose memory may still be read is not tried again.
func TestDirectWriteIsNotRetriedWhileItsMemoryIsRead(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	c.SegmentBytes = 8 * f.Layout.ImageBytes()
	c.MaxBytes = 16 * c.SegmentBytes
	tr := open(t, c)
	put(t, tr, f, keys(10, 100)...) // which could make space
	quiesced, writes := make(chan struct{}), 0
	d.Fail, d.Quiesced, d.Writing = unix.ENOSPC, quiesced, func([]byte) { writes++ }
	key := tiertest.Key(1)
	written, got, err := tr.PutDirect(t.Context(), key, image(t, f, key))
	if written || got != (<-chan struct{})(quiesced) || !errors.Is(err, unix.ENOSPC) || writes != 1 {
		t.Errorf("written %t, quiesced %t, %v, after %d writes", written, got != nil, err, writes)
	}
}

package log_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
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

// Short blocks have no header of their own in the log.
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

// The place of a block that is removed during a read may become a hole: its bytes are not returned.
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

// A segment that is kept open for direct reads is closed before it is removed.
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

// The file of a read whose context ended while it was being opened stayed in use.
func TestDefectCanceledDirectReadHoldsItsFile(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	key := keys(0, 1)[0]
	put(t, tr, f, key)
	ctx, cancel := context.WithCancel(t.Context())
	d.Opened = cancel
	_, _, _ = tr.ReadDirect(ctx, key, tiertest.Buffer(t, f.Layout.ImageBytes()), nil) // with or without an error
	if n := d.Held(); n != 0 {
		t.Errorf("%d files are in use", n)
	}
}

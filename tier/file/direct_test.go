package file_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func directConfig(t *testing.T) (file.Config, *tiertest.Direct) {
	t.Helper()
	c, d := config(t), tiertest.NewDirect(t)
	c.Formats, c.Direct = block.Formats{tiertest.LeafFormat(t)}, d
	return c, d
}

func TestReadDirect(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 4)
	put(t, tr, f, ks...)
	for range 2 {
		for _, key := range ks {
			tiertest.WantDirect(t, tr, f, key)
		}
	}
	if st := tr.Stats(); st.Hits != 8 || st.ReadBytes != 8*f.Layout.ImageBytes() || d.Kept() != 4 {
		t.Errorf("%+v; %d files are kept", st, d.Kept())
	}
	d.Fail = errors.New("no luck")
	tiertest.WantNotDirect(t, tr, f, ks[0], tier.ErrDirectFailed)
	tiertest.WantNotDirect(t, tr, f, ks[0], d.Fail)
	d.Fail = nil
	if err := get(t, tr, f, ks[0]); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := tr.ReadDirect(ended, ks[0], tiertest.Buffer(t, f.Layout.ImageBytes()), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
	if _, _, err := tr.ReadDirect(t.Context(), ks[0], tiertest.Buffer(t, 4096), nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a short extent: %v", err)
	}
}

// Whatever is wrong with a file is left to Read, which sets it aside and counts it.
func TestReadDirectLeavesFaultsToRead(t *testing.T) {
	c, _ := directConfig(t)
	f := c.Formats[0]
	tr := open(t, c)
	ks := keys(0, 5)
	put(t, tr, f, ks[:4]...)
	flip(t, path(c.Dirs[0], ks[0]), 100) // in the header
	if err := os.Truncate(path(c.Dirs[0], ks[1]), 8192); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path(c.Dirs[0], ks[2]), path(c.Dirs[0], ks[3])); err != nil { // another block under this name
		t.Fatal(err)
	}
	for i, want := range map[int]error{0: errdefs.ErrCorrupt, 1: errdefs.ErrCorrupt, 2: errdefs.ErrNotFound, 3: errdefs.ErrCorrupt, 4: errdefs.ErrNotFound} {
		tiertest.WantNotDirect(t, tr, f, ks[i], tier.ErrNotDirect)
		if err := tr.Read(t.Context(), ks[i], tiertest.Buffer(t, f.Layout.ImageBytes())); !errors.Is(err, want) {
			t.Errorf("block %d: Read: %v, want %v", i, err, want)
		}
	}
	plain := c
	plain.Direct = nil
	tiertest.WantNotDirect(t, open(t, plain), f, ks[0], tier.ErrNotDirect)
}

func TestReadDirectOfAnotherChecksum(t *testing.T) {
	c, _ := directConfig(t)
	c.Formats[0].Sum = block.SumXXH3
	f := c.Formats[0]
	tr := open(t, c)
	key := keys(0, 1)[0]
	put(t, tr, f, key)
	tiertest.WantNotDirect(t, tr, f, key, tier.ErrNotDirect)
	if err := get(t, tr, f, key); err != nil {
		t.Error(err)
	}
}

// A file that is kept open for direct reads is closed before it is removed, so that the bound holds.
func TestDefectRemovedBlockKeepsItsSpace(t *testing.T) {
	c, d := directConfig(t)
	f := c.Formats[0]
	c.MaxBytes, c.QuarantineMax = 8*f.Layout.ImageBytes(), -1
	tr := open(t, c)
	ks := keys(0, 40)
	for i, key := range ks {
		put(t, tr, f, key)
		tiertest.WantDirect(t, tr, f, key)
		switch i {
		case 2:
			if err := tr.Delete(t.Context(), key); err != nil {
				t.Error(err)
			}
		case 3:
			flip(t, path(c.Dirs[0], key), f.Layout.ShardOff(1))
			if err := get(t, tr, f, key); !errors.Is(err, errdefs.ErrCorrupt) {
				t.Error(err)
			}
		}
	}
	st := tr.Stats()
	if st.Evictions == 0 || int64(d.Kept()) > st.Blocks || len(d.Missed()) > 0 {
		t.Errorf("%d evictions; %d files are kept open of %d blocks; %d were forgotten too late", st.Evictions, d.Kept(), st.Blocks, len(d.Missed()))
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

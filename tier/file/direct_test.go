package file_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// ReadDirect does not handle faults of a file. It leaves them to Read, which moves the file aside
// and counts it.
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
	if err := os.Rename(path(c.Dirs[0], ks[2]), path(c.Dirs[0], ks[3])); err != nil { // a file with the name of another block
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

// A file that is open for direct reads is closed before it is removed. Otherwise it would keep its
// space and exceed the bound.
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

// If the context of a direct read ended while the file was being opened, the file stayed in use.
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

// A block that is stored from device memory is read like any other block.
func TestPutDirect(t *testing.T) {
	for _, policy := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
		c, d := directConfig(t)
		c.Fsync, c.MaxBytes = policy, 8*c.Formats[0].Layout.ImageBytes()
		f := c.Formats[0]
		tr := open(t, c)
		ks := keys(0, 30)
		for _, key := range ks { // more blocks than the bound
			src := image(t, f, key)
			if written, quiesced, err := tr.PutDirect(t.Context(), key, src); !written || err != nil || quiesced != nil {
				t.Fatal(written, err)
			}
			if err := get(t, tr, f, key); err != nil {
				t.Error(err)
			}
			if written, _, err := tr.PutDirect(t.Context(), key, src); written || err != nil {
				t.Error("a block that was there:", written, err)
			}
		}
		st := tr.Stats()
		if st.Puts != 30 || st.WrittenBytes != 30*f.Layout.ImageBytes() || st.Blocks > 8 {
			t.Errorf("%+v", st)
		}
		key := keys(40, 41)[0]
		src := image(t, f, key)
		d.Fail = errors.New("no luck")
		if written, _, err := tr.PutDirect(t.Context(), key, src); written || !errors.Is(err, tier.ErrDirectFailed) || !errors.Is(err, d.Fail) {
			t.Error(err)
		}
		d.Fail = nil
		if state(t, tr, key) != tier.Absent || tr.Stats().Errors != st.Errors {
			t.Errorf("after a failure it is %s; %d errors", state(t, tr, key), tr.Stats().Errors)
		}
		for _, name := range files(t, c.Dirs[0]) {
			if strings.HasPrefix(name, "tmp") {
				t.Errorf("%s is left", name)
			}
		}
		if err := tr.Put(t.Context(), key, image(t, f, key)); err != nil {
			t.Error(err)
		}
	}
}

// A write whose memory may still be read was tried again, and the second try forgot that.
func TestDefectDirectWriteIsRetriedWhileItsMemoryIsRead(t *testing.T) {
	for _, fault := range []error{unix.ENOSPC, unix.ENOENT} { // a full disk, and a folder that is gone
		c, d := directConfig(t)
		c.MaxBytes = 8 * c.Formats[0].Layout.ImageBytes()
		tr := open(t, c)
		put(t, tr, c.Formats[0], keys(0, 3)...) // which could make space
		quiesced, writes := make(chan struct{}), 0
		d.Fail, d.Quiesced, d.Writing = fault, quiesced, func([]byte) { writes++ }
		key := keys(5, 6)[0]
		written, got, err := tr.PutDirect(t.Context(), key, image(t, c.Formats[0], key))
		if written || got != (<-chan struct{})(quiesced) || !errors.Is(err, fault) || writes != 1 {
			t.Errorf("%v: written %t, quiesced %t, %v, after %d writes", fault, written, got != nil, err, writes)
		}
		if s := state(t, tr, key); s != tier.Absent {
			t.Errorf("%v: the block is %s", fault, s)
		}
	}
}

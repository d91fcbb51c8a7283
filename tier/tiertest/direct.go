package tiertest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Direct is a dirfs.Direct in host memory. It keeps each file open until Forget.
type Direct struct {
	testing.TB
	Fail   error  // returned by transfers, after they have moved half of their bytes
	Before func() // called before each read
	Opened func() // called before Open returns
	// Quiesced is returned by writes that fail.
	Quiesced <-chan struct{}
	// Writing is called with the contents of a file after each write.
	Writing func(b []byte)

	mu     sync.Mutex
	kept   map[string]dirfs.File
	held   int      // number of files in use
	missed []string // names of files that were removed before Forget
}

// NewDirect returns a Direct that closes its files at the end of the test.
func NewDirect(tb testing.TB) *Direct {
	tb.Helper()
	d := &Direct{TB: tb, kept: make(map[string]dirfs.File)}
	tb.Cleanup(func() {
		for _, f := range d.kept {
			if err := f.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return d
}

// Kept returns the number of files that are kept open.
func (d *Direct) Kept() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.kept)
}

// Held returns the number of files that were opened and not released.
func (d *Direct) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// Missed returns the names of files that were removed before Forget.
func (d *Direct) Missed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.missed
}

// Open implements dirfs.Direct.
func (d *Direct) Open(_ context.Context, dir dirfs.Dir, name string) (dirfs.DirectFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := dir.Stat(name); err != nil {
		return nil, err
	}
	f := d.kept[name]
	if f == nil {
		var err error
		if f, err = dir.Open(name, os.O_RDONLY); err != nil {
			return nil, err
		}
		d.kept[name] = f
	}
	if d.Opened != nil {
		d.Opened()
	}
	d.held++
	return &directFile{f, d}, nil
}

// OpenWriter implements dirfs.Direct.
func (d *Direct) OpenWriter(dir dirfs.Dir, name string, flag int) (dirfs.DirectWriter, error) {
	f, err := dir.Open(name, os.O_RDWR|flag)
	if err != nil {
		return nil, err
	}
	return &directWriter{f, d}, nil
}

// Forget implements dirfs.Direct.
func (d *Direct) Forget(dir dirfs.Dir, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.kept[name]
	if f == nil {
		return
	}
	delete(d.kept, name)
	if _, err := dir.Stat(name); err != nil {
		d.missed = append(d.missed, name)
	}
	if err := f.Close(); err != nil {
		d.Error(err)
	}
}

type directFile struct {
	dirfs.File
	d *Direct
}

// ReadDirect implements dirfs.DirectFile.
func (f *directFile) ReadDirect(ctx context.Context, dst mem.Extent, off int64) (<-chan struct{}, error) {
	if f.d.Before != nil {
		f.d.Before()
	}
	b := dst.Bytes()
	if f.d.Fail != nil {
		b = b[:len(b)/2]
	}
	return nil, errors.Join(dirfs.ReadFull(ctx, f.File, b, off), f.d.Fail)
}

// Release implements dirfs.DirectFile.
func (f *directFile) Release() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.held--
}

type directWriter struct {
	dirfs.File
	d *Direct
}

// WriteDirect implements dirfs.DirectWriter.
func (f *directWriter) WriteDirect(_ context.Context, src mem.Extent, off int64) (<-chan struct{}, error) {
	b := src.Bytes()
	if f.d.Fail != nil {
		b = b[:len(b)/2]
	}
	n, err := f.WriteAt(b, off)
	if f.d.Writing != nil {
		all := make([]byte, off+int64(n))
		if _, err := f.ReadAt(all, 0); err != nil {
			f.d.Error(err)
		}
		f.d.Writing(all)
	}
	if f.d.Fail != nil {
		return f.d.Quiesced, errors.Join(err, f.d.Fail)
	}
	return nil, err
}

// LeafFormat returns a format of two shards of whole leaves, 68 KiB in total.
func LeafFormat(tb testing.TB) block.Format {
	tb.Helper()
	l, err := block.NewLayout([]int64{64 << 10, 4 << 10})
	if err != nil {
		tb.Fatal(err)
	}
	return block.Format{Layout: l, Identity: block.Digest{1, 2, 3}}
}

// WantDirect reads a block directly, and checks its bytes and checksums.
func WantDirect(tb testing.TB, r tier.DirectReader, f block.Format, key block.Key) {
	tb.Helper()
	dst := Buffer(tb, f.Layout.ImageBytes())
	before := bytes.Clone(dst.Bytes()[:f.Layout.HeaderBytes()])
	sums, quiesced, err := r.ReadDirect(tb.Context(), key, dst, []uint64{7})
	if err != nil || quiesced != nil || len(sums) != 1+f.Layout.Shards() || sums[0] != 7 {
		tb.Errorf("block %s: %d checksums, %v", key, len(sums), err)
		return
	}
	if !bytes.Equal(dst.Bytes()[:len(before)], before) {
		tb.Error("the header's bytes were written")
	}
	if err := f.SealWith(dst.Bytes(), key, sums[1:]); err != nil {
		tb.Error(err)
	} else if err := Check(f, dst.Bytes(), key, 0); err != nil {
		tb.Errorf("the bytes that were read: %v", err)
	}
}

// WantNotDirect checks that a direct read fails with want, and does not change the error counters.
func WantNotDirect(tb testing.TB, r tier.DirectReader, f block.Format, key block.Key, want error) {
	tb.Helper()
	count := func() tier.Stats {
		s, _ := r.(tier.Statter)
		st := s.Stats()
		return tier.Stats{Misses: st.Misses, Hits: st.Hits, Corrupt: st.Corrupt, Errors: st.Errors, Quarantined: st.Quarantined}
	}
	before := count()
	sums, _, err := r.ReadDirect(tb.Context(), key, Buffer(tb, f.Layout.ImageBytes()), []uint64{7})
	if !errors.Is(err, want) || len(sums) != 1 {
		tb.Errorf("a direct read: %d checksums, %v, want %v", len(sums), err, want)
	}
	if after := count(); after != before {
		tb.Errorf("counters %+v became %+v", before, after)
	}
}

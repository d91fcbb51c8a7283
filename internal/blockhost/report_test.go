package blockhost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// A flush writes blocks again whose files were removed by another program.
func TestFlushFindsRemovedFiles(t *testing.T) {
	root := t.TempDir()
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: fileDisk(root)})
	must(t, err)
	f, keys := numbered(t, 0), []block.Key{{1}, {2}, {3}}
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	for _, key := range keys {
		must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
	}
	must(t, s.Flush(t.Context()))
	must(t, os.RemoveAll(filepath.Join(root, "a", f.Identity.String(), "02")))
	must(t, s.Flush(t.Context()))
	present, durable := make([]bool, 3), make([]bool, 3)
	must(t, s.Find(t.Context(), keys, present, durable))
	for i, d := range durable {
		if !d {
			t.Errorf("block %s is not durable after a flush", keys[i])
		}
	}
	if u := h.Usage("a"); u.DiskWrites != 4 {
		t.Errorf("%d writes of 3 blocks, of which one was removed", u.DiskWrites)
	}
	s.Release()
	must(t, h.Close(t.Context()))
}

// Evictions from disk, and writes to a full disk, are counted and reported.
func TestDiskReport(t *testing.T) {
	for name, test := range map[string]struct {
		bound, disk int64 // in images
		full        bool
	}{"bound": {bound: 4, disk: 1000}, "full disk": {bound: 1000, disk: 6, full: true}} {
		t.Run(name, func(t *testing.T) {
			f := format(t, 1, 60<<10)
			n := f.Layout.ImageBytes()
			disk := faultfs.NewDisk(nil)
			disk.SetLimit(test.disk * n)
			process, root := disk.Process(), "/blocks"
			var mu sync.Mutex
			var reports []DiskReport
			d := &Disk{
				Open: func(ctx context.Context, _ string, f block.Format) (tier.Tier, error) {
					c := file.Config{Dirs: []string{root}, Formats: block.Formats{f}, MaxBytes: test.bound * n, FS: process}
					return c.OpenTier(ctx)
				},
				Report: func(r DiskReport) {
					mu.Lock()
					defer mu.Unlock()
					reports = append(reports, r)
				},
			}
			h, err := New(Options{CapacityBytes: 4 << 20, Disk: d})
			must(t, err)
			s, err := h.Space(t.Context(), "a", f)
			must(t, err)
			for i := range 20 {
				key := block.Key{byte(i + 1)}
				must(t, put(s, key, sealed(t, f, key), 0, n))
				if err := s.Flush(t.Context()); err != nil && !errors.Is(err, errdefs.ErrNoSpace) {
					t.Fatal(err)
				}
				s.drop(key)
			}
			u := h.Usage("a")
			if u.DiskBlocks == 0 || u.DiskBlocks > 6 || u.DiskBytes != u.DiskBlocks*n || u.DiskEvictions == 0 || (u.DiskFull > 0) != test.full {
				t.Errorf("figures %+v", u)
			}
			s.noteWrite(nil, time.Now().Add(2*time.Second)) // a report may be due now
			mu.Lock()
			defer mu.Unlock()
			if len(reports) != 1 || reports[0].Tenant != "a" || (reports[0].Full != nil) != test.full || !test.full && reports[0].Evicted == 0 {
				t.Errorf("reports %+v", reports)
			}
			s.Release()
			must(t, h.Close(t.Context()))
		})
	}
}

// drop removes a block from memory.
func (s *Space) drop(key block.Key) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if e := s.blocks[key]; e != nil && e.users == 0 {
		e.drop()
	}
}

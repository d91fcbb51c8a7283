package blockhost

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

func fileDisk(root string) *Disk {
	return &Disk{Root: root, TenantBytes: 1 << 20, Open: func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
		c := file.Config{Dirs: []string{dir}, Formats: block.Formats{f}, Fsync: file.FsyncFile}
		return c.OpenTier(ctx)
	}}
}

// If a tenant has too many directories, the least recently used one is removed. Foreign directories
// and those in use stay.
func TestUnusedDirectoriesGo(t *testing.T) {
	root := t.TempDir()
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: fileDisk(root)})
	must(t, err)
	used, err := h.Space(t.Context(), "a", numbered(t, 0))
	must(t, err)
	dir := func(n int) string { return filepath.Join(root, "a", numbered(t, n).Identity.String()) }
	must(t, os.Mkdir(filepath.Join(root, "a", "foreign"), 0o700))
	for n := 1; n < maxSpaces; n++ {
		must(t, os.Mkdir(dir(n), 0o700))
		old := time.Now().Add(-time.Duration(n) * time.Minute)
		must(t, os.Chtimes(dir(n), old, old))
	}
	year := time.Now().Add(-365 * 24 * time.Hour)
	must(t, os.Chtimes(dir(0), year, year))
	another, err := h.Space(t.Context(), "a", numbered(t, maxSpaces))
	must(t, err)
	for n, want := range map[int]bool{0: true, 1: true, maxSpaces - 3: true, maxSpaces - 2: false, maxSpaces - 1: false, maxSpaces: true} {
		if _, err := os.Stat(dir(n)); (err == nil) != want {
			t.Errorf("directory %d: %v, want it: %t", n, err, want)
		}
	}
	_, err = os.Stat(filepath.Join(root, "a", "foreign"))
	must(t, err)
	used.Release()
	another.Release()
	must(t, h.Close(t.Context()))
}

// An identity that was closed to make space for another is opened again with its blocks.
func TestForgottenIdentityIsOpenedAgain(t *testing.T) {
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: fileDisk(t.TempDir())})
	must(t, err)
	f, key := numbered(t, 0), block.Key{1}
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
	must(t, s.Flush(t.Context()))
	s.Release()
	h.mu.Lock()
	if !h.tenants["a"].forgetSpace() || len(h.tenants["a"].spaces) != 0 {
		t.Error("the identity stays")
	}
	h.mu.Unlock()
	again, err := h.Space(t.Context(), "a", f)
	must(t, err)
	if again == s {
		t.Error("the space is the closed one")
	}
	_, err = again.Get(key)
	wantErr(t, "a block in memory", err, errdefs.ErrNotFound)
	b, err := again.Read(t.Context(), key)
	must(t, err)
	if b.Bytes()[f.Layout.ShardOff(0)] != key[0] {
		t.Error("the bytes differ")
	}
	b.Release()
	again.Release()
	must(t, h.Close(t.Context()))
	_, err = h.Space(t.Context(), "a", f)
	wantErr(t, "an identity of a closed host", err, errdefs.ErrClosed)
}

// Leases may cover up to half of a tenant's disk.
func TestLeasesHaveHalfOfTheDisk(t *testing.T) {
	f := format(t, 1, 60<<10)
	n := f.Layout.ImageBytes()
	h, err := New(Options{CapacityBytes: 4 << 20, Disk: fileDisk(t.TempDir())})
	must(t, err)
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	var leases []Block
	most := int(1 << 20 / 2 / n)
	for i := range most + 2 {
		key := block.Key{byte(i + 1)}
		must(t, put(s, key, sealed(t, f, key), 0, n))
		must(t, s.Flush(t.Context()))
		b, err := s.Lease(t.Context(), key)
		if i >= most {
			wantErr(t, "a lease beyond half of the disk", err, errdefs.ErrBusy)
			continue
		}
		must(t, err)
		leases = append(leases, b)
	}
	again, err := s.LeasePrefix(t.Context(), []block.Key{{1}, {2}, {3}}) // a block counts once
	if len(again) != 3 {
		t.Errorf("%d of 3 blocks with leases are leased again: %v", len(again), err)
	}
	for _, b := range append(leases, again...) {
		b.Release()
	}
	if u := h.Usage("a"); u.Leased != 0 {
		t.Errorf("%d blocks are leased", u.Leased)
	}
	s.Release()
	must(t, h.Close(t.Context()))
}

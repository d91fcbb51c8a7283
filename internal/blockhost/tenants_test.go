package blockhost

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// A quota bounds a tenant below the bound of all, and may change.
func TestQuotaOfATenant(t *testing.T) {
	f := format(t, 1, 4096)
	n := classBytes(f.Layout.ImageBytes())
	quota := 2 * n
	h, err := New(Options{CapacityBytes: 100 * n, TenantBytes: 5 * n, Quota: func(name string) int64 {
		if name == "a" {
			return quota
		}
		return 0
	}})
	must(t, err)
	fill := func(name string, first byte) int64 {
		s, err := h.Space(t.Context(), name, f)
		must(t, err)
		defer s.Release()
		for i := range byte(8) {
			key := block.Key{first + i}
			must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
		}
		return h.Usage(name).Blocks
	}
	for _, c := range []struct {
		name        string
		quota, want int64
	}{{"a", 2 * n, 2}, {"b", 2 * n, 5}, {"a", 50 * n, 5}, {"a", 0, 5}, {"a", n, 1}} {
		quota = c.quota
		if got := fill(c.name, byte(8*c.quota/n+1)); got != c.want {
			t.Errorf("tenant %s with a quota of %d blocks has %d, want %d", c.name, c.quota/n, got, c.want)
		}
	}
	quota = n / 2
	_, err = h.Space(t.Context(), "a", f)
	wantErr(t, "images longer than the quota", err, errdefs.ErrNoSpace)
	must(t, h.Close(t.Context()))
}

// A disk with a bound of identities has at most as many directories of a tenant.
func TestIdentitiesOnDiskAreBounded(t *testing.T) {
	root := t.TempDir()
	d := fileDisk(root)
	d.Identities = 3
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: d})
	must(t, err)
	var held []*Space
	for i := range 8 {
		s, err := h.Space(t.Context(), "a", numbered(t, i))
		must(t, err)
		if i >= 6 {
			held = append(held, s)
		} else {
			s.Release()
		}
		dirs, err := os.ReadDir(filepath.Join(root, "a"))
		must(t, err)
		if len(dirs) > 3 {
			t.Errorf("%d directories after %d identities", len(dirs), i+1)
		}
	}
	s, err := h.Space(t.Context(), "a", numbered(t, 8))
	must(t, err)
	_, err = h.Space(t.Context(), "a", numbered(t, 9))
	wantErr(t, "a fourth identity in use", err, errdefs.ErrNoSpace)
	for _, s := range append(held, s) {
		s.Release()
	}
	must(t, h.Close(t.Context()))
}

// hungTier is a tier whose reads and writes wait until its channel is closed.
type hungTier struct {
	tier.Tier
	hang chan struct{}
}

func (d *hungTier) Get(ctx context.Context, key block.Key, m mem.Extent) error {
	<-d.hang
	return d.Tier.Get(ctx, key, m)
}

func (d *hungTier) Put(ctx context.Context, key block.Key, m mem.Extent) error {
	<-d.hang
	return d.Tier.Put(ctx, key, m)
}

// While the disk of one identity hangs, blocks of another are read from disk and written to it.
func TestHangingIdentityLeavesOthersAlone(t *testing.T) {
	const blocks = 3 * diskReads
	bad, good := numbered(t, 0), numbered(t, 1)
	n := classBytes(bad.Layout.ImageBytes())
	open := func(root string, hang chan struct{}) *Disk {
		d := fileDisk(root)
		files := d.Open
		d.Open = func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
			below, err := files(ctx, dir, f)
			if err == nil && f.Identity == bad.Identity && hang != nil {
				below = &hungTier{below, hang}
			}
			return below, err
		}
		return d
	}
	root := t.TempDir()
	h, err := New(Options{CapacityBytes: 8 * blocks * n, Disk: open(root, nil)})
	must(t, err)
	fill := func(f block.Format, first, count int) *Space {
		s, err := h.Space(t.Context(), "a", f)
		must(t, err)
		for i := range count {
			key := block.Key{byte(first + i + 1)}
			must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
		}
		return s
	}
	for _, f := range []block.Format{bad, good} {
		s := fill(f, 0, blocks)
		must(t, s.Flush(t.Context()))
		s.Release()
	}
	must(t, h.Close(t.Context()))

	hang := make(chan struct{})
	h, err = New(Options{CapacityBytes: 8 * blocks * n, Disk: open(root, hang)})
	must(t, err)
	var waiting sync.WaitGroup
	s := fill(bad, blocks, blocks) // writes that hang
	for i := range blocks {
		waiting.Go(func() {
			if b, err := s.Read(context.Background(), block.Key{byte(i + 1)}); err == nil {
				b.Release()
			} else {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	other := fill(good, blocks, blocks)
	if err := other.Flush(ctx); err != nil {
		t.Errorf("flush of another identity: %v", err)
	}
	for i := range blocks {
		b, err := other.Read(ctx, block.Key{byte(i + 1)})
		must(t, err)
		b.Release()
	}
	close(hang)
	waiting.Wait()
	must(t, s.Flush(t.Context()))
	s.Release()
	other.Release()
	must(t, h.Close(t.Context()))
}

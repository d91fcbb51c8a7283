package blockhost

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/owner"
)

// Commands reach a host that has a directory open. It removes blocks in memory and on disk, except
// leased ones.
func TestCommandsReachTheHost(t *testing.T) {
	root := t.TempDir()
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: fileDisk(root)})
	must(t, err)
	f := numbered(t, 0)
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	keys := []block.Key{{1}, {2}, {3}}
	for _, key := range keys {
		image := sealed(t, f, key)
		must(t, put(s, key, image, 0, int64(len(image))))
	}
	must(t, s.Flush(t.Context()))
	b, err := s.Lease(t.Context(), keys[0])
	must(t, err)
	dir := filepath.Join(root, "a", f.Identity.String())
	owners, err := file.Owners(t.Context(), dir)
	must(t, err)
	if len(owners) != 1 {
		t.Fatalf("%d owners", len(owners))
	}
	c := owners[0]
	must(t, c.Pin(t.Context(), keys[1:2]))
	r, err := c.Remove(t.Context(), keys)
	if err != nil || !slices.Equal(r.Keys, keys[2:]) || !errors.Is(r.Left, errdefs.ErrBusy) {
		t.Errorf("removed %v, left %v: %v", r.Keys, r.Left, err)
	}
	if r.Left == nil || r.Left.Error() != "1 blocks are in use: busy; 1 blocks: pinned, and kept until it is unpinned: busy" {
		t.Errorf("the leased and the pinned block: %v", r.Left)
	}
	for i, want := range []bool{true, true, false} {
		if got, err := s.Read(t.Context(), keys[i]); (err == nil) != want {
			t.Errorf("block %d: %v, want it: %t", i, err, want)
		} else if err == nil {
			got.Release()
		}
	}
	why, err := c.Why(t.Context(), keys[1:])
	if err != nil || !why[0].Stored || !strings.Contains(why[1].Text, "removed from tier file by a request") {
		t.Errorf("why: %+v, %v", why, err)
	}
	must(t, c.Unpin(t.Context(), keys))
	must(t, c.Close())
	b.Release()
	s.Release()
	must(t, h.Close(context.Background()))
	if owners, err = file.Owners(t.Context(), dir); len(owners) > 0 || err != nil {
		t.Errorf("a closed host: %d owners, %v", len(owners), err)
	}
}

// closing is a tier whose host is closed while the tier begins to serve commands.
type closing struct {
	*file.Tier
	close  func()
	closed atomic.Bool
}

func (c *closing) Serve(o owner.Owner) ([]*owner.Server, error) {
	c.close()
	return c.Tier.Serve(o)
}

func (c *closing) Close(ctx context.Context) error {
	c.closed.Store(true)
	return c.Tier.Close(ctx)
}

// A directory that is being opened while the host closes does not stay open.
func TestCloseWhileADirectoryIsOpened(t *testing.T) {
	var h *Host
	var c *closing
	d := fileDisk(t.TempDir())
	open := d.Open
	d.Open = func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
		opened, err := open(ctx, dir, f)
		if err != nil {
			return nil, err
		}
		real, ok := opened.(*file.Tier)
		if !ok {
			t.Fatalf("the tier is a %T", opened)
		}
		c = &closing{Tier: real, close: func() { must(t, h.Close(context.Background())) }}
		return c, nil
	}
	h, err := New(Options{CapacityBytes: 1 << 20, Disk: d})
	must(t, err)
	s, err := h.Space(t.Context(), "a", numbered(t, 0))
	if err == nil {
		s.Release()
	}
	wantErr(t, "an identity of a closed host", err, errdefs.ErrClosed)
	if !c.closed.Load() {
		t.Error("the directory stays open")
	}
}

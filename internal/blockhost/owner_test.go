package blockhost

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
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

package file_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A removed block is not found again after a power failure, whether a tier has removed it or Remove.
func TestRemovedBlockStaysRemoved(t *testing.T) {
	for name, remove := range map[string]func(m *machine, p *proc) (file.Removed, error){
		"by a tier": func(m *machine, p *proc) (file.Removed, error) {
			return p.Remove(m.Context(), []block.Key{tiertest.Key(1), tiertest.Key(9)})
		},
		"by Remove": func(m *machine, p *proc) (file.Removed, error) {
			m.kill(p)
			return file.RemoveOn(m.Context(), m.disk.Process(), "/srv/kv", file.Selection{Keys: []block.Key{tiertest.Key(1), tiertest.Key(9)}})
		},
	} {
		for outcome, s := range survivals() {
			m := newMachine(t, false)
			p := m.start(durable)
			m.put(p, tiertest.Key(0), tiertest.Key(1))
			r, err := remove(m, p)
			if err = errors.Join(err, r.Left); err != nil || len(r.Keys) != 1 || r.Bytes != m.format.Layout.ImageBytes() {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			m.powerFail(s)
			p = m.start(durable)
			if err := get(t, p.Tier, m.format, tiertest.Key(1)); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("%s, after %s survived: the removed block: %v", name, outcome, err)
			}
			if err := get(t, p.Tier, m.format, tiertest.Key(0)); err != nil {
				t.Errorf("%s, after %s survived: the other block: %v", name, outcome, err)
			}
		}
	}
}

// Remove refuses retained blocks and directories that a process has open.
func TestRemoveRefusesBlocksInUse(t *testing.T) {
	dir, f := t.TempDir(), tiertest.NewFormat(t)
	c := file.Config{Dirs: []string{dir}, Formats: block.Formats{f}}
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	keys := []block.Key{tiertest.Key(0), tiertest.Key(1), tiertest.Key(2)}
	for _, key := range keys {
		if err := tr.Put(t.Context(), key, image(t, f, key)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := tr.Retain(t.Context(), keys[1:2]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r, err := tr.Remove(t.Context(), keys)
	if err != nil || len(r.Keys) != 2 || !errors.Is(r.Left, errdefs.ErrBusy) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := get(t, tr, f, keys[1]); err != nil {
		t.Errorf("the retained block: %v", err)
	}
	if _, err := file.Remove(t.Context(), dir, file.Selection{}); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("remove blocks of an open directory: %v", err)
	}
	tr.Release(keys[1:2])
	if s := tr.Stats(); s.Blocks != 1 {
		t.Errorf("%d blocks are counted", s.Blocks)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := file.Remove(t.Context(), dir, file.Selection{Before: time.Now().Add(-time.Hour)}); err != nil || len(r.Keys) > 0 {
		t.Errorf("remove old blocks: %+v, %v", r, err)
	}
	if r, err := file.Remove(t.Context(), dir, file.Selection{Identity: block.Digest{1}}); err != nil || len(r.Keys) > 0 {
		t.Errorf("remove blocks of another identity: %+v, %v", r, err)
	}
	if r, err := file.Remove(t.Context(), dir, file.Selection{Identity: f.Identity}); err != nil || r.Left != nil || len(r.Keys) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Blocks are removed while other goroutines put, retain and read them. No read returns wrong bytes,
// and no retained block is missing.
func TestRemoveDuringReadsAndWrites(t *testing.T) {
	f := tiertest.NewFormat(t)
	tr, err := file.Open(t.Context(), file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{f}, Fsync: file.FsyncNever})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	tiertest.RemoveDuringUse(ctx, t, tr, f, func(ctx context.Context, keys []block.Key) (int, error) {
		r, err := tr.Remove(ctx, keys)
		if errors.Is(r.Left, errdefs.ErrBusy) {
			r.Left = nil
		}
		return len(r.Keys), errors.Join(err, r.Left)
	})
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

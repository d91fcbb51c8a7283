package file_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Pins and their blocks survive a kill and a power failure under every policy, and removed pins do
// not come back.
func TestPinsSurvive(t *testing.T) {
	pinned, unpinned := tiertest.Key(0), tiertest.Key(1)
	sel := file.Selection{Keys: []block.Key{pinned, unpinned}}
	for name, pin := range map[string]func(m *machine, p *proc) error{
		"by a tier": func(m *machine, p *proc) error {
			return errors.Join(p.Pin(m.Context(), sel.Keys), p.Unpin(m.Context(), sel.Keys[1:]))
		},
		"by Pin": func(m *machine, p *proc) error {
			m.kill(p)
			_, err := file.PinOn(m.Context(), m.disk.Process(), "/srv/kv", sel, 1<<30)
			_, uerr := file.UnpinOn(m.Context(), m.disk.Process(), "/srv/kv", file.Selection{Keys: sel.Keys[1:]})
			return errors.Join(err, uerr)
		},
	} {
		for _, policy := range []file.FsyncPolicy{file.FsyncNever, file.FsyncFile} {
			for outcome, s := range survivals() {
				m := newMachine(t, false)
				c := file.Config{Fsync: policy, MaxBytes: 8 * m.format.Layout.ImageBytes()}
				p := m.start(c)
				m.put(p, sel.Keys...)
				m.must(pin(m, p))
				m.powerFail(s)
				p = m.start(c)
				if st := p.Stats(); st.Pinned != 1 {
					t.Errorf("%s, %s, after %s survived: %d blocks are pinned", name, policy, outcome, st.Pinned)
				}
				m.put(p, keys(2, 20)...)
				if err := get(t, p.Tier, m.format, pinned); err != nil {
					t.Errorf("%s, %s, after %s survived: the pinned block: %v", name, policy, outcome, err)
				}
				if err := get(t, p.Tier, m.format, unpinned); !errors.Is(err, errdefs.ErrNotFound) {
					t.Errorf("%s, %s, after %s survived: the unpinned block: %v", name, policy, outcome, err)
				}
			}
		}
	}
}

// Every process that has a directory open respects the pins of the others.
func TestPinsOfAnotherProcess(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	c.MaxBytes = 8 * f.Layout.ImageBytes()
	first, second := open(t, c), open(t, c)
	put(t, second, f, keys(0, 3)...)
	pinned := keys(0, 2)
	if err := first.Pin(t.Context(), pinned); err != nil {
		t.Fatal(err)
	}
	if err := second.Delete(t.Context(), pinned[0]); !errors.Is(err, file.ErrPinned) {
		t.Errorf("delete: %v", err)
	}
	if r, err := second.Remove(t.Context(), keys(0, 3)); err != nil || len(r.Keys) != 1 || !errors.Is(r.Left, file.ErrPinned) {
		t.Errorf("remove: %+v, %v", r, err)
	}
	put(t, second, f, keys(3, 40)...)
	if n, err := second.GC(t.Context(), 0); n == 0 || err != nil {
		t.Errorf("collect: %d, %v", n, err)
	}
	if r, err := file.GC(t.Context(), c.Dirs[0], 0, nil); err != nil || r.Left != nil || r.After != 2*f.Layout.ImageBytes() {
		t.Errorf("collect the directory: %+v, %v", r, err)
	}
	for _, key := range pinned {
		if err := get(t, second, f, key); err != nil {
			t.Error(err)
		}
	}
	if st := second.Stats(); st.Pinned != 2 || st.Blocks != 2 || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
	// The limit counts pins of all processes.
	put(t, second, f, keys(3, 6)...)
	if err := second.Pin(t.Context(), keys(3, 6)); !errors.Is(err, file.ErrPinLimit) {
		t.Errorf("pin above the limit: %v", err)
	}
	if err := first.Unpin(t.Context(), pinned); err != nil {
		t.Fatal(err)
	}
	if r, err := second.Remove(t.Context(), pinned); err != nil || len(r.Keys) != 2 || r.Left != nil {
		t.Errorf("remove unpinned blocks: %+v, %v", r, err)
	}
}

// A process that finds a pinned block damaged removes the pin, also one that another process has
// just made.
func TestPinOfAnotherProcessAndDamage(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	first, second := open(t, c), open(t, c)
	put(t, first, f, keys(0, 2)...)
	if err := second.Pin(t.Context(), keys(0, 2)); err != nil {
		t.Fatal(err)
	}
	flip(t, find(t, c.Dirs, tiertest.Key(0)), f.Layout.ShardOff(1))
	if err := get(t, first, f, tiertest.Key(0)); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(c.Dirs[0], blockdir.PinsName))
	if err != nil {
		t.Fatal(err)
	}
	if set, err := blockdir.ParsePins(b); err != nil || !maps.Equal(set, blockdir.PinSet{tiertest.Key(1): true}) {
		t.Errorf("%v, %v", set, err)
	}
}

// The folder of an unused identity keeps its pinned blocks while others with the same bound are
// written, and its pins count toward their limit.
func TestPinsOfAnUnusedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		idle := s.config(1)
		tr := s.open(idle)
		s.fill(tr, &idle, 0, 20)
		if err := tr.Pin(t.Context(), keys(0, 5)); err != nil {
			t.Fatal(err)
		}
		s.close(tr)
		c := s.config(2)
		tr = s.open(c)
		s.fill(tr, &c, 0, 2*sharedBlocks)
		if n := s.blocks(1); n != 5 {
			t.Errorf("%d blocks of the unused folder are left, 5 are pinned", n)
		}
		if n := s.all(sharedBlocks); n < sharedBlocks/2 {
			t.Errorf("%d blocks are left", n)
		}
		const half = sharedBlocks / 2
		if err := tr.Pin(t.Context(), keys(2*sharedBlocks-half+4, 2*sharedBlocks)); !errors.Is(err, file.ErrPinLimit) {
			t.Errorf("pin of %d blocks, with 5 in another folder: %v", half-4, err)
		}
		if err := tr.Pin(t.Context(), keys(2*sharedBlocks-half+5, 2*sharedBlocks)); err != nil {
			t.Errorf("pin of %d blocks, with 5 in another folder: %v", half-5, err)
		}
		s.close(tr)
		if _, err := file.UnpinOn(t.Context(), s.disk.Process(), idle.Dirs[0], file.Selection{}); err != nil {
			t.Fatal(err)
		}
		c = s.config(3)
		tr = s.open(c)
		s.fill(tr, &c, 0, 2*sharedBlocks)
		if s.exists(1) {
			t.Error("the folder with unpinned blocks still exists")
		}
	})
}

// If the list of pins is damaged, its intact entries are in force. Verify reports the damage, and
// Repair writes the list again.
func TestDamagedPins(t *testing.T) {
	c := config(t)
	f, dir := c.Formats[0], c.Dirs[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 4)...)
	if err := tr.Pin(t.Context(), keys(0, 3)); err != nil {
		t.Fatal(err)
	}
	if n := tr.Notes(); len(n) > 0 {
		t.Errorf("%q", n)
	}
	name := filepath.Join(dir, blockdir.PinsName)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	write(t, name, string(b))
	other := open(t, c)
	if st := other.Stats(); st.Pinned != 2 || st.Errors != 1 {
		t.Errorf("%+v", st)
	}
	if n := strings.Join(other.Notes(), "\n"); !strings.Contains(n, dir) || !strings.Contains(n, "2 entries are intact") {
		t.Errorf("%q", n)
	}
	if n, err := other.GC(t.Context(), 0); n != 2 || err != nil {
		t.Errorf("collect: %d, %v", n, err)
	}
	r, err := file.Verify(t.Context(), dir, nil)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Path != name || r.Findings[0].Problem != file.Damaged {
		t.Errorf("%+v, %v", r.Findings, err)
	}
	if r, err := file.Repair(t.Context(), dir, nil); err != nil || len(r.Unrepaired) > 0 {
		t.Errorf("%+v, %v", r.Unrepaired, err)
	}
	if in, err := file.Inspect(t.Context(), dir); err != nil || in.Pinned.Blocks != 2 || in.Pinned.Bytes != 2*f.Layout.ImageBytes() {
		t.Errorf("%+v, %v", in.Pinned, err)
	}
	// Repair removes the pin of a damaged block.
	flip(t, find(t, c.Dirs, pinnedOf(t, dir)[0]), f.Layout.ShardOff(1))
	if r, err := file.Repair(t.Context(), dir, nil); err != nil || r.SetAside != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	put(t, other, f, keys(0, 4)...)
	if left := pinnedOf(t, dir); len(left) != 1 {
		t.Errorf("%v are pinned", left)
	}
	// A folder in place of the list is damage too.
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, other, f, keys(0, 4)...)
	if n, err := other.GC(t.Context(), 0); n != 4 || err != nil {
		t.Errorf("collect with a folder for the list: %d, %v", n, err)
	}
}

// pinnedOf returns the pinned blocks that List yields.
func pinnedOf(t *testing.T, dir string) (pinned []block.Key) {
	t.Helper()
	err := file.List(t.Context(), dir, func(e file.Entry) error {
		if e.Pinned {
			pinned = append(pinned, e.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pinned
}

// Pin and Unpin while operation N of each kind fails, for all N. A failed call reports the fault.
// The blocks that are pinned afterwards are those that the calls have reported.
func TestPinWithEveryOperationFailing(t *testing.T) {
	for _, op := range []string{"open", "stat", "fstat", "rename", "remove", "write", "sync", "lock", "close"} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, nil, func(t *testing.T, plan *fault.Plan) error {
				c := config(t)
				f := c.Formats[0]
				faults := faultfs.New(dirfs.OS(), nil, nil)
				c.FS = faults
				tr := open(t, c)
				put(t, tr, f, keys(0, 2)...)
				if err := tr.Pin(t.Context(), keys(1, 2)); err != nil {
					t.Fatal(err)
				}
				faults.Use(plan)
				perr := tr.Pin(t.Context(), keys(0, 1))
				uerr := tr.Unpin(t.Context(), keys(1, 2))
				faults.Use(nil)
				left := pinnedOf(t, c.Dirs[0])
				if perr == nil && (len(left) == 0 || left[0] != tiertest.Key(0)) {
					t.Errorf("pin succeeded, and %v are pinned", left)
				}
				if uerr == nil && len(left) > 0 && left[len(left)-1] == tiertest.Key(1) {
					t.Errorf("unpin succeeded, and %v are pinned", left)
				}
				if n, err := tr.GC(t.Context(), 0); n != 2-len(left) || err != nil {
					t.Errorf("%d of 2 blocks were evicted, %d are pinned: %v", n, len(left), err)
				}
				if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
				if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() {
					t.Errorf("%+v, %v", r.Findings, err)
				}
				return errors.Join(perr, uerr)
			})
		})
	}
}

package file_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// sharedBlocks is the shared bound of the tests below, in blocks.
const sharedBlocks = 64

// tenants simulates processes that share a directory of a simulated disk. Each has its own identity
// and folder.
type tenants struct {
	t    *testing.T
	disk *faultfs.Disk
	size int64 // bytes of a block
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	s := &tenants{t: t, disk: faultfs.NewDisk(nil), size: tiertest.NewFormat(t).Layout.ImageBytes()}
	return s
}

// config returns the configuration of a tenant. Its number determines its identity and its folder.
func (s *tenants) config(tenant int) file.Config {
	f := tiertest.NewFormat(s.t)
	f.Identity[5] = byte(tenant)
	return file.Config{
		Dirs: []string{"kv/" + folderOf(tenant)}, SharedBound: true, Formats: block.Formats{f},
		MaxBytes: sharedBlocks * s.size, FS: s.disk.Process(),
	}
}

func folderOf(tenant int) string { return fmt.Sprintf("kv-%d", tenant) }

// open opens a tenant's tier and closes it when the test ends. The test may close or kill it
// earlier.
func (s *tenants) open(c file.Config) *file.Tier {
	s.t.Helper()
	tr, err := file.Open(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tr.Close(context.WithoutCancel(s.t.Context())) })
	return tr
}

// fill stores blocks, one each millisecond.
func (s *tenants) fill(tr *file.Tier, c *file.Config, from, to int) {
	s.t.Helper()
	for _, key := range keys(from, to) {
		time.Sleep(time.Millisecond)
		if err := tr.Put(s.t.Context(), key, image(s.t, c.Formats[0], key)); err != nil {
			s.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (s *tenants) close(tr *file.Tier) {
	s.t.Helper()
	if err := tr.Close(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// blocks counts the blocks in a tenant's folder on disk.
func (s *tenants) blocks(tenant int) int {
	s.t.Helper()
	n, d := 0, s.dir(".")
	buckets, err := d.ReadDir(folderOf(tenant))
	if err != nil && !blockdir.Gone(err) {
		s.t.Fatal(err)
	}
	for _, b := range buckets {
		if len(b) == 2 {
			names, err := d.ReadDir(folderOf(tenant) + "/" + b)
			if err != nil {
				s.t.Fatal(err)
			}
			n += len(names)
		}
	}
	return n
}

func (s *tenants) all(most int) int {
	n := 0
	for i := range most {
		n += s.blocks(i)
	}
	return n
}

// dir opens a folder below the directory from a separate process.
func (s *tenants) dir(name string) dirfs.Dir {
	s.t.Helper()
	d, err := s.disk.Process().OpenDir("kv/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = d.Close() })
	return d
}

// record changes a tenant's record.
func (s *tenants) record(tenant int, change func(r *blockdir.Record)) {
	s.t.Helper()
	d := s.dir(folderOf(tenant))
	r, err := blockdir.ReadRecord(d)
	if err == nil {
		change(&r)
		err = blockdir.WriteRecord(d, blockdir.RecordTemp, r)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *tenants) exists(tenant int) bool {
	s.t.Helper()
	_, err := s.dir(".").Stat(folderOf(tenant))
	return err == nil
}

// Tenants that run one after another stay within one bound. Blocks of folders that no process has
// open are evicted first, the least recently used folder before the others. A folder without blocks
// is removed.
func TestFoldersShareOneBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		const each = 30
		for tenant := range 5 {
			c := s.config(tenant)
			tr := s.open(c)
			s.fill(tr, &c, 0, each)
			if n := s.all(5); n > sharedBlocks {
				t.Errorf("after tenant %d there are %d blocks, the bound is %d", tenant, n, sharedBlocks)
			}
			if n := s.blocks(tenant); n != each {
				t.Errorf("tenant %d has %d of its %d blocks, while others' are not used", tenant, n, each)
			}
			s.close(tr)
			time.Sleep(time.Hour)
		}
		if s.exists(0) || s.exists(1) {
			t.Error("a folder without blocks is still there")
		}
		// Opening the older of two folders makes the other one the least recently used.
		c := s.config(3)
		tr := s.open(c)
		n3, n4 := s.blocks(3), s.blocks(4)
		s.close(tr)
		c = s.config(7)
		s.fill(s.open(c), &c, 0, 20)
		if s.blocks(3) != n3 || s.blocks(4) >= n4 {
			t.Errorf("the folder used last changed from %d to %d blocks, the other folder from %d to %d", n3, s.blocks(3), n4, s.blocks(4))
		}
	})
}

// A tenant that writes many blocks loses none of them while closed folders still have blocks.
func TestIdleFoldersGoBeforeWhatIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c0, c1 := s.config(0), s.config(1)
		tr := s.open(c0)
		s.fill(tr, &c0, 0, sharedBlocks*9/10)
		s.close(tr)
		tr = s.open(c1)
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for _, key := range keys(w*14, w*14+14) {
					if err := tr.Put(t.Context(), key, image(t, c1.Formats[0], key)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		synctest.Wait()
		if n := s.blocks(1); n != 56 || s.all(2) > sharedBlocks {
			t.Errorf("%d of 56 blocks are left, and %d of an identity that is not used", n, s.blocks(0))
		}
	})
}

// Live owners share the bound: each evicts in proportion to its bytes, and a new owner gets space.
// All together exceed the bound by at most a sixteenth.
func TestLiveOwnersShareTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c0, c1 := s.config(0), s.config(1)
		first := s.open(c0)
		s.fill(first, &c0, 0, sharedBlocks)
		second := s.open(c1)
		most := 0
		for round := range 40 {
			s.fill(second, &c1, round*8, round*8+8)
			most = max(most, s.all(2))
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := s.all(2); round > 2 && n > sharedBlocks {
				t.Errorf("round %d: %d blocks after a minute, the bound is %d", round, n, sharedBlocks)
			}
		}
		if most > sharedBlocks+sharedBlocks/16+1 {
			t.Errorf("the directory had %d blocks, the bound is %d", most, sharedBlocks)
		}
		n0, n1 := s.blocks(0), s.blocks(1)
		if n1 < sharedBlocks/4 || n0 < 1 {
			t.Errorf("the writing tenant has %d blocks, the idle tenant %d", n1, n0)
		}
		st := first.Stats()
		if st.Yielded == 0 || st.Yielded > st.Evictions || st.OthersBytes == 0 || st.CapacityBytes != sharedBlocks*s.size {
			t.Errorf("the tenant that yielded counts %+v", st)
		}
		// If both tenants write, both keep blocks.
		for round := range 20 {
			s.fill(first, &c0, 1000+round*8, 1000+round*8+8)
			s.fill(second, &c1, 1000+round*8, 1000+round*8+8)
			time.Sleep(time.Minute)
		}
		if n0, n1 := s.blocks(0), s.blocks(1); n0 < sharedBlocks/5 || n1 < sharedBlocks/5 || n0+n1 > sharedBlocks+sharedBlocks/16 {
			t.Errorf("two tenants write equally, but the first has %d blocks and the second %d", n0, n1)
		}
	})
}

// After one owner has evicted, the others see the new sum before they evict. Owners above their
// share must not all evict the same excess.
func TestOwnersDoNotYieldTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		var tiers []*file.Tier
		for tenant := range 4 { // each tenant has two processes, the first with a larger bound
			c := s.config(tenant)
			c.MaxBytes *= 4
			tr := s.open(c)
			s.fill(tr, &c, 0, sharedBlocks/2)
		}
		time.Sleep(2 * time.Minute)
		for tenant := range 4 {
			tiers = append(tiers, s.open(s.config(tenant)))
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := s.all(4); n > sharedBlocks || n < sharedBlocks*3/4 {
			t.Errorf("%d blocks are left, the bound is %d", n, sharedBlocks)
		}
		for i := range tiers {
			if n := s.blocks(i); n < sharedBlocks/8 {
				t.Errorf("tenant %d has %d blocks", i, n)
			}
		}
	})
}

// If locks show that an owner is dead, its folder is reclaimed at once. An owner on another host
// counts as live until its record is ten minutes old.
func TestOwnerIsKilled(t *testing.T) {
	for _, other := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newTenants(t)
			dead, c := s.config(0), s.config(1)
			process := s.disk.Process()
			dead.FS = process
			if other {
				dead = file.OnHost(dead, "another host")
			}
			s.fill(s.open(dead), &dead, 0, 40)
			if other { // another host has only the record; on this host the blocks are counted
				time.Sleep(time.Minute)
				synctest.Wait()
			}
			process.Kill()
			tr := s.open(c)
			s.fill(tr, &c, 0, 40)
			if n := s.blocks(0); other != (n == 40) {
				t.Errorf("owner on another host %v: the dead owner has %d of 40 blocks", other, n)
			}
			if st := tr.Stats(); other != (st.Reclaimed == 0) || s.all(2) > sharedBlocks+sharedBlocks/16 {
				t.Errorf("owner on another host %v: %+v, %d blocks", other, st, s.all(2))
			}
			time.Sleep(11 * time.Minute)
			s.fill(tr, &c, 40, 90)
			if n := s.blocks(0); n > 20 {
				t.Errorf("owner on another host %v: after ten minutes the dead owner has %d of 40 blocks", other, n)
			}
		})
	}
}

// A record of another host may have a time in the future. It then counts as renewed when it was
// first seen.
func TestRecordAheadOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c0, c1 := s.config(0), s.config(1)
		tr := s.open(c0)
		s.fill(tr, &c0, 0, 40)
		s.close(tr)
		s.record(0, func(r *blockdir.Record) {
			r.Renewed, r.Used = time.Now().Add(1000*time.Hour), time.Now().Add(1000*time.Hour)
			r.Host, r.Closed = "another host", false
		})
		second := s.open(c1)
		s.fill(second, &c1, 0, 40)
		if n := s.blocks(0); n != 40 {
			t.Errorf("%d of 40 blocks are left, while their owner counts as live", n)
		}
		time.Sleep(11 * time.Minute)
		s.fill(second, &c1, 40, 80)
		if n := s.blocks(0); n > 20 {
			t.Errorf("%d of 40 blocks are left", n)
		}
	})
}

// Records are checked before blocks are evicted. A record that claims too much does not cost other
// tenants blocks. A folder without a record, from an earlier release, also counts.
func TestRecordsAreChecked(t *testing.T) {
	for name, lie := range map[string]func(s *tenants){
		"too much":   func(s *tenants) { s.record(1, func(r *blockdir.Record) { r.Blocks, r.Bytes = 1<<30, 1<<40 }) },
		"impossible": func(s *tenants) { s.record(1, func(r *blockdir.Record) { r.Blocks, r.Bytes = 1, 1<<40 }) },
		"too little": func(s *tenants) { s.record(1, func(r *blockdir.Record) { r.Blocks, r.Bytes = 0, 0 }) },
		"none": func(s *tenants) {
			if err := s.dir(folderOf(1)).Remove(blockdir.RecordName); err != nil {
				s.t.Fatal(err)
			}
		},
		"no record": func(s *tenants) {
			d := s.dir(folderOf(1))
			if _, err := blockdir.WriteFile(d, "x", []byte("{"), false); err != nil {
				s.t.Fatal(err)
			}
			if err := d.Rename("x", blockdir.RecordName, true); err != nil {
				s.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTenants(t)
				for tenant := range 2 {
					c := s.config(tenant)
					tr := s.open(c)
					s.fill(tr, &c, 0, 15)
					s.close(tr)
				}
				lie(s)
				c := s.config(2)
				tr := s.open(c)
				s.fill(tr, &c, 0, 20)
				if n := s.all(3); n != 50 {
					t.Errorf("%d of 50 blocks are left, below the bound of %d", n, sharedBlocks)
				}
				s.fill(tr, &c, 20, 50)
				if n := s.all(3); n > sharedBlocks || s.blocks(2) != 50 {
					t.Errorf("%d blocks, %d of them of the tenant that writes; the bound is %d", n, s.blocks(2), sharedBlocks)
				}
			})
		})
	}
}

// If a live owner on another host claims more than is possible, the others keep the minimum of a
// new folder.
func TestLiveOwnerClaimsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		c0, c1 := s.config(0), s.config(1)
		s.close(s.open(c0))
		s.record(0, func(r *blockdir.Record) {
			r.Host, r.Closed, r.Blocks, r.Bytes, r.Renewed = "another host", false, 1<<40, 1<<50, time.Now().Add(time.Minute)
		})
		tr := s.open(c1)
		s.fill(tr, &c1, 0, 20)
		if n := s.blocks(1); n < sharedBlocks/32 || n > sharedBlocks/2 {
			t.Errorf("%d blocks are left", n)
		}
	})
}

// Only folders with a valid marker are counted and removed.
func TestFoldersThatAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTenants(t)
		for tenant := range 2 {
			c := s.config(tenant)
			tr := s.open(c)
			s.fill(tr, &c, 0, 20)
			s.close(tr)
		}
		if err := s.dir(folderOf(0)).Remove(blockdir.MarkerName); err != nil {
			t.Fatal(err)
		}
		d := s.dir(folderOf(1))
		for name, text := range map[string]string{"notes": "mine", "x": "{"} {
			if _, err := blockdir.WriteFile(d, name, []byte(text), false); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Rename("x", blockdir.MarkerName, true); err != nil {
			t.Fatal(err)
		}
		c2, c3 := s.config(2), s.config(3)
		tr := s.open(c2)
		s.fill(tr, &c2, 0, 30)
		if _, err := blockdir.WriteFile(s.dir(folderOf(2)), "notes", []byte("mine"), false); err != nil {
			t.Fatal(err)
		}
		s.close(tr)
		last := s.open(c3)
		s.fill(last, &c3, 0, sharedBlocks)
		if a, b := s.blocks(0), s.blocks(1); a != 20 || b != 20 {
			t.Errorf("in folders without a valid marker %d and %d of 20 blocks are left", a, b)
		}
		if st := last.Stats(); s.blocks(2) != 0 || st.Failure != nil || st.OthersBytes != 0 {
			t.Errorf("%d blocks are left of the tenant before, %+v", s.blocks(2), st)
		}
		// A folder with a foreign file stays, and can be opened.
		if _, err := s.dir(folderOf(2)).Stat("notes"); err != nil {
			t.Error(err)
		}
		s.open(c2)
	})
}

// The part of a bound is the rest that others leave, or at least a share. All parts together exceed
// the bound by at most a sixteenth.
func TestPartOfABound(t *testing.T) {
	c := file.Config{Formats: block.Formats{tiertest.NewFormat(t)}}
	unit := c.Formats.MaxImageBytes()
	c.MaxBytes = 100 * unit
	for _, want := range [][6]int64{ // own, others, folders; most, high, low: in blocks
		{0, 0, 0, 100, 95, 90},
		{50, 0, 3, 100, 95, 90},
		{50, 40, 1, 60, 55, 50},
		{10, 80, 1, 20, 15, 10},
		{50, 50, 1, 50, 47, 45},
		{150, 50, 1, 75, 71, 67},
		{0, 100, 1, 3, 3, 2},
		{1, 500, 4, 1, 1, 0},
		{0, 0, 1 << 20, 100, 95, 90},
	} {
		most, high, low := file.Part(&c, want[0]*unit, want[1]*unit, int(want[2]))
		if got := [3]int64{most / unit, high / unit, low / unit}; got != [3]int64(want[3:]) || most%unit+high%unit+low%unit != 0 {
			t.Errorf("bound with %d own and %d other blocks in %d folders: %d", want[0], want[1], want[2], got)
		}
	}
	for own := range int64(200) {
		for others := int64(0); others < 1<<62; others = others*3 + 1 {
			most, high, low := file.Part(&c, own*unit, min(others, 1<<40)*unit, 3)
			if low < 0 || low > most-unit || high > most || most < unit || most > c.MaxBytes {
				t.Fatalf("bound with %d own and %d other blocks: %d, %d, %d", own, others, most/unit, high/unit, low/unit)
			}
		}
	}
}

// A directory with a shared bound needs a parent, and must be the only such directory of the tier.
func TestDirectoriesWithASharedBound(t *testing.T) {
	for dirs, ok := range map[string]bool{
		"/kv/a": true, "/kv/a /other/a": true, "a": true, "../a": true, "/a/": true,
		"/": false, "//": false, "/a/..": false, ".": false, "..": false, "a/..": false, "../..": false, "/kv/a /kv/b": false, "a b": false,
	} {
		c := file.Config{Dirs: strings.Fields(dirs), SharedBound: true, Formats: block.Formats{tiertest.NewFormat(t)}}
		if err := c.Validate(); (err == nil) != ok || err != nil && !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("directories %q: %v", dirs, err)
		}
		if c.SharedBound = false; c.Validate() != nil {
			t.Errorf("directories %q with bounds of their own: %v", dirs, c.Validate())
		}
	}
}

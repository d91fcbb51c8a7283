package faultfs_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
)

func (r *rig) modified(name string) time.Time {
	r.Helper()
	i, err := r.Stat(name)
	r.must(err)
	return i.Modified
}

// all runs every operation and returns the errors by name.
func (r *rig) all(f dirfs.File) map[string]error {
	errs := make(map[string]error)
	_, errs["opendir"] = r.process.OpenDir("/")
	_, errs["open"] = r.Open("new", os.O_RDWR|os.O_CREATE)
	_, errs["stat"] = r.Stat("f")
	_, errs["readdir"] = r.ReadDir(".")
	errs["mkdir"] = r.Mkdir("newdir")
	errs["rename"] = r.Rename("f", "g", true)
	errs["remove"] = r.Remove("f")
	errs["settime"] = r.SetTime("f", time.Unix(1, 0))
	_, errs["read"] = f.ReadAt(make([]byte, 1), 0)
	_, errs["write"] = f.WriteAt([]byte("y"), 0)
	_, errs["fstat"] = f.Stat()
	errs["sync"] = f.Sync()
	errs["lock"] = f.Lock()
	return errs
}

// All operations of a killed process fail, and its locks are released. Its writes are visible, but
// not durable.
func TestKill(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	killed, other := newRig(t, disk), newRig(t, disk)
	killed.write("f", "x")
	f, g := killed.open("f", os.O_RDWR), other.open("f", os.O_RDWR)
	killed.must(f.Lock())
	if err := g.Lock(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("lock what another process has locked: %v", err)
	}
	killed.process.Kill()
	killed.process.Kill()
	for op, err := range killed.all(f) {
		if !errors.Is(err, faultfs.ErrCrashed) {
			t.Errorf("%s of a killed process: %v", op, err)
		}
	}
	other.must(g.Lock())
	if got := other.tree(); got != "f=x" {
		t.Errorf("a killed process leaves %q", got)
	}
	disk.PowerFail(faultfs.KeepSynced())
	if got := newRig(t, disk).tree(); got != "" {
		t.Errorf("a killed process has synced %q", got)
	}
}

func TestPowerFailureEndsAllProcesses(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	before := []*rig{newRig(t, disk), newRig(t, disk)}
	before[0].write("f", "x")
	before[0].sync("f", "./")
	was, err := before[0].Stat("f")
	before[0].must(err)
	files := []dirfs.File{before[0].open("f", os.O_RDWR), before[1].open("f", os.O_RDWR)}
	before[0].must(files[0].Lock())
	disk.PowerFail(faultfs.KeepAll())
	for i, r := range before {
		for op, err := range r.all(files[i]) {
			if !errors.Is(err, faultfs.ErrCrashed) {
				t.Errorf("%s of a process before the power failed: %v", op, err)
			}
		}
	}
	r := newRig(t, disk)
	if got := r.tree(); got != "f=x" {
		t.Errorf("found %q", got)
	}
	r.must(r.open("f", os.O_RDWR).Lock())
	r.write("g", "y")
	is, err := r.Stat("g")
	r.must(err)
	if is.Inode <= was.Inode {
		t.Errorf("inode %d is given again: %+v", was.Inode, is)
	}
	r.sync("g", "./")
	disk.PowerFail(faultfs.KeepSynced())
	if got := newRig(t, disk).tree(); got != "f=x g=y" {
		t.Errorf("found %q after the second", got)
	}
}

func TestDiskFull(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	r := newRig(t, disk)
	used := func(want int64) {
		t.Helper()
		if got := disk.Used(); got != want {
			t.Errorf("%d bytes are used, want %d", got, want)
		}
	}
	r.write("a", strings.Repeat("a", 60))
	r.sync("a", "./")
	disk.SetLimit(100)
	b := r.open("b", os.O_RDWR|os.O_CREATE)
	if n, err := b.WriteAt(make([]byte, 60), 0); n != 40 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write beyond the limit: %d, %v", n, err)
	}
	if n, err := b.WriteAt(make([]byte, 10), 50); n != 0 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write behind the limit: %d, %v", n, err)
	}
	if i, err := b.Stat(); err != nil || i.Bytes != 40 {
		t.Errorf("the file: %+v, %v", i, err)
	}
	if n, err := b.WriteAt(make([]byte, 40), 0); n != 40 || err != nil {
		t.Errorf("write without using more space: %d, %v", n, err)
	}
	r.must(r.Mkdir("d"))
	used(100)
	a, err := r.Open("a", os.O_RDONLY)
	r.must(err)
	r.must(r.Remove("a"))
	used(100) // e is still open
	r.must(a.Close())
	used(40)
	r.must(r.Rename("b", "c", true))
	r.open("c", os.O_WRONLY|os.O_TRUNC)
	used(0)
	r.write("c", strings.Repeat("c", 100))
	r.write("e", "")
	r.must(r.Rename("e", "c", true))
	used(100) // b is still open
	disk.SetLimit(101)
	if n, err := r.open("c", os.O_RDWR).WriteAt([]byte("xx"), 0); n != 1 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write when the limit was moved: %d, %v", n, err)
	}
	disk.PowerFail(faultfs.KeepSynced())
	used(60)
	disk.SetLimit(0)
	r = newRig(t, disk)
	r.write("f", strings.Repeat("f", 1000))
	used(1060)
}

// Killing a process that has an unnamed file open frees the file's space.
func TestKillFreesSpace(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	r := newRig(t, disk)
	r.write("f", "x")
	r.open("f", os.O_RDONLY)
	r.must(r.Remove("f"))
	if disk.Used() != 1 {
		t.Errorf("%d bytes are used by a file that is open", disk.Used())
	}
	r.process.Kill()
	if disk.Used() != 0 {
		t.Errorf("%d bytes are used by an unreachable file", disk.Used())
	}
}

func TestDiskUsesItsClock(t *testing.T) {
	clock := clockwork.NewFakeClock()
	r := newRig(t, faultfs.NewDisk(clock))
	r.write("f", "x")
	first := clock.Now()
	clock.Advance(time.Hour)
	r.write("g", "x")
	if f, g := r.modified("f"), r.modified("g"); !f.Equal(first) || !g.Equal(clock.Now()) {
		t.Errorf("modified at %v and %v", f, g)
	}
	r.write("f", "y")
	if f := r.modified("f"); !f.Equal(clock.Now()) {
		t.Errorf("modified at %v by a write", f)
	}
	r.must(r.SetTime("f", first))
	r.sync("f", "./")
	r.disk.PowerFail(faultfs.KeepSynced())
	if f := newRig(t, r.disk).modified("f"); !f.Equal(first) {
		t.Errorf("modified at %v after a power failure", f)
	}
}

// Faults of a plan happen above the disk. A crash during a write leaves half of the write, which
// may be lost in a power failure.
func TestPlanOverDisk(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	plan := fault.New(1, fault.Nth("write", 1).Partial(nil), fault.Nth("sync", 1).Crash())
	process := disk.Process()
	d, err := faultfs.New(process, plan, nil).OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Dir: d}
	r.write("f", "0123456789")
	r.sync("f")
	f := r.open("f", os.O_RDWR)
	if n, err := f.WriteAt([]byte("abcdefghij"), 0); n != 5 || !errors.Is(err, fault.ErrInjected) {
		t.Errorf("write: %d, %v", n, err)
	}
	if err := f.Sync(); !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("sync: %v", err)
	}
	if got := newRig(t, disk).tree(); got != "f=abcde56789" {
		t.Errorf("the cache has %q", got)
	}
	process.Kill()
	r.must(d.Close())
	disk.PowerFail(faultfs.KeepSynced())
	if got := newRig(t, disk).tree(); got != "" {
		t.Errorf("a sync that failed made durable %q", got)
	}
}

// Processes start, work and die concurrently while the power fails. There must be no data race, and
// the disk stays consistent.
func TestDiskIsSafeForConcurrentUse(t *testing.T) {
	disk := faultfs.NewDisk(nil)
	disk.SetLimit(10_000)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 20 {
				p := disk.Process()
				if err := work(p, w); err != nil && !errors.Is(err, faultfs.ErrCrashed) && !errors.Is(err, unix.ENOSPC) {
					t.Error(err)
				}
				p.Kill()
				if w == 0 && i%5 == 4 {
					disk.PowerFail(faultfs.KeepSome(uint64(i)))
				}
			}
		})
	}
	wg.Wait()
	disk.SetLimit(0)
	r := newRig(t, disk)
	if err := work(r.process, 9); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	files := make(map[uint64]int64) // a file may have two names after an interrupted rename
	names, err := r.ReadDir(".")
	r.must(err)
	for _, name := range names {
		i, err := r.Stat(name)
		r.must(err)
		files[i.Inode] = i.Bytes
	}
	total := int64(0)
	for _, bytes := range files {
		total += bytes
	}
	if total != disk.Used() {
		t.Errorf("%d bytes are used, the files have %d", disk.Used(), total)
	}
}

func work(p *faultfs.Process, w int) (err error) {
	d, err := p.OpenDir("/")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for i := range 20 {
		name := fmt.Sprintf("%d-%d", w, i%7)
		f, err := d.Open("new-"+name, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 100), int64(i))
		if err = errors.Join(err, f.Sync(), d.Rename("new-"+name, name, true), f.Close()); err != nil {
			return err
		}
		if _, err := d.ReadDir("."); err != nil {
			return err
		}
	}
	return nil
}

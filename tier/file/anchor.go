package file

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// anchor is a dirfs.Dir that can be replaced while it is in use, for example after the directory
// was removed. Each operation uses one directory. An old directory is closed after its last
// operation.
type anchor struct{ current atomic.Pointer[anchored] }

// anchored is one directory of an anchor. acquire increments uses before it reads retired, so that
// either acquire sees retired, or exchange sees the use.
type anchored struct {
	dirfs.Dir
	uses    atomic.Int64
	retired atomic.Bool
	once    sync.Once
}

func newAnchor(d dirfs.Dir) *anchor {
	a := &anchor{}
	a.current.Store(&anchored{Dir: d})
	return a
}

// exchange replaces the directory with d.
func (a *anchor) exchange(d dirfs.Dir) {
	old := a.current.Swap(&anchored{Dir: d})
	old.retired.Store(true)
	old.closeUnused()
}

func (a *anchor) acquire() *anchored {
	for {
		d := a.current.Load()
		d.uses.Add(1)
		if !d.retired.Load() {
			return d
		}
		d.release()
	}
}

func (d *anchored) release() {
	d.uses.Add(-1)
	if d.retired.Load() {
		d.closeUnused()
	}
}

func (d *anchored) closeUnused() {
	if d.uses.Load() == 0 {
		// The removed directory is no longer written, so the error does not matter.
		d.once.Do(func() { _ = d.Close() })
	}
}

func (a *anchor) Open(name string, flag int) (dirfs.File, error) {
	d := a.acquire()
	defer d.release()
	return d.Open(name, flag)
}

func (a *anchor) Stat(name string) (dirfs.Info, error) {
	d := a.acquire()
	defer d.release()
	return d.Stat(name)
}

func (a *anchor) ReadDir(name string) ([]string, error) {
	d := a.acquire()
	defer d.release()
	return d.ReadDir(name)
}

func (a *anchor) Mkdir(name string) error {
	d := a.acquire()
	defer d.release()
	return d.Mkdir(name)
}

func (a *anchor) Rename(oldname, newname string, replace bool) error {
	d := a.acquire()
	defer d.release()
	return d.Rename(oldname, newname, replace)
}

func (a *anchor) Remove(name string) error {
	d := a.acquire()
	defer d.release()
	return d.Remove(name)
}

func (a *anchor) SetTime(name string, t time.Time) error {
	d := a.acquire()
	defer d.release()
	return d.SetTime(name, t)
}

// Close closes the current directory. No operation may be in progress.
func (a *anchor) Close() error { return a.current.Load().Close() }

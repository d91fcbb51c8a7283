package file

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
)

// DefaultHandles is the default limit of files that Handles keeps open.
const DefaultHandles = 1024

// closePatience limits the time to close a file without handles. After that Handles.Close must
// close it.
const closePatience = 10 * time.Second

// Handles keeps files open, so that later uses neither open nor register them again. A file is
// identified by directory and name, and by device and inode number. Descriptor numbers are
// unsuitable, because the system reuses them. Handles is safe for concurrent use.
type Handles struct {
	max int

	mu       sync.Mutex
	named    map[handleKey]*entry
	entries  int       // entries that are open or being opened, with or without a name
	idle     list.List // of *entry without a handle, least recently used first
	parted   []*entry  // idle entries without a name, waiting for batches that move them
	leftover []*File   // files that could not be closed
	failed   []error   // errors of files that are closed and removed
	closing  bool
	stats    HandleStats

	registrations atomic.Int64
}

// HandleStats counts the operations of Handles.
type HandleStats struct {
	Open          int   // files open or being opened
	Held          int   // files with a handle
	Hits          int64 // acquisitions of files that were already open
	Opens         int64 // opened files
	Registrations int64 // with cuFile, by streams that moved the files
	Evictions     int64 // files closed because of the limit
}

type handleKey struct {
	dir  dirfs.Dir
	name string
	flag int
}

// entry is an open file. Handles.mu guards its fields, except file and err, which are written
// before ready is closed.
type entry struct {
	key   handleKey
	ready chan struct{}
	file  *File
	err   error
	refs  int
	at    *list.Element // in Handles.idle, or nil
}

// Handle is a reference to an open file.
type Handle struct {
	handles *Handles
	entry   *entry
	region  *mem.Region
	once    sync.Once
}

// NewHandles returns an empty cache. It closes files without a handle while more than maximum are
// open; zero selects DefaultHandles. Files with a handle stay open even beyond the limit.
func NewHandles(maximum int) *Handles {
	if maximum <= 0 {
		maximum = DefaultHandles
	}
	h := &Handles{max: maximum, named: make(map[handleKey]*entry)}
	h.idle.Init()
	return h
}

// Acquire returns the file with the name in dir, opened with flag as by dirfs.Dir.Open. For an open
// file it only checks that the file still has the name. If another file has the name now, Acquire
// opens that file, and existing handles keep the old one. O_EXCL fails if the file exists. O_TRUNC
// empties the file, also for other handles. Of concurrent calls for a name, one opens the file. dir
// must stay open until Close. The error is that of dir, or ErrClosed.
func (h *Handles) Acquire(ctx context.Context, dir dirfs.Dir, name string, flag int) (*Handle, error) {
	key := handleKey{dir, name, flag &^ (os.O_CREATE | os.O_EXCL | os.O_TRUNC)}
	for {
		now, absent := dir.Stat(name)
		if absent != nil && (flag&os.O_CREATE == 0 || !errors.Is(absent, fs.ErrNotExist)) {
			return nil, fmt.Errorf("acquire file %s: %w", name, absent)
		}
		if absent == nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0 {
			return nil, fmt.Errorf("acquire file %s: %w", name, unix.EEXIST)
		}
		e, mine, err := h.acquireEntry(key)
		if err != nil {
			return nil, fmt.Errorf("acquire file %s: %w", name, err)
		}
		if mine {
			h.open(e, flag)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			h.releaseEntry(e, false)
			return nil, fmt.Errorf("acquire file %s: %w", name, context.Cause(ctx))
		}
		switch {
		case e.err != nil:
			h.releaseEntry(e, true)
			return nil, fmt.Errorf("acquire file %s: %w", name, e.err)
		case !mine && (absent != nil || now.Device != e.file.info.Device || now.Inode != e.file.info.Inode):
			h.releaseEntry(e, true) // another file has the name
			continue
		case !mine:
			if flag&os.O_TRUNC != 0 {
				if err := e.file.empty(); err != nil {
					h.releaseEntry(e, false)
					return nil, fmt.Errorf("acquire file %s: %w", name, err)
				}
				now.Bytes = 0
			}
			h.mu.Lock()
			h.stats.Hits++
			h.mu.Unlock()
		default:
			now = e.file.info
		}
		// The region of an empty file may be used for writes.
		r, err := e.file.Region(max(now.Bytes, 1))
		if err != nil {
			h.releaseEntry(e, false)
			return nil, fmt.Errorf("acquire file %s: %w", name, err)
		}
		return &Handle{handles: h, entry: e, region: r}, nil
	}
}

// acquireEntry acquires a reference to the entry of key. mine is set if the caller must open the
// file.
func (h *Handles) acquireEntry(key handleKey) (e *entry, mine bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, false, fmt.Errorf("file handles: %w", errdefs.ErrClosed)
	}
	if e = h.named[key]; e == nil {
		e, mine = &entry{key: key, ready: make(chan struct{})}, true
		h.named[key] = e
		h.entries++
	}
	if e.at != nil {
		h.idle.Remove(e.at)
		e.at = nil
	}
	e.refs++
	return e, mine, nil
}

// empty truncates the file.
func (f *File) empty() error {
	s, ok := f.base.(dirfs.Sizer)
	if !ok {
		return fmt.Errorf("truncate: %w", errdefs.ErrNotSupported)
	}
	return s.Truncate(0)
}

func (h *Handles) open(e *entry, flag int) {
	defer close(e.ready)
	base, err := e.key.dir.Open(e.key.name, flag)
	if err != nil {
		e.err = err
		return
	}
	if e.file, err = New(base, e.key.name); err != nil {
		e.err = errors.Join(err, base.Close())
		return
	}
	e.file.registrations = &h.registrations
	h.mu.Lock()
	h.stats.Opens++
	h.mu.Unlock()
}

// releaseEntry releases a reference. gone is set if the name no longer refers to the entry.
// Unreferenced files are closed if they have lost their name. Others are closed, least recently
// used first, while too many are open.
func (h *Handles) releaseEntry(e *entry, gone bool) {
	h.mu.Lock()
	if gone && h.named[e.key] == e {
		delete(h.named, e.key)
	}
	var out []*File
	if e.refs--; e.refs == 0 {
		e.at = h.idle.PushBack(e)
		if h.named[e.key] != e || h.closing {
			h.parted = append(h.parted, e)
		}
	}
	out = h.part(out)
	for at := h.idle.Front(); at != nil && h.entries > h.max; {
		o, _ := at.Value.(*entry)
		at = at.Next()
		out = h.evict(o, out)
	}
	h.mu.Unlock()
	for _, f := range out {
		h.discard(f)
	}
}

// Forget closes the file of a name, opened with no flag except its mode, once it has no handle.
// Later calls of Acquire open the file again. Call Forget before the name is removed, so that the
// file's space becomes free.
func (h *Handles) Forget(dir dirfs.Dir, name string) {
	h.mu.Lock()
	var out []*File
	for _, flag := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR} {
		if e := h.named[handleKey{dir, name, flag}]; e != nil {
			out = h.unname(e, out)
		}
	}
	h.mu.Unlock()
	for _, f := range out {
		h.discard(f)
	}
}

// unname prevents Acquire from finding an entry, and evicts the entry if it is idle. Otherwise its
// last user evicts it.
func (h *Handles) unname(e *entry, out []*File) []*File {
	if h.named[e.key] != e {
		return out
	}
	delete(h.named, e.key)
	if e.at != nil {
		h.parted = append(h.parted, e)
		out = h.part(out)
	}
	return out
}

// evict removes an idle entry and appends its file to out, to be closed. It does nothing while a
// batch moves the file.
func (h *Handles) evict(e *entry, out []*File) []*File {
	if e.file == nil {
		h.forget(e)
		return out
	}
	if e.file.inUse() {
		return out
	}
	if h.named[e.key] == e {
		h.stats.Evictions++
	}
	h.forget(e)
	return append(out, e.file)
}

// part evicts idle entries without a name that no batch moves any longer.
func (h *Handles) part(out []*File) []*File {
	h.parted = slices.DeleteFunc(h.parted, func(e *entry) bool {
		if e.at != nil {
			out = h.evict(e, out)
		}
		return e.at == nil
	})
	return out
}

// forget removes an idle entry.
func (h *Handles) forget(e *entry) {
	h.idle.Remove(e.at)
	e.at = nil
	h.entries--
	if h.named[e.key] == e {
		delete(h.named, e.key)
	}
}

func (h *Handles) discard(f *File) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if err := f.Close(ctx); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if f.isOpen() {
			h.leftover = append(h.leftover, f)
		} else {
			h.failed = append(h.failed, err)
		}
	}
}

// keep makes Close close a file that could not be closed before.
func (h *Handles) keep(f *File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leftover = append(h.leftover, f)
}

// Close refuses new acquisitions, closes files without a handle, and waits for batches that move
// them. It also returns errors of files that were closed earlier. While handles are in use it
// returns ErrBusy, and may be called again.
func (h *Handles) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closing = true
	out := h.leftover
	h.leftover = nil
	for at := h.idle.Front(); at != nil; at = h.idle.Front() {
		e, _ := at.Value.(*entry)
		h.forget(e)
		if e.file != nil {
			out = append(out, e.file)
		}
	}
	held, errs := h.entries, h.failed
	h.failed = nil
	h.mu.Unlock()
	for _, f := range out {
		if err := f.Close(ctx); err != nil {
			errs = append(errs, err)
			if f.isOpen() {
				h.mu.Lock()
				h.leftover = append(h.leftover, f)
				h.mu.Unlock()
			}
		}
	}
	if held > 0 {
		errs = append(errs, fmt.Errorf("%d files are in use: %w", held, errdefs.ErrBusy))
	}
	if len(errs) > 0 {
		return fmt.Errorf("close file handles: %w", errors.Join(errs...))
	}
	return nil
}

// Stats returns the counters.
func (h *Handles) Stats() HandleStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Open, s.Held, s.Registrations = h.entries, h.entries-h.idle.Len(), h.registrations.Load()
	return s
}

// Region returns a region with the file's length at Acquire. It is valid until Release.
func (h *Handle) Region() *mem.Region { return h.region }

// File returns the open file, for a region that extends beyond its end.
func (h *Handle) File() *File { return h.entry.file }

// forget makes later calls of Acquire open the file again.
func (h *Handle) forget() {
	h.handles.mu.Lock()
	defer h.handles.mu.Unlock()
	h.handles.unname(h.entry, nil) // the entry is not idle, so nothing is evicted
}

// Release releases the handle. Batches that still move the file continue. If the file has lost its
// name, the next Release after these batches closes it. A second call does nothing.
func (h *Handle) Release() { h.once.Do(func() { h.handles.releaseEntry(h.entry, false) }) }

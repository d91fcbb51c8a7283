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

// DefaultHandles is how many files Handles keep open that nobody holds.
const DefaultHandles = 1024

// closePatience is how long closing a file that nobody holds may take before it is left to Handles.Close.
const closePatience = 10 * time.Second

// Handles keeps files open, so that whoever needs one again opens and registers nothing. A file is known by its directory and
// name, and by its device and inode: never by a descriptor's number, which is another file's once it is closed. Safe for
// concurrent use.
type Handles struct {
	max int

	mu       sync.Mutex
	named    map[handleKey]*entry
	entries  int       // open or being opened, named or not
	idle     list.List // of *entry, that nobody holds: the least recently used first
	parted   []*entry  // idle ones that have lost their names, and that a batch moved
	leftover []*File   // that could not be closed
	failed   []error   // of files that were closed and are known no more
	closing  bool
	stats    HandleStats

	registrations atomic.Int64
}

// HandleStats counts what Handles have done.
type HandleStats struct {
	Open          int   // files that are open, or being opened
	Held          int   // by somebody
	Hits          int64 // acquired, and open already
	Opens         int64 // files opened
	Registrations int64 // with cuFile, by streams that moved the files
	Evictions     int64 // closed to make room
}

type handleKey struct {
	dir  dirfs.Dir
	name string
	flag int
}

// entry is an open file. But for file and err, which are written before ready is closed, its fields are guarded by Handles.mu.
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

// NewHandles returns an empty cache that keeps at most so many files open that nobody holds; zero: DefaultHandles. What is held
// stays open, and be it more.
func NewHandles(maximum int) *Handles {
	if maximum <= 0 {
		maximum = DefaultHandles
	}
	h := &Handles{max: maximum, named: make(map[handleKey]*entry)}
	h.idle.Init()
	return h
}

// Acquire returns the file that has the name in dir, opened with flag, as dirfs.Dir.Open has it. Where it is open already that
// costs a look at what has the name now: a file that took the place of another is opened, and those who hold the other keep it.
// O_EXCL refuses a file that is there, and O_TRUNC empties it, for those who hold it too.
// Of several that acquire a name at once, one opens it. dir must stay open until Close. Errors are those of dir, and ErrClosed.
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
		e, mine, err := h.enter(key)
		if err != nil {
			return nil, fmt.Errorf("acquire file %s: %w", name, err)
		}
		if mine {
			h.open(e, flag)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			h.leave(e, false)
			return nil, fmt.Errorf("acquire file %s: %w", name, context.Cause(ctx))
		}
		switch {
		case e.err != nil:
			h.leave(e, true)
			return nil, fmt.Errorf("acquire file %s: %w", name, e.err)
		case !mine && (absent != nil || now.Device != e.file.info.Device || now.Inode != e.file.info.Inode):
			h.leave(e, true) // another file has the name
			continue
		case !mine:
			if flag&os.O_TRUNC != 0 {
				if err := e.file.empty(); err != nil {
					h.leave(e, false)
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
		r, err := e.file.Region(max(now.Bytes, 1)) // of an empty file, to be written
		if err != nil {
			h.leave(e, false)
			return nil, fmt.Errorf("acquire file %s: %w", name, err)
		}
		return &Handle{handles: h, entry: e, region: r}, nil
	}
}

// enter takes a reference to what has the name, and says whether it is the caller's to open.
func (h *Handles) enter(key handleKey) (e *entry, mine bool, err error) {
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

// leave gives a reference back; gone: the name is no longer this file's. A file that nobody holds is closed if it has no name,
// and the least recently used ones while there are too many.
func (h *Handles) leave(e *entry, gone bool) {
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

// evict forgets an idle entry and appends its file, to be closed, unless a batch still moves that.
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

// part evicts what has lost its name, as batches are done with it.
func (h *Handles) part(out []*File) []*File {
	h.parted = slices.DeleteFunc(h.parted, func(e *entry) bool {
		if e.at != nil {
			out = h.evict(e, out)
		}
		return e.at == nil
	})
	return out
}

// forget takes an idle entry out.
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

// Close refuses to acquire, closes what nobody holds, and waits for batches that move it. It tells what went wrong as files were
// closed earlier, too. ErrBusy while somebody holds a file; it may be called again.
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
		errs = append(errs, fmt.Errorf("%d files are held: %w", held, errdefs.ErrBusy))
	}
	if len(errs) > 0 {
		return fmt.Errorf("close file handles: %w", errors.Join(errs...))
	}
	return nil
}

// Stats returns what the cache has done so far.
func (h *Handles) Stats() HandleStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Open, s.Held, s.Registrations = h.entries, h.entries-h.idle.Len(), h.registrations.Load()
	return s
}

// Region is the file, as long as it was when it was acquired. It is of use until Release.
func (h *Handle) Region() *mem.Region { return h.region }

// File is the open file, for a region that reaches beyond its end.
func (h *Handle) File() *File { return h.entry.file }

// Release gives the handle back. Batches that still move the file end as they would; if it has lost its name the next Release after them
// closes it. A second call does nothing.
func (h *Handle) Release() { h.once.Do(func() { h.handles.leave(h.entry, false) }) }

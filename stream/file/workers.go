package file

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/stream"
)

// workers is a queue of goroutines. Each moves one transfer at a time and waits for it.
type workers struct {
	by      stream.Path
	todo    chan *transfer
	move    func(t *transfer) (int64, error)
	warm    *warmth
	running sync.WaitGroup
}

func newWorkers(by stream.Path, o *Options, warm *warmth, move func(t *transfer) (int64, error)) *workers {
	w := &workers{by: by, todo: make(chan *transfer, o.begun()*sweepLength), move: move, warm: warm}
	for range min(o.Transfers, mostWorkers) {
		w.running.Go(w.work)
	}
	return w
}

func (w *workers) path() stream.Path { return w.by }
func (w *workers) begin(t *transfer) { w.todo <- t }
func (w *workers) flush()            {}

func (w *workers) close(context.Context) error {
	close(w.todo)
	w.running.Wait() // returns soon: the workers are idle
	return nil
}

func (w *workers) work() {
	for t := range w.todo {
		if !t.try {
			t.finish(w.move(t))
			continue
		}
		w.readCached(t)
		// Let the goroutine that look has woken run first. If each processor had such a worker,
		// that goroutine would wait for the workers' next calls. Do not yield after a call that
		// waits for a disk, because that would limit such calls to one per processor.
		runtime.Gosched()
	}
}

// sweep is a list of transfers of a batch that one worker tries in the page cache, one after
// another. It uses the space of one transfer.
type sweep struct {
	first, last *transfer
	n           int32
	bytes       int64
	left        atomic.Int32 // unfinished transfers after send
}

// The limits of a sweep leave work for other workers.
const (
	sweepLength = 16
	sweepBytes  = cachedBytes
)

func (s *sweep) hasSpace(t *transfer) bool { return s.n < sweepLength && s.bytes+t.need <= sweepBytes }

func (s *sweep) add(t *transfer) {
	if s.first == nil {
		s.first = t
	} else {
		s.last.next = t
	}
	s.last, t.sweep = t, s
	s.n++
	s.bytes += t.need
}

// readCached moves the transfers of the sweep that begins with t from the page cache, and passes
// misses on to their queues. It reports finished transfers together, but separately for each part
// with a chunk.
func (w *workers) readCached(t *transfer) {
	s, b := t.sweep, t.part.batch
	p := t.part
	var n int32     // finished and unreported transfers of p, or of p and other parts without chunks
	var bytes int64 // their bytes
	report := func() {
		b.cached.Add(bytes)
		if n > 0 {
			w.warm.hits.Add(int64(n))
			b.finish(p, s, n)
		}
		n, bytes = 0, 0
	}
	for t != nil {
		next := t.next
		t.next, t.try = nil, false
		if t.part != p && (!p.straight || !t.part.straight) {
			report()
		}
		p = t.part
		got := t.file.cached(t, w.warm.sure())
		w.warm.saw(got >= t.need)
		bytes += got
		switch {
		case got >= t.need:
			n++
		case got > 0:
			report()
			t.finish(got, nil)
		default:
			t.begin(t.home)
			t.home.flush()
		}
		t = next
	}
	report()
}

// posix moves the rest of t by read and write calls.
func posix(t *transfer) (int64, error) {
	b, off, fd := t.mem.Bytes()[t.done:], t.off+t.done, t.file.fd
	var n int
	var err error
	if t.direct {
		fd = t.file.direct
	}
	switch {
	case fd < 0 && t.write:
		n, err = t.file.base.WriteAt(b, off)
	case fd < 0:
		if n, err = t.file.base.ReadAt(b, off); errors.Is(err, io.EOF) {
			err = nil
		}
	case t.write:
		n, err = unix.Pwrite(fd, b, off)
	default:
		n, err = unix.Pread(fd, b, off)
	}
	return int64(n), err
}

// cached reads the start of t from the page cache and returns the number of bytes. A partial read
// for a direct transfer counts only whole pages. Unless sure is set, cached first queries the page
// cache, because a non-blocking read may start read-ahead. Kernels before 6.5 do not support the
// query.
func (f *File) cached(t *transfer, sure bool) int64 {
	if !sure {
		if there, known := f.has(t.off, t.need); known && !there {
			return 0
		}
	}
	n, err := unix.Preadv2(f.fd, [][]byte{t.mem.Bytes()}, t.off, unix.RWF_NOWAIT)
	switch {
	case err != nil || n <= 0:
		return 0
	case int64(n) < t.need && t.direct:
		return alignDown(int64(n))
	}
	return int64(n)
}

// has reports whether the page cache contains a range of the file. known is false if the kernel
// does not support the query.
func (f *File) has(off, n int64) (there, known bool) {
	first := alignDown(off)
	pages := (alignUp(off+n) - first) / Align
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.fd), &unix.CachestatRange{Off: uint64(first), Len: uint64(pages * Align)}, &stat, 0)
	return int64(stat.Cache)*int64(os.Getpagesize()) >= pages*Align, err == nil
}

// warmth decides whether reads try the page cache: always while they hit it, and rarely while they
// miss, because a try may start read-ahead in the kernel.
type warmth struct {
	hot    atomic.Bool  // the last try was a hit
	misses atomic.Int64 // consecutive misses since the last hit
	hits   atomic.Int64 // reported hits since the last miss
	skips  atomic.Int64
}

// patience is the number of consecutive misses after which only every tryEvery-th read tries the
// page cache. confidence is the number of consecutive hits after which reads no longer query it
// first.
const (
	patience   = 4
	tryEvery   = 16
	confidence = 64
)

func (w *warmth) try() bool {
	return w.misses.Load() < patience || w.skips.Add(1)%tryEvery == 0
}

// sure reports whether to skip the query of the page cache, which takes a third of the time of
// reading a page.
func (w *warmth) sure() bool { return w.hits.Load() >= confidence }

// saw records the result of a try. A hit after a hit writes nothing, because all workers share the
// cache line.
func (w *warmth) saw(hit bool) {
	if w.hot.Load() != hit {
		w.hot.Store(hit)
	}
	switch {
	case !hit:
		w.misses.Add(1)
		w.hits.Store(0)
	case w.misses.Load() != 0:
		w.misses.Store(0)
	}
}

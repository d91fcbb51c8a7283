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

// workers is a queue of goroutines that move one transfer after the other, and wait for each.
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
	w.running.Wait() // for nothing: they have no work
	return nil
}

func (w *workers) work() {
	for t := range w.todo {
		if !t.try {
			t.finish(w.move(t))
			continue
		}
		w.look(t)
		// Whom that has woken goes first: where every processor has such a worker, it would wait for as long as the next calls
		// take. After a call that waits for a disk this is wrong: no more of those would be under way than there are processors.
		runtime.Gosched()
	}
}

// sweep is transfers of a batch that one worker looks for in the page cache, one after the other, and that take the room of one.
type sweep struct {
	first, last *transfer
	n           int32
	bytes       int64
	left        atomic.Int32 // that are unfinished, once it is sent
}

// A sweep is no longer than that, so that others have something to do beside its worker.
const (
	sweepLength = 16
	sweepBytes  = cachedBytes
)

func (s *sweep) takes(t *transfer) bool { return s.n < sweepLength && s.bytes+t.need <= sweepBytes }

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

// look moves what the page cache has of the sweep that begins with t, and hands on what it has not. What is finished is told together, but of
// each part that has a chunk for itself.
func (w *workers) look(t *transfer) {
	s, b := t.sweep, t.part.batch
	p := t.part
	var n int32     // that are finished and not told: of p, or of several without chunks, of which it is one
	var bytes int64 // likewise
	tell := func() {
		b.cached.Add(bytes)
		if n > 0 {
			w.warm.hits.Add(int64(n))
			b.landed(p, s, n)
		}
		n, bytes = 0, 0
	}
	for t != nil {
		next := t.next
		t.next, t.try = nil, false
		if t.part != p && (!p.straight || !t.part.straight) {
			tell()
		}
		p = t.part
		got := t.file.cached(t, w.warm.sure())
		w.warm.saw(got >= t.need)
		bytes += got
		switch {
		case got >= t.need:
			n++
		case got > 0:
			tell()
			t.finish(got, nil)
		default:
			t.begin(t.home)
			t.home.flush()
		}
		t = next
	}
	tell()
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

// cached reads what the page cache has of t from its start on, and returns how much: whole pages, unless that is all of it. It asks
// first what there is unless that is sure, as a read that does not wait may begin to read ahead; kernels before 6.5 cannot be asked.
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

// has reports whether the page cache has a range of the file. Not known: the kernel does not tell.
func (f *File) has(off, n int64) (there, known bool) {
	first := alignDown(off)
	pages := (alignUp(off+n) - first) / Align
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.fd), &unix.CachestatRange{Off: uint64(first), Len: uint64(pages * Align)}, &stat, 0)
	return int64(stat.Cache)*int64(os.Getpagesize()) >= pages*Align, err == nil
}

// warmth says whether it is worth looking in the page cache: each time while reads are found there, and rarely while they are
// not, as the kernel may read ahead for who looks.
type warmth struct {
	hot    atomic.Bool  // the last look was a hit
	misses atomic.Int64 // since the last hit
	hits   atomic.Int64 // since the last miss, as far as they are told
	skips  atomic.Int64
}

// patience is how many misses in a row it takes, and tryEvery how rare a look is then; confidence is how many hits in a row it takes to be sure.
const (
	patience   = 4
	tryEvery   = 16
	confidence = 64
)

func (w *warmth) try() bool {
	return w.misses.Load() < patience || w.skips.Add(1)%tryEvery == 0
}

// sure reports whether the page cache need not be asked what it has, which takes a third of the time that reading a page does.
func (w *warmth) sure() bool { return w.hits.Load() >= confidence }

// saw notes what a look found. Who sees what all the others do writes nothing: they share the cache line.
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

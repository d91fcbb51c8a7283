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
	w := &workers{by: by, todo: make(chan *transfer, o.begun()), move: move, warm: warm}
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
		if t.try {
			t.try = false
			n := t.file.cached(t)
			w.warm.saw(n >= t.need)
			if n > 0 {
				t.part.batch.cached.Add(n)
				t.finish(n, nil)
				// Whom that has woken goes first: where every processor has such a worker, it would wait for as long as the next call
				// takes. After a call that waits for a disk this is wrong: no more of those would be under way than there are processors.
				runtime.Gosched()
				continue
			}
			if t.home != queue(w) {
				t.begin(t.home)
				t.home.flush()
				continue
			}
		}
		t.finish(w.move(t))
	}
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
// first what there is, as a read that does not wait may begin to read ahead; kernels before 6.5 cannot be asked.
func (f *File) cached(t *transfer) int64 {
	first := alignDown(t.off)
	pages := (alignUp(t.off+t.need) - first) / Align
	var there unix.Cachestat_t
	if err := unix.Cachestat(uint(f.fd), &unix.CachestatRange{Off: uint64(first), Len: uint64(pages * Align)}, &there, 0); err == nil &&
		int64(there.Cache)*int64(os.Getpagesize()) < pages*Align {
		return 0
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

// warmth says whether it is worth looking in the page cache: each time while reads are found there, and rarely while they are
// not, as the kernel may read ahead for who looks.
type warmth struct {
	hot    atomic.Bool  // the last look was a hit
	misses atomic.Int64 // since the last hit
	skips  atomic.Int64
}

// patience is how many misses in a row it takes, and tryEvery how rare a look is then.
const (
	patience = 4
	tryEvery = 16
)

func (w *warmth) try() bool {
	return w.misses.Load() < patience || w.skips.Add(1)%tryEvery == 0
}

func (w *warmth) saw(hit bool) {
	w.hot.Store(hit)
	if hit {
		w.misses.Store(0)
	} else {
		w.misses.Add(1)
	}
}

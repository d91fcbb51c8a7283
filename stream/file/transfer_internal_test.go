package file

import (
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

func TestAdvance(t *testing.T) {
	for name, tt := range map[string]struct {
		moved         int64
		err           error
		write         bool
		again, direct bool
		want          error
		refused       bool
	}{
		"whole":                     {moved: 8192, direct: true},
		"beyond":                    {moved: 12288, direct: true},
		"short, aligned":            {moved: 4096, again: true, direct: true},
		"short, misaligned":         {moved: 100, again: true},
		"nothing read":              {want: io.ErrUnexpectedEOF, direct: true},
		"nothing written":           {write: true, want: io.ErrShortWrite, direct: true},
		"interrupted":               {err: unix.EINTR, again: true, direct: true},
		"interrupted after a part":  {moved: 4096, err: unix.EINTR, again: true, direct: true},
		"O_DIRECT is refused":       {err: unix.EINVAL, again: true, refused: true},
		"failed":                    {err: unix.EIO, want: unix.EIO, direct: true},
		"failed after all was done": {moved: 8192, err: unix.EIO, direct: true},
	} {
		b := &batch{stream: &Stream{}}
		x := &transfer{file: &File{}, write: tt.write, direct: true, need: 8192, part: &part{batch: b}}
		more, err := x.advance(tt.moved, tt.err)
		if more != tt.again || !errors.Is(err, tt.want) || x.direct != tt.direct {
			t.Errorf("%s: again %t, direct %t, %v", name, more, x.direct, err)
		}
		if said := b.stream.Stats().Refused == 1; said != tt.refused || b.refused.Load() != tt.refused || x.file.refused.Load() != tt.refused {
			t.Errorf("%s: refused: %t", name, said)
		}
	}
}

// A transfer that always returned EAGAIN or EINTR was repeated without a limit.
func TestDefectTransferIsTriedWithoutEnd(t *testing.T) {
	for _, errno := range []error{unix.EAGAIN, unix.EINTR} {
		x := &transfer{need: 8192}
		for tries := 0; ; tries++ {
			more, err := x.advance(0, errno)
			if tries == mostIdle/2 {
				more, err = x.advance(1, errno) // restarts the count
			}
			if !more {
				if !errors.Is(err, errno) || tries < mostIdle {
					t.Errorf("after %d tries: %v", tries, err)
				}
				break
			}
			if tries > 3*mostIdle {
				t.Fatalf("%v: tried %d times", errno, tries)
			}
		}
	}
}

// Reads from the page cache used only as many concurrent transfers as are optimal for the disk.
func TestDefectPageCacheKeepsToTheDisksDepth(t *testing.T) {
	plain, err := hostmem.Region(make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	b := &batch{stream: &Stream{}, by: choice{depth: 4}}
	reads := func(fd int, write bool) *part {
		return &part{write: write, transfers: []transfer{{file: &File{fd: fd}, mem: mem.All(plain)}}}
	}
	for _, tt := range []struct {
		p         *part
		hit, want bool
	}{{reads(3, false), false, false}, {reads(3, false), true, true}, {reads(3, true), true, false}, {reads(-1, false), true, false}, {reads(3, false), false, false}} {
		b.inFlight.Store(4)
		b.stream.warm.saw(tt.hit)
		if got := b.admits(tt.p); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
		if b.inFlight.Store(3); !b.admits(tt.p) {
			t.Errorf("%+v: fewer than the depth are refused", tt)
		}
	}
}

// A chunk was read with one transfer, although several would have filled it faster.
func TestDefectChunkIsReadByOneTransfer(t *testing.T) {
	r, err := hostmem.Region(make([]byte, DefaultChunkBytes))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		hit, write bool
		want       int
	}{{want: 1}, {hit: true, want: DefaultChunkBytes / cachedBytes}, {hit: true, write: true, want: 1}} {
		s := &Stream{}
		s.warm.saw(tt.hit)
		b := &batch{stream: s, cut: cutter{most: DefaultChunkBytes, pieces: []piece{{file: &File{fd: 3}, mem: mem.All(r), write: tt.write}}}}
		p := b.cut.nextStaged(b, mem.All(r))
		at := int64(0)
		for _, x := range p.transfers {
			if x.off != at || x.mem.Off != at {
				t.Errorf("%+v: a transfer from %d to %d, and not %d", tt, x.off, x.mem.Off, at)
			}
			at += x.mem.Len
		}
		if len(p.transfers) != tt.want || at != DefaultChunkBytes {
			t.Errorf("%+v: %d transfers of %d bytes", tt, len(p.transfers), at)
		}
	}
}

// For each small read from the page cache a worker was woken, which took longer than the read.
func TestDefectWorkerIsWokenForEachSmallRead(t *testing.T) {
	const n = 40
	r, err := hostmem.Region(make([]byte, n*sweepBytes))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		hit   bool
		bytes int64
		want  int // number of sweeps
	}{
		{true, Align, (n + sweepLength - 1) / sweepLength}, {true, sweepBytes / 4, n / 4}, {true, sweepBytes, n}, {false, Align, n},
	} {
		w := &workers{todo: make(chan *transfer, n)}
		s := &Stream{space: make(chan struct{}, n), workers: w}
		s.warm.saw(tt.hit)
		p := &part{}
		for i := range int64(n) {
			e := mem.Extent{Region: r, Off: i * tt.bytes, Len: tt.bytes}
			p.transfers = append(p.transfers, transfer{file: &File{fd: 3}, off: 2 * i * tt.bytes, mem: e, need: tt.bytes, part: p})
		}
		b := &batch{stream: s, ctx: t.Context(), by: choice{files: w}, current: p}
		p.batch = b
		p.pending.Store(n)
		b.issue()
		if len(w.todo) != tt.want || len(s.space) != tt.want || b.inFlight.Load() != n {
			t.Errorf("%+v: %d sweeps that take the room of %d, of %d transfers", tt, len(w.todo), len(s.space), b.inFlight.Load())
		}
		for range tt.want {
			for x := <-w.todo; x != nil; x = x.next {
				b.finish(p, x.sweep, 1)
			}
		}
		if len(s.space) != 0 || b.inFlight.Load() != 0 || p.pending.Load() != 0 {
			t.Errorf("%+v: at the end room of %d is taken, %d transfers are unfinished, %d of the part", tt, len(s.space), b.inFlight.Load(), p.pending.Load())
		}
	}
}

// If a batch had no more space, each later read, however small, was sent to a worker separately.
func TestDefectLongBatchReadsItsPiecesOneByOne(t *testing.T) {
	const n, room = 7*sweepLength + 1, 2
	r, err := hostmem.Region(make([]byte, n*Align))
	if err != nil {
		t.Fatal(err)
	}
	w := &workers{todo: make(chan *transfer, n)}
	s := &Stream{space: make(chan struct{}, room), workers: w, opts: Options{ChunkBytes: DefaultChunkBytes}}
	s.queues[stream.PathPosix] = w
	s.warm.saw(true)
	b := &batch{stream: s, ctx: t.Context(), wake: make(chan struct{}, 1), cut: cutter{most: DefaultChunkBytes}}
	for i := range int64(n) {
		p := piece{file: &File{fd: 3}, off: 2 * i * Align, mem: mem.Extent{Region: r, Off: i * Align, Len: Align}, straight: true}
		b.cut.pieces = append(b.cut.pieces, p)
	}
	moved := make(chan error)
	go func() { moved <- b.move() }()
	for sweeps := 0; ; {
		select {
		case x := <-w.todo:
			sweeps++
			for ; x != nil; x = x.next {
				b.finish(x.part, x.sweep, 1)
			}
		case err := <-moved:
			if want := (n + sweepLength - 1) / sweepLength; err != nil || sweeps != want {
				t.Errorf("%d sweeps where %d are enough, %v", sweeps, want, err)
			}
			return
		}
	}
}

// A sweep may cover several parts. A chunk continues when all of it has been read. Reads that are
// not in the page cache return to their part.
func TestSweepOfSeveralParts(t *testing.T) {
	const pages = 8 // pages of the file, which is followed by a hole
	f := testFile(t, pages*Align)
	r, err := hostmem.Region(make([]byte, 2*pages*Align))
	if err != nil {
		t.Fatal(err)
	}
	home := &workers{todo: make(chan *transfer, pages)}
	b := &batch{stream: &Stream{space: make(chan struct{}, 1)}, wake: make(chan struct{}, 1)}
	b.stream.space <- struct{}{}
	var w workers
	w.warm = &b.stream.warm
	sw := &sweep{}
	parts := []*part{{straight: true}, {straight: true}, {}, {straight: true}, {}, {straight: true}}
	for i, of := range [][]int64{{0}, {1}, {2, 3}, {4}, {5, pages}, {pages + 1}} {
		p := parts[i]
		p.batch, p.transfers = b, make([]transfer, len(of))
		for k, at := range of {
			e := mem.Extent{Region: r, Off: at * Align, Len: Align}
			p.transfers[k] = transfer{file: f, off: e.Off, mem: e, part: p, need: Align, try: true, home: home}
			sw.add(&p.transfers[k])
		}
		p.pending.Store(int32(len(of)))
	}
	b.inFlight.Store(sw.n)
	sw.left.Store(sw.n)
	w.readCached(sw.first)
	if !slices.Equal(b.done, parts[2:3]) || b.inFlight.Load() != 2 || len(home.todo) != 2 || len(b.stream.space) != 1 || b.cached.Load() != 6*Align {
		t.Fatalf("parts %v are done, %d transfers unfinished, %d are sent home, room of %d is taken, %d bytes were there",
			b.done, b.inFlight.Load(), len(home.todo), len(b.stream.space), b.cached.Load())
	}
	for range 2 {
		x := <-home.todo
		x.finish(Align, nil)
	}
	if !slices.Equal(b.done, []*part{parts[2], parts[4]}) || b.inFlight.Load() != 0 || len(b.stream.space) != 0 {
		t.Errorf("at the end parts %v are done, %d transfers unfinished, room of %d is taken", b.done, b.inFlight.Load(), len(b.stream.space))
	}
}

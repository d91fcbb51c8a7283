package file

import (
	"cmp"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

func TestOrdered(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	file := func(dev, inode uint64, fd int) *File {
		return &File{fd: fd, info: dirfs.Info{Device: dev, Inode: inode}}
	}
	// The last two files are equal in all compared fields.
	files := []*File{file(2, 1, 3), file(1, 2, 4), file(1, 1, 6), file(1, 1, 5), file(1<<40, 1, 7), file(1, 1<<40, 8), file(3, 3, -1), file(3, 3, -1)}
	for _, n := range []int{0, 1, 2, 3, 100, 5000} {
		for _, end := range []int64{1, 300, math.MaxInt64} {
			for _, used := range [][]*File{files[:1], files} {
				pieces, all := make([]piece, n), make(map[piece]bool)
				for i := range pieces {
					pieces[i] = piece{file: used[rng.IntN(len(used))], write: rng.IntN(2) == 0, off: rng.Int64N(end), mem: mem.Extent{Off: int64(i)}}
					all[pieces[i]] = true
				}
				got := ordered(pieces)
				for _, p := range got {
					delete(all, p)
				}
				if len(got) != n || len(all) != 0 || !isOrdered(got) {
					t.Errorf("%d pieces of %d files up to %d are not in order, or %d are missing", n, len(used), end, len(all))
				}
			}
		}
	}
}

// isOrdered reports whether the pieces of each file are adjacent and sorted by offset, and pieces
// of the same offset are in their original order.
func isOrdered(pieces []piece) bool {
	seen := make(map[source]bool)
	for i := range pieces {
		p := &pieces[i]
		if i > 0 && p.source() == pieces[i-1].source() {
			if last := &pieces[i-1]; cmp.Or(cmp.Compare(last.off, p.off), cmp.Compare(last.mem.Off, p.mem.Off)) >= 0 {
				return false
			}
			continue
		}
		if seen[p.source()] || i > 0 && order(pieces[i-1].source(), p.source()) > 0 {
			return false
		}
		seen[p.source()] = true
	}
	return true
}

// Small adjacent pieces were read into a chunk and copied by one goroutine, although they were in
// the page cache.
func TestDefectNeighboursInThePageCacheAreCopiedTwice(t *testing.T) {
	const n, each = 8, Align
	f := testFile(t, n*each)
	_, known := f.has(0, each) // if the kernel does not report it, the pieces are gathered
	r, err := hostmem.Region(make([]byte, n*each))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ hot, inCache, write, want bool }{
		{hot: true, inCache: true, want: true}, {hot: true}, {inCache: true}, {hot: true, inCache: true, write: true},
	} {
		s := &Stream{}
		s.warm.saw(tt.hot)
		off := int64(0)
		if !tt.inCache {
			off = n * each // a hole that was never read
		}
		pieces := make([]piece, n)
		for i := range pieces {
			at := int64(i) * each
			pieces[i] = piece{file: f, off: off + at, write: tt.write, mem: mem.Extent{Region: r, Off: (n-1)*each - at, Len: each}}
		}
		s.place(pieces)
		for i := range pieces {
			if got, want := pieces[i].straight, tt.want && known; got != want {
				t.Errorf("%+v: piece %d is transferred in place: %t", tt, i, got)
			}
		}
	}
}

// testFile returns a file of bytes written bytes and a hole of the same length.
func testFile(t *testing.T, bytes int64) *File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := f.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(2 * bytes); err != nil {
		t.Fatal(err)
	}
	return &File{fd: int(f.Fd()), direct: -1, name: f.Name()}
}

package file

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// straightBytes is how long pieces of scattered host memory are that are moved where they lie, one by one. Shorter ones are
// gathered in a chunk, and copied by the CPU.
const straightBytes = 64 << 10

// piece is one copy of a batch, or several neighbours.
type piece struct {
	file     *File
	off      int64 // in the file
	mem      mem.Extent
	write    bool
	straight bool // its memory is host memory, and it is moved where it lies
	buffered bool // it must not be moved with O_DIRECT
}

func (p *piece) end() int64   { return p.off + p.mem.Len }
func (p *piece) device() bool { return p.mem.Region.CPU() == 0 }

// with reports whether two pieces may be of one part.
func (p *piece) with(o *piece) bool { return p.write == o.write && p.device() == o.device() }

// survey returns the batch's copies, by direction, file and offset, neighbours merged. ErrInvalid where one has no file, or two,
// or memory that the stream does not reach.
func (s *Stream) survey(b *mem.Batch) ([]piece, error) {
	pieces := make([]piece, 0, min(b.Pieces(), 1<<16))
	sorted := true
	for dst, src := range b.Extents() {
		if dst.Len == 0 {
			continue
		}
		p, err := s.piece(dst, src)
		if err != nil {
			return nil, err
		}
		if n := len(pieces); n > 0 {
			last := &pieces[n-1]
			if last.file == p.file && last.write == p.write && last.end() == p.off &&
				last.mem.Region == p.mem.Region && last.mem.Off+last.mem.Len == p.mem.Off {
				last.mem.Len += p.mem.Len
				continue
			}
			sorted = sorted && order(last.key(n-1), p.key(n)) <= 0
		}
		pieces = append(pieces, p)
	}
	if !sorted {
		pieces = ordered(pieces)
	}
	s.place(pieces)
	return pieces, nil
}

func (s *Stream) piece(dst, src mem.Extent) (piece, error) {
	to, isTo := dst.Region.File().(*File)
	from, isFrom := src.Region.File().(*File)
	p := piece{file: from, off: src.Off, mem: dst}
	if isTo {
		p = piece{file: to, off: dst.Off, mem: src, write: true}
	}
	switch r := p.mem.Region; {
	case isTo == isFrom || r.Kind() == mem.KindFile:
		return p, fmt.Errorf("a copy has a file of this stream's on one side, not %s and %s: %w", dst.Region, src.Region, errdefs.ErrInvalid)
	case r.CPU() == 0 && (s.opts.Device == nil || r.Device() != s.opts.Device.Info().Index):
		return p, fmt.Errorf("the stream does not reach the %s: %w", r, errdefs.ErrInvalid)
	}
	return p, nil
}

// key is what a piece is ordered by, and less to move.
type key struct {
	file  *File
	off   int64
	at    int // in the batch
	write bool
}

func (p *piece) key(at int) key { return key{p.file, p.off, at, p.write} }

func order(a, b key) int {
	switch {
	case a.write != b.write:
		if a.write {
			return 1
		}
		return -1
	case a.file != b.file:
		return cmp.Or(cmp.Compare(a.file.info.Device, b.file.info.Device), cmp.Compare(a.file.info.Inode, b.file.info.Inode),
			cmp.Compare(a.file.fd, b.file.fd), cmp.Compare(a.at, b.at))
	case a.off != b.off:
		return cmp.Compare(a.off, b.off)
	}
	return cmp.Compare(a.at, b.at)
}

func ordered(pieces []piece) []piece {
	keys := make([]key, len(pieces))
	for i := range pieces {
		keys[i] = pieces[i].key(i)
	}
	slices.SortFunc(keys, order)
	out := make([]piece, len(pieces))
	for i, k := range keys {
		out[i] = pieces[k.at]
	}
	return out
}

// place says of each piece how it is moved.
func (s *Stream) place(pieces []piece) {
	for i := 0; i < len(pieces); {
		j := i + 1 // the file's
		for j < len(pieces) && pieces[j].file == pieces[i].file && pieces[j].write == pieces[i].write {
			j++
		}
		placeFile(pieces[i:j])
		i = j
	}
}

// placeFile does it for those of one file and one direction.
func placeFile(pieces []piece) {
	buffered := false
	for i := 0; i < len(pieces); {
		j, end := i+1, pieces[i].end() // the run of neighbours
		for j < len(pieces) && pieces[j].off <= end && pieces[j].with(&pieces[i]) {
			end = max(end, pieces[j].end())
			j++
		}
		for k := i; k < j; k++ {
			p := &pieces[k]
			p.straight = !p.device() && (j == i+1 || p.mem.Len >= straightBytes)
			if p.straight {
				buffered = buffered || (p.off|p.mem.Len|int64(p.mem.CPU()))%Align != 0
			}
		}
		// What is gathered in chunks between straight pieces is a run of its own.
		for k := i; k < j; k++ {
			if p := &pieces[k]; !p.straight {
				buffered = buffered || (k == i || pieces[k-1].straight) && p.off%Align != 0 ||
					(k == j-1 || pieces[k+1].straight) && p.end()%Align != 0
			}
		}
		i = j
	}
	if buffered && pieces[0].write {
		for k := range pieces {
			pieces[k].buffered = true
		}
	}
}

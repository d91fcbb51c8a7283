package file

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// straightBytes is the minimum length at which scattered pieces of host memory are moved in place.
// Shorter ones are gathered in a chunk and copied by the CPU.
const straightBytes = 64 << 10

// piece is one copy of a batch, or several adjacent ones.
type piece struct {
	file     *File
	off      int64 // offset in the file
	mem      mem.Extent
	write    bool
	straight bool // host memory that is moved in place
	buffered bool // must not be moved with O_DIRECT
}

func (p *piece) end() int64   { return p.off + p.mem.Len }
func (p *piece) device() bool { return p.mem.Region.CPU() == 0 }

// sharesPart reports whether two pieces may be in one part.
func (p *piece) sharesPart(o *piece) bool { return p.write == o.write && p.device() == o.device() }

// survey returns the batch's copies sorted by direction, file and offset, with adjacent copies
// merged. It returns ErrInvalid if a copy does not have a file on exactly one side, or if the
// stream cannot access its memory.
func (s *Stream) survey(b *mem.Batch) ([]piece, error) {
	pieces := make([]piece, 0, min(b.Pieces(), 1<<16))
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
			if last.source() == p.source() && last.end() == p.off && last.mem.Region == p.mem.Region && last.mem.Off+last.mem.Len == p.mem.Off {
				last.mem.Len += p.mem.Len
				continue
			}
		}
		pieces = append(pieces, p)
	}
	pieces = ordered(pieces)
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
		return p, fmt.Errorf("a copy needs a file of this stream on one side, not %s and %s: %w", dst.Region, src.Region, errdefs.ErrInvalid)
	case r.CPU() == 0 && (s.opts.Device == nil || r.Device() != s.opts.Device.Info().Index):
		return p, fmt.Errorf("the stream does not reach the %s: %w", r, errdefs.ErrInvalid)
	}
	return p, nil
}

// source is a file and a direction.
type source struct {
	file  *File
	write bool
}

func (p *piece) source() source { return source{p.file, p.write} }

// order compares sources: reads first, then by device and inode number.
func order(a, b source) int {
	if a.write != b.write {
		if a.write {
			return 1
		}
		return -1
	}
	x, y := a.file, b.file
	return cmp.Or(cmp.Compare(x.info.Device, y.info.Device), cmp.Compare(x.info.Inode, y.info.Inode), cmp.Compare(x.fd, y.fd))
}

// ordered returns the pieces sorted by source and offset. Equal ones stay in the order of the
// batch.
func ordered(pieces []piece) []piece {
	if len(pieces) < 2 {
		return pieces
	}
	keys, sources := make([]key, len(pieces)), []source(nil)
	numbers := make(map[source]int)
	for i := range pieces {
		p := &pieces[i]
		if i > 0 && p.source() == pieces[i-1].source() {
			keys[i] = key{keys[i-1].source, p.off, i}
			continue
		}
		n, known := numbers[p.source()]
		if !known {
			n = len(sources)
			numbers[p.source()], sources = n, append(sources, p.source())
		}
		keys[i] = key{n, p.off, i}
	}
	slices.SortStableFunc(sources, order)
	ranks := make([]int, len(sources))
	for rank, s := range sources {
		ranks[numbers[s]] = rank
	}
	for i := range keys {
		keys[i].source = ranks[keys[i].source]
	}
	slices.SortFunc(keys, key.compare)
	out := make([]piece, len(pieces))
	for i, k := range keys {
		out[i] = pieces[k.at]
	}
	return out
}

// key is the sort key of a piece. It is smaller than a piece and faster to compare.
type key struct {
	source int // rank of the source in the batch
	off    int64
	at     int // index of the piece in the batch
}

func (a key) compare(b key) int {
	if a.source != b.source {
		return cmp.Compare(a.source, b.source)
	}
	if a.off != b.off {
		return cmp.Compare(a.off, b.off)
	}
	return cmp.Compare(a.at, b.at)
}

// place sets how each piece is moved.
func (s *Stream) place(pieces []piece) {
	for i := 0; i < len(pieces); {
		j := i + 1 // end of the pieces of this file and direction
		for j < len(pieces) && pieces[j].file == pieces[i].file && pieces[j].write == pieces[i].write {
			j++
		}
		s.placeFile(pieces[i:j])
		i = j
	}
}

// placeFile sets how the pieces of one file and direction are moved. Adjacent pieces are gathered
// into one transfer, unless the page cache has them, because gathering would copy them twice.
func (s *Stream) placeFile(pieces []piece) {
	buffered, cached := false, s.warm.hot.Load() && s.triesCache(pieces[0].file, pieces[0].write)
	for i := 0; i < len(pieces); {
		j, end := i+1, pieces[i].end() // the run of adjacent pieces
		for j < len(pieces) && pieces[j].off <= end && pieces[j].sharesPart(&pieces[i]) {
			end = max(end, pieces[j].end())
			j++
		}
		alone := j == i+1
		if !alone && cached && !pieces[i].device() {
			there, known := pieces[i].file.has(pieces[i].off, end-pieces[i].off)
			alone = there && known
		}
		for k := i; k < j; k++ {
			p := &pieces[k]
			p.straight = !p.device() && (alone || p.mem.Len >= straightBytes)
			if p.straight {
				buffered = buffered || (p.off|p.mem.Len|int64(p.mem.CPU()))%Align != 0
			}
		}
		// Staged pieces between straight ones form a separate run.
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

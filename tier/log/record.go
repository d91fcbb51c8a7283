package log

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// A group is the result of one write: a header that describes the blocks, and then the blocks,
// aligned to pages. See docs/log-format.md.
const (
	groupMagic    = "\x89KVLG\r\n\x1a"
	formatVersion = 1

	page            = block.AlignBytes
	maxSegmentBytes = int64(1) << 40
	maxHeader       = 32 * page
	compactBytes    = 64 << 10 // a block with fewer bytes of shards has no separate header

	offVersion  = 8
	offHeader   = 12
	offGroup    = 16
	offSegment  = 24
	offOffset   = 32
	offSynced   = 40 // segment, offset
	offDir      = 56
	offSeq      = 80 // epoch, number
	offFormats  = 72
	offRecords  = 76
	offTable    = 96
	formatBytes = 48
	recordBytes = 40
	sumBytes    = 8
)

func pages(n int64) int64 { return (n + page - 1) / page }

// kind is the kind of a record.
type kind uint8

const (
	whole   kind = 1 // the whole image
	compact kind = 2 // only the shards; the group's header has the checksums
	deleted kind = 3 // no data: the block was deleted
)

// kindOf returns the kind of the records of a format's blocks.
func kindOf(f block.Format) kind {
	if f.Layout.ImageBytes()-f.Layout.HeaderBytes() < compactBytes {
		return compact
	}
	return whole
}

// storedBytes returns the length of a block in a group.
func storedBytes(f block.Format) int64 {
	if kindOf(f) == compact {
		return f.Layout.ImageBytes() - f.Layout.HeaderBytes()
	}
	return f.Layout.ImageBytes()
}

// describedBytes returns the length of a format in a group's header.
func describedBytes(f block.Format) int64 {
	if kindOf(f) == compact {
		return formatBytes + 8*int64(f.Layout.Shards())
	}
	return formatBytes
}

func recordedBytes(f block.Format) int64 {
	if kindOf(f) == compact {
		return recordBytes + 8*int64(f.Layout.Shards())
	}
	return recordBytes
}

// headerFor returns the length of the header of a group with one block.
func headerFor(f block.Format) int64 {
	return pages(offTable+describedBytes(f)+recordedBytes(f)+sumBytes) * page
}

// position is an offset in a segment.
type position struct {
	segment uint64
	off     int64
}

func (p position) before(q position) bool { return p.compare(q) < 0 }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.segment, q.segment), cmp.Compare(p.off, q.off))
}

// record describes one block of a group.
type record struct {
	key      block.Key
	kind     kind
	group    uint8  // the page group of its format
	position uint32 // position in its prompt, or 0 if unknown
	algo     block.SumAlgo
	sums     []uint64 // checksums of the shards of a compact block
	off      int64    // offset of its data in the group, set by decoding
	number   int      // index of its format in the decoded header
}

// header is the header of a group.
type header struct {
	bytes, groupBytes int64
	at                position
	synced            position // everything before this position was durable when the header was written
	// seq contains the lowest segment number of the writing process, and the number of the group in
	// that process.
	seq       position
	directory [16]byte
	formats   []formatInfo
	records   []record
}

// place returns the place of a record's data.
func (h *header) place(r *record) place {
	return place{uint32(h.at.segment), uint32((h.at.off + r.off) / page), uint16(r.off / page)}
}

// formatInfo is a format in a header. lens is nil unless its blocks are compact.
type formatInfo struct {
	digest block.Digest
	image  int64
	shards int
	lens   []int64
	group  int // page group of the formats passed to decoding, or -1
}

// encode writes the header into b, which has the header's length. The groups of the records are
// indices of formats.
func (h *header) encode(b []byte, formats block.Formats) {
	clear(b)
	copy(b, groupMagic)
	le := binary.LittleEndian
	le.PutUint32(b[offVersion:], formatVersion)
	le.PutUint32(b[offHeader:], uint32(len(b)))
	le.PutUint64(b[offGroup:], uint64(h.groupBytes))
	le.PutUint64(b[offSegment:], h.at.segment)
	le.PutUint64(b[offOffset:], uint64(h.at.off))
	le.PutUint64(b[offSynced:], h.synced.segment)
	le.PutUint64(b[offSynced+8:], uint64(h.synced.off))
	copy(b[offDir:], h.directory[:])
	le.PutUint64(b[offSeq:], h.seq.segment)
	le.PutUint64(b[offSeq+8:], uint64(h.seq.off))
	le.PutUint32(b[offRecords:], uint32(len(h.records)))
	var number [block.MaxGroups]int // index in the header, from 1; 0 if not used
	used, at := 0, offTable
	for i := range h.records {
		g := h.records[i].group
		if number[g] > 0 || h.records[i].kind == deleted {
			continue
		}
		used++
		number[g] = used
		f := formats[g]
		copy(b[at:], f.Identity[:])
		le.PutUint64(b[at+32:], uint64(f.Layout.ImageBytes()))
		le.PutUint32(b[at+40:], uint32(f.Layout.Shards()))
		le.PutUint32(b[at+44:], uint32(kindOf(f)))
		at += formatBytes
		if kindOf(f) == compact {
			for s := range f.Layout.Shards() {
				le.PutUint64(b[at:], uint64(f.Layout.ShardBytes(s)))
				at += 8
			}
		}
	}
	le.PutUint32(b[offFormats:], uint32(used))
	for i := range h.records {
		r := &h.records[i]
		copy(b[at:], r.key[:])
		b[at+32] = byte(r.kind)
		b[at+33] = byte(max(0, number[r.group]-1))
		le.PutUint16(b[at+34:], uint16(r.algo))
		le.PutUint32(b[at+36:], r.position)
		at += recordBytes
		for _, sum := range r.sums {
			le.PutUint64(b[at:], sum)
			at += 8
		}
	}
	le.PutUint64(b[len(b)-sumBytes:], xxh3.Hash(b[:len(b)-sumBytes]))
}

// headerLen returns the length of the header that begins in the page b. It returns ErrCorrupt if no
// header begins there.
func headerLen(b []byte) (int64, error) {
	if len(b) < offTable || string(b[:len(groupMagic)]) != groupMagic {
		return 0, fmt.Errorf("no group begins here: %w", errdefs.ErrCorrupt)
	}
	n := int64(binary.LittleEndian.Uint32(b[offHeader:]))
	if n < page || n > maxHeader || n%page != 0 {
		return 0, fmt.Errorf("the group's header has %d bytes, which is no multiple of %d up to %d: %w", n, page, maxHeader, errdefs.ErrCorrupt)
	}
	return n, nil
}

// decodeHeader decodes a whole header. It checks every field before use. It returns ErrCorrupt for
// damage, and ErrMismatch for an intact header of another version.
func decodeHeader(b []byte, formats block.Formats) (*header, error) {
	n, err := headerLen(b)
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("group header: "+format+": %w", append(args, errdefs.ErrCorrupt)...)
	}
	if int64(len(b)) < n {
		return nil, bad("%d of %d bytes are there", len(b), n)
	}
	b = b[:n]
	le := binary.LittleEndian
	if want, got := le.Uint64(b[n-sumBytes:]), xxh3.Hash(b[:n-sumBytes]); want != got {
		return nil, bad("its checksum is %016x, it has %016x", got, want)
	}
	if v := le.Uint32(b[offVersion:]); v != formatVersion {
		return nil, fmt.Errorf("group header: format version %d, this build reads %d: %w", v, formatVersion, errdefs.ErrMismatch)
	}
	h := &header{
		bytes: n, groupBytes: int64(le.Uint64(b[offGroup:])),
		at:        position{le.Uint64(b[offSegment:]), int64(le.Uint64(b[offOffset:]))},
		synced:    position{le.Uint64(b[offSynced:]), int64(le.Uint64(b[offSynced+8:]))},
		seq:       position{le.Uint64(b[offSeq:]), int64(le.Uint64(b[offSeq+8:]))},
		directory: [16]byte(b[offDir:]),
	}
	used, records := int(le.Uint32(b[offFormats:])), int(le.Uint32(b[offRecords:]))
	rest := b[offTable : n-sumBytes]
	if h.groupBytes < n || h.groupBytes > maxSegmentBytes || used > block.MaxGroups || records > len(rest)/recordBytes {
		return nil, bad("%d bytes, %d formats, %d records", h.groupBytes, used, records)
	}
	for range used {
		f, after, ok := decodeFormat(rest, formats)
		if !ok {
			return nil, bad("invalid format")
		}
		h.formats, rest = append(h.formats, f), after
	}
	at := n
	h.records = make([]record, records)
	for i := range h.records {
		r := &h.records[i]
		var stored int64
		if stored, rest, err = h.decodeRecord(r, rest); err != nil {
			return nil, err
		}
		if r.off = at; stored > h.groupBytes-at {
			return nil, bad("its blocks are longer than the group")
		}
		at += stored
	}
	if at != h.groupBytes {
		return nil, bad("its blocks end at %d, the group at %d", at, h.groupBytes)
	}
	return h, nil
}

func decodeFormat(b []byte, formats block.Formats) (f formatInfo, rest []byte, ok bool) {
	if len(b) < formatBytes {
		return f, nil, false
	}
	le := binary.LittleEndian
	f = formatInfo{digest: block.Digest(b), image: int64(le.Uint64(b[32:])), shards: int(le.Uint32(b[40:])), group: -1}
	k := kind(le.Uint32(b[44:]))
	b = b[formatBytes:]
	if f.image < 2*page || f.image > block.MaxImageBytes || f.image%page != 0 || f.shards < 1 || f.shards > block.MaxShards || k != whole && k != compact {
		return f, nil, false
	}
	if k == compact {
		if f.shards > compactBytes/page || len(b) < 8*f.shards {
			return f, nil, false
		}
		for i := range f.shards {
			f.lens = append(f.lens, int64(le.Uint64(b[8*i:])))
		}
		b = b[8*f.shards:]
		if l, err := block.NewLayout(f.lens); err != nil || l.ImageBytes() != f.image || kindOf(block.Format{Layout: l}) != compact {
			return f, nil, false
		}
	}
	for g, have := range formats {
		if have.Identity == f.digest && have.Layout.ImageBytes() == f.image && have.Layout.Shards() == f.shards && kindOf(have) == k {
			f.group = g
		}
	}
	return f, b, true
}

// decodeRecord decodes a record. It returns the length of the block and the remaining bytes of the
// header.
func (h *header) decodeRecord(r *record, b []byte) (stored int64, rest []byte, err error) {
	bad := fmt.Errorf("group header: invalid record: %w", errdefs.ErrCorrupt)
	if len(b) < recordBytes {
		return 0, nil, bad
	}
	*r = record{key: block.Key(b), kind: kind(b[32]), algo: block.SumAlgo(binary.LittleEndian.Uint16(b[34:]))}
	r.number, r.position = int(b[33]), binary.LittleEndian.Uint32(b[36:])
	b = b[recordBytes:]
	if r.kind == deleted {
		return 0, b, nil
	}
	if r.number >= len(h.formats) {
		return 0, nil, bad
	}
	f := &h.formats[r.number]
	r.group = uint8(f.group) // 255: none
	stored = f.image
	if (r.kind == compact) != (f.lens != nil) || r.kind != whole && r.kind != compact {
		return 0, nil, bad
	}
	if r.kind == compact {
		if len(b) < 8*f.shards {
			return 0, nil, bad
		}
		r.sums = make([]uint64, f.shards)
		for i := range r.sums {
			r.sums[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
		b = b[8*f.shards:]
		l, _ := block.NewLayout(f.lens)
		stored -= l.HeaderBytes()
	}
	return stored, b, nil
}

// foreign reports whether the record's format is not one of the directory's.
func (r *record) foreign() bool { return r.kind != deleted && r.group == 255 }

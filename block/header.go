package block

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/errdefs"
)

// FormatVersion is the version of the image format that this package reads and writes.
const FormatVersion = 1

// The header, little-endian:
//
//	 0  magic                8 bytes
//	 8  format version       u32
//	12  header length        u32  a multiple of AlignBytes
//	16  image length         u64  a multiple of AlignBytes
//	24  checksum algorithm   u32  a SumAlgo
//	28  shards               u32
//	32  identity digest      32 bytes
//	64  key                  32 bytes
//	96  shard table          24 bytes per shard: offset u64, length u64, checksum u64
//	    zeros
//	-8  checksum of all before it, always XXH3
//
// Magic, version, header length and the header's checksum are at the same places in every version,
// so that a reader can distinguish a newer version (ErrVersion) from damage (ErrCorrupt).
const (
	magic = "\x89KVLB\r\n\x1a" // damaged by text mode and 7-bit transfer, like the signature of PNG

	offVersion  = 8
	offHeader   = 12
	offImage    = 16
	offSumAlgo  = 24
	offShards   = 28
	offIdentity = 32
	offKey      = 64
	offTable    = 96
	entryBytes  = 24
	sumBytes    = 8

	minHeader = AlignBytes
	maxHeader = (offTable + MaxShards*entryBytes + sumBytes + AlignBytes - 1) / AlignBytes * AlignBytes
)

// headerBytes returns the length of a header for n shards, before alignment.
func headerBytes(n int) int64 { return offTable + int64(n)*entryBytes + sumBytes }

// Header is a decoded header. It refers to the decoded bytes, which must not change while it is in
// use.
type Header struct {
	Version    uint32
	Bytes      int64 // of the header
	ImageBytes int64
	SumAlgo    SumAlgo
	Identity   Digest
	Key        Key
	table      []byte
}

// Shards returns the number of shards.
func (h *Header) Shards() int { return len(h.table) / entryBytes }

// Shard returns the offset, length and checksum of shard i.
func (h *Header) Shard(i int) (off, bytes int64, sum uint64) {
	e := h.table[i*entryBytes:][:entryBytes]
	return int64(binary.LittleEndian.Uint64(e)), int64(binary.LittleEndian.Uint64(e[8:])), binary.LittleEndian.Uint64(e[16:])
}

// compare checks the checksum of shard i against the header.
func (h *Header) compare(i int, got uint64) error {
	if _, _, want := h.Shard(i); got != want {
		return fmt.Errorf("verify block %s: checksum of shard %d is %016x, the header has %016x: %w", h.Key, i, got, want, errdefs.ErrCorrupt)
	}
	return nil
}

// Layout returns the layout that the header describes.
func (h *Header) Layout() (*Layout, error) {
	lens := make([]int64, h.Shards())
	for i := range lens {
		_, lens[i], _ = h.Shard(i)
	}
	return NewLayout(lens)
}

// HeaderLen returns the length of the header that begins with b. It needs the first 16 bytes of an
// image. DecodeHeader needs the whole header.
func HeaderLen(b []byte) (int64, error) {
	if len(b) < offImage {
		return 0, fmt.Errorf("decode block header: %d bytes are too few: %w", len(b), errdefs.ErrCorrupt)
	}
	if string(b[:len(magic)]) != magic {
		return 0, fmt.Errorf("decode block header: no block image, it begins with %x: %w", b[:len(magic)], errdefs.ErrCorrupt)
	}
	n := int64(binary.LittleEndian.Uint32(b[offHeader:]))
	if n < minHeader || n > maxHeader || n%AlignBytes != 0 {
		return 0, fmt.Errorf("decode block header: header length %d is not a multiple of %d up to %d: %w", n, AlignBytes, maxHeader, errdefs.ErrCorrupt)
	}
	return n, nil
}

// ErrVersion is returned for an intact header of another format version. It wraps ErrMismatch. The
// image is not damaged, and must not be removed.
var ErrVersion = fmt.Errorf("another version's: %w", errdefs.ErrMismatch)

// DecodeHeader decodes the header at the start of b, which may be the whole image. It allocates
// only on failure, checks each field before use, and accepts only layouts that NewLayout can
// produce. It returns ErrCorrupt for damage, and ErrVersion for an intact header of another format
// version or checksum algorithm.
func DecodeHeader(b []byte) (Header, error) {
	n, err := HeaderLen(b)
	if err != nil {
		return Header{}, err
	}
	if int64(len(b)) < n {
		return Header{}, fmt.Errorf("decode block header: %d bytes of a header of %d: %w", len(b), n, errdefs.ErrCorrupt)
	}
	b = b[:n]
	if want, got := binary.LittleEndian.Uint64(b[n-sumBytes:]), xxh3.Hash(b[:n-sumBytes]); want != got {
		return Header{}, fmt.Errorf("decode block header: header checksum is %016x, the header has %016x: %w", got, want, errdefs.ErrCorrupt)
	}
	h := Header{
		Version:    binary.LittleEndian.Uint32(b[offVersion:]),
		Bytes:      n,
		ImageBytes: int64(binary.LittleEndian.Uint64(b[offImage:])),
		SumAlgo:    SumAlgo(binary.LittleEndian.Uint32(b[offSumAlgo:])),
		Identity:   Digest(b[offIdentity:]),
		Key:        Key(b[offKey:]),
	}
	if h.Version != FormatVersion {
		return Header{}, fmt.Errorf("decode block header: format version %d, this build reads %d: %w", h.Version, FormatVersion, ErrVersion)
	}
	if !h.SumAlgo.known() {
		return Header{}, fmt.Errorf("decode block header: checksum algorithm %d, this build supports up to %d: %w", uint32(h.SumAlgo), uint32(SumTree), ErrVersion)
	}
	shards := binary.LittleEndian.Uint32(b[offShards:])
	if shards == 0 || shards > MaxShards || align(headerBytes(int(shards))) != n {
		return Header{}, fmt.Errorf("decode block header: %d shards in a header of %d bytes: %w", shards, n, errdefs.ErrCorrupt)
	}
	end := offTable + int(shards)*entryBytes
	h.table = b[offTable:end]
	if !zero(b[end : n-sumBytes]) {
		return Header{}, fmt.Errorf("decode block header: bytes after the shard table are not zero: %w", errdefs.ErrCorrupt)
	}
	return h, h.checkTable()
}

// checkTable checks that the shards are placed as NewLayout places them.
func (h *Header) checkTable() error {
	at := h.Bytes
	for i := range h.Shards() {
		off, n, _ := h.Shard(i)
		if off != at || n <= 0 || n > MaxImageBytes-at {
			return fmt.Errorf("decode block header: shard %d is %d bytes at %d, where %d was expected: %w", i, n, off, at, errdefs.ErrCorrupt)
		}
		at += align(n)
	}
	if h.ImageBytes != at {
		return fmt.Errorf("decode block header: image length %d, the shards end at %d: %w", h.ImageBytes, at, errdefs.ErrCorrupt)
	}
	return nil
}

// putHeader writes the header of an image to its first l.HeaderBytes bytes.
func putHeader(b []byte, f Format, key Key, sums []uint64) {
	l := f.Layout
	b = b[:l.header]
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[offVersion:], FormatVersion)
	binary.LittleEndian.PutUint32(b[offHeader:], uint32(l.header))
	binary.LittleEndian.PutUint64(b[offImage:], uint64(l.image))
	binary.LittleEndian.PutUint32(b[offSumAlgo:], uint32(f.Algo()))
	binary.LittleEndian.PutUint32(b[offShards:], uint32(len(l.lens)))
	copy(b[offIdentity:], f.Identity[:])
	copy(b[offKey:], key[:])
	at := offTable
	for i := range l.lens {
		binary.LittleEndian.PutUint64(b[at:], uint64(l.offs[i]))
		binary.LittleEndian.PutUint64(b[at+8:], uint64(l.lens[i]))
		binary.LittleEndian.PutUint64(b[at+16:], sums[i])
		at += entryBytes
	}
	n := len(b) - sumBytes
	clear(b[at:n])
	binary.LittleEndian.PutUint64(b[n:], xxh3.Hash(b[:n]))
}

// zero reports whether all bytes are zero. It checks that the first is zero and that each equals
// the previous one, because bytes.Equal compares many bytes at a time.
func zero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

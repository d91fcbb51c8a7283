package block

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// Format seals and verifies images of one identity and layout. It is a small value and may be
// copied.
//
// Checksums cover the bytes of the shards. Sealing clears the padding, and verifying checks that it
// is zero. Thus every byte of an image is checked, and no uninitialized memory is written to
// storage.
//
// The image contains the checksum algorithm. Images with any known algorithm can be verified.
type Format struct {
	Layout   *Layout
	Identity Digest
	// Sum is the algorithm for sealing. Zero means DefaultSum.
	Sum SumAlgo
}

// Algo returns the algorithm for sealing.
func (f Format) Algo() SumAlgo {
	if f.Sum == 0 {
		return DefaultSum
	}
	return f.Sum
}

// Seal completes an image: it computes the checksums of its shards, clears the padding and writes
// the header. It returns ErrInvalid unless image has Layout.ImageBytes bytes.
func (f Format) Seal(image []byte, key Key) error {
	if err := f.checkLen(image); err != nil {
		return fmt.Errorf("seal block %s: %w", key, err)
	}
	var few [256]uint64
	sums := few[:]
	if n := f.Layout.Shards(); n > len(few) {
		sums = make([]uint64, n)
	}
	sums = sums[:f.Layout.Shards()]
	for i := range sums {
		sums[i] = f.SumShard(image, i)
	}
	return f.SealWith(image, key, sums)
}

// SumShard returns the checksum of shard i, without its padding. It panics unless image has
// Layout.ImageBytes bytes and i is a shard.
func (f Format) SumShard(image []byte, i int) uint64 {
	data, _ := f.Layout.shard(image, i)
	return f.Algo().sum(data)
}

// SealWith is Seal with given checksums of the shards, made with the format's algorithm. For
// SumTree they are results of FoldLeaves.
func (f Format) SealWith(image []byte, key Key, sums []uint64) error {
	if err := f.checkLen(image); err != nil {
		return fmt.Errorf("seal block %s: %w", key, err)
	}
	if len(sums) != f.Layout.Shards() {
		return fmt.Errorf("seal block %s: %d checksums for %d shards: %w", key, len(sums), f.Layout.Shards(), errdefs.ErrInvalid)
	}
	if !f.Algo().known() {
		return fmt.Errorf("seal block %s: %s is not known: %w", key, f.Sum, errdefs.ErrInvalid)
	}
	for i := range sums {
		_, padding := f.Layout.shard(image, i)
		clear(padding)
	}
	putHeader(image, f, key, sums)
	return nil
}

// SealHeader writes the header of an image whose shards are stored elsewhere and have no padding.
// head has Layout.HeaderBytes bytes. sums are the checksums of the shards. It returns ErrInvalid if
// a length does not match the layout.
func (f Format) SealHeader(head []byte, key Key, sums []uint64) error {
	if f.Layout == nil || int64(len(head)) != f.Layout.header || len(sums) != f.Layout.Shards() || !f.Algo().known() {
		return fmt.Errorf("seal the header of block %s: %d bytes, %d checksums: %w", key, len(head), len(sums), errdefs.ErrInvalid)
	}
	for i, n := range f.Layout.lens {
		if n != align(n) {
			return fmt.Errorf("seal the header of block %s: shard %d of %d bytes has padding: %w", key, i, n, errdefs.ErrInvalid)
		}
	}
	putHeader(head, f, key, sums)
	return nil
}

// Verify checks the whole image: the header, its identity, layout and key, every shard and the
// padding. It returns ErrCorrupt for changed bytes, ErrMismatch for an intact header of another
// block, and ErrInvalid unless image has Layout.ImageBytes bytes.
func (f Format) Verify(image []byte, key Key) error {
	h, err := f.Header(image, key)
	if err != nil {
		return err
	}
	for i := range f.Layout.lens {
		if err := f.verifyShard(&h, image, i); err != nil {
			return err
		}
	}
	return nil
}

// VerifyHeader checks only the header, and its identity, layout and key. Its errors are those of
// Verify.
func (f Format) VerifyHeader(image []byte, key Key) error {
	_, err := f.Header(image, key)
	return err
}

// Header checks the header like VerifyHeader and returns it.
func (f Format) Header(image []byte, key Key) (Header, error) {
	if err := f.checkLen(image); err != nil {
		return Header{}, fmt.Errorf("verify block %s: %w", key, err)
	}
	return f.decode(image, key)
}

// HeaderSums checks the first Layout.HeaderBytes bytes of an image like VerifyHeader, and appends
// the checksums of the shards to sums. It returns ErrNotSupported if they are not SumTree.
func (f Format) HeaderSums(sums []uint64, header []byte, key Key) ([]uint64, error) {
	h, err := f.decode(header, key)
	if err != nil {
		return sums, err
	}
	if h.SumAlgo != SumTree {
		return sums, fmt.Errorf("block %s has checksums of %s: %w", key, h.SumAlgo, errdefs.ErrNotSupported)
	}
	for i := range h.Shards() {
		_, _, sum := h.Shard(i)
		sums = append(sums, sum)
	}
	return sums, nil
}

// decode checks the header at the start of b, and its identity, layout and key.
func (f Format) decode(b []byte, key Key) (Header, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return Header{}, fmt.Errorf("verify block %s: %w", key, err)
	}
	switch {
	case h.Identity != f.Identity:
		return Header{}, fmt.Errorf("verify block %s: it is of identity %s, expected %s: %w", key, h.Identity, f.Identity, errdefs.ErrMismatch)
	case h.Shards() != f.Layout.Shards():
		return Header{}, fmt.Errorf("verify block %s: it has %d shards, expected %d: %w", key, h.Shards(), f.Layout.Shards(), errdefs.ErrMismatch)
	case h.Key != key:
		return Header{}, fmt.Errorf("verify block %s: it is block %s: %w", key, h.Key, errdefs.ErrMismatch)
	}
	for i, want := range f.Layout.lens {
		if _, n, _ := h.Shard(i); n != want {
			return Header{}, fmt.Errorf("verify block %s: shard %d has %d bytes, expected %d: %w", key, i, n, want, errdefs.ErrMismatch)
		}
	}
	return h, nil
}

// Verified returns the header of an image that Header or VerifyHeader has already checked. It does
// not check the header again. It returns ErrInvalid unless image has Layout.ImageBytes bytes, and
// ErrMismatch for an unknown algorithm.
func (f Format) Verified(image []byte) (Header, error) {
	if err := f.checkLen(image); err != nil {
		return Header{}, err
	}
	h := Header{
		Version:    FormatVersion,
		Bytes:      f.Layout.header,
		ImageBytes: f.Layout.image,
		SumAlgo:    SumAlgo(binary.LittleEndian.Uint32(image[offSumAlgo:])),
		Identity:   f.Identity,
		Key:        Key(image[offKey:]),
		table:      image[offTable:][:f.Layout.Shards()*entryBytes],
	}
	if !h.SumAlgo.known() {
		return Header{}, fmt.Errorf("block %s has checksums of %s: %w", h.Key, h.SumAlgo, errdefs.ErrMismatch)
	}
	return h, nil
}

// ShardSums appends the checksums of the shards in the image's header to sums. It does not verify
// the header. It appends nothing if the checksums are not SumTree or the header has another key.
func (f Format) ShardSums(sums []uint64, image []byte, key Key) []uint64 {
	if int64(len(image)) != f.Layout.image || SumAlgo(binary.LittleEndian.Uint32(image[offSumAlgo:])) != SumTree || Key(image[offKey:]) != key {
		return sums
	}
	h := Header{table: image[offTable:][:f.Layout.Shards()*entryBytes]}
	for i := range h.Shards() {
		_, _, sum := h.Shard(i)
		sums = append(sums, sum)
	}
	return sums
}

func (f Format) verifyShard(h *Header, image []byte, i int) error {
	data, padding := f.Layout.shard(image, i)
	if err := h.compare(i, h.SumAlgo.sum(data)); err != nil {
		return err
	}
	if !zero(padding) {
		return fmt.Errorf("verify block %s: padding after shard %d is not zero: %w", h.Key, i, errdefs.ErrCorrupt)
	}
	return nil
}

func (f Format) checkLen(image []byte) error {
	if f.Layout == nil {
		return fmt.Errorf("the format has no layout: %w", errdefs.ErrInvalid)
	}
	if int64(len(image)) != f.Layout.image {
		return fmt.Errorf("the image has %d bytes, expected %d: %w", len(image), f.Layout.image, errdefs.ErrInvalid)
	}
	return nil
}

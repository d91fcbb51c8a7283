package block_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// resum corrects the header's checksum, so that the decoder checks the other fields.
func resum(b []byte) []byte {
	n := int(binary.LittleEndian.Uint32(b[12:]))
	binary.LittleEndian.PutUint64(b[n-8:], xxh3.Hash(b[:n-8]))
	return b
}

func TestDecodeHeaderRefuses(t *testing.T) {
	f, key := someFormat(t, 700, 100)
	good := sealed(t, f, key, 1)
	put32 := func(off int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[off:], v)
			return resum(b)
		}
	}
	put64 := func(off int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[off:], v)
			return resum(b)
		}
	}
	tests := []struct {
		name   string
		damage func([]byte) []byte
		is     error
		want   string
	}{
		{"nothing", func([]byte) []byte { return nil }, errdefs.ErrCorrupt, "0 bytes"},
		{"half a header", func(b []byte) []byte { return b[:2000] }, errdefs.ErrCorrupt, "2000 bytes"},
		{"zeros", func(b []byte) []byte { clear(b); return b }, errdefs.ErrCorrupt, "no block image"},
		{"text mode", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }, errdefs.ErrCorrupt, "no block image"},
		{"checksum", func(b []byte) []byte { b[200] ^= 1; return b }, errdefs.ErrCorrupt, "header checksum"},
		{"version, damaged", func(b []byte) []byte { b[8] = 2; return b }, errdefs.ErrCorrupt, "header checksum"},
		{"version, intact", put32(8, 2), errdefs.ErrMismatch, "version 2"},
		{"header length zero", func(b []byte) []byte { clear(b[12:16]); return b }, errdefs.ErrCorrupt, "header length 0"},
		{"header length odd", func(b []byte) []byte { b[12] = 1; return b }, errdefs.ErrCorrupt, "header length 4097"},
		{"header length huge", func(b []byte) []byte { b[15] = 0xf0; return b }, errdefs.ErrCorrupt, "header length"},
		{"header length of more", func(b []byte) []byte { b[13] = 0x40; return b }, errdefs.ErrCorrupt, "of a header of 16384"},
		{"checksum algorithm", put32(24, 7), errdefs.ErrMismatch, "algorithm 7"},
		{"no shards", put32(28, 0), errdefs.ErrCorrupt, "0 shards"},
		{"more shards than the header", put32(28, 200), errdefs.ErrCorrupt, "200 shards"},
		{"shards overflow", put32(28, 0xffffffff), errdefs.ErrCorrupt, "shards"},
		{"shard in the header", put64(96, 0), errdefs.ErrCorrupt, "shard 0"},
		{"shard offset negative", put64(96, 1<<63), errdefs.ErrCorrupt, "shard 0"},
		{"shard length zero", put64(96+8, 0), errdefs.ErrCorrupt, "shard 0"},
		{"shard length huge", put64(96+8, 1<<62), errdefs.ErrCorrupt, "shard 0"},
		{"shards overlap", put64(96+24, 4096), errdefs.ErrCorrupt, "shard 1"},
		{"image length", put64(16, 4096), errdefs.ErrCorrupt, "image length 4096"},
		{"bytes after the table", put64(96+48, 1), errdefs.ErrCorrupt, "not zero"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.damage(bytes.Clone(good))
			_, err := block.DecodeHeader(b)
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v; want %v with %q", err, tt.is, tt.want)
			}
			if errors.Is(err, errdefs.ErrCorrupt) && errors.Is(err, errdefs.ErrMismatch) {
				t.Errorf("%v is both damaged and another's", err)
			}
		})
	}
}

func FuzzDecodeHeader(f *testing.F) {
	format, key := someFormat(f, 700, 100)
	image := sealed(f, format, key, 1)
	f.Add(image[:format.Layout.HeaderBytes()])
	f.Add(image[:100])
	f.Add([]byte{})
	big, _ := someFormat(f, make4(167)...)
	f.Add(sealed(f, big, key, 1)[:big.Layout.HeaderBytes()])
	f.Fuzz(func(t *testing.T, b []byte) {
		// Once unchanged, and once with a right checksum, because otherwise almost no input would
		// pass the checksum.
		check(t, b)
		if n, err := block.HeaderLen(b); err == nil && n <= int64(len(b)) {
			check(t, resum(bytes.Clone(b)))
		}
	})
}

// check decodes b. If that succeeds, the header must describe a valid layout.
func check(t *testing.T, b []byte) {
	t.Helper()
	h, err := block.DecodeHeader(b)
	if err != nil {
		if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
			t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
		}
		return
	}
	l, err := h.Layout()
	if err != nil {
		t.Fatalf("decoded a header of no layout: %v", err)
	}
	if l.HeaderBytes() != h.Bytes || l.ImageBytes() != h.ImageBytes {
		t.Fatalf("decoded %d and %d bytes, the layout has %d and %d", h.Bytes, h.ImageBytes, l.HeaderBytes(), l.ImageBytes())
	}
	for i := range l.Shards() {
		if off, n, _ := h.Shard(i); off != l.ShardOff(i) || n != l.ShardBytes(i) {
			t.Fatalf("shard %d is %d bytes at %d, the layout has %d at %d", i, n, off, l.ShardBytes(i), l.ShardOff(i))
		}
	}
}

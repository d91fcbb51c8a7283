package log

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func fuzzFormats(tb testing.TB) block.Formats {
	tb.Helper()
	l, err := block.NewLayout([]int64{70 << 10})
	if err != nil {
		tb.Fatal(err)
	}
	small, big := tiertest.NewFormat(tb), block.Format{Layout: l, Identity: block.Digest{9}}
	small.Identity[31], big.Identity[31] = 1, 2
	return block.Formats{small, big}
}

// reseal corrects the checksum of a header, so that the decoder checks its other fields.
func reseal(b []byte) {
	if len(b) >= page {
		sum := xxh3.Hash(b[:len(b)-sumBytes])
		for i := range sumBytes {
			b[len(b)-sumBytes+i] = byte(sum >> (8 * i))
		}
	}
}

// An accepted group header is within its bounds and encodes to the same bytes.
func FuzzDecodeHeader(f *testing.F) {
	formats := fuzzFormats(f)
	small, big := formats[0], formats[1]
	h := header{
		bytes: page, at: position{3, 8192}, synced: position{2, 4096}, directory: [16]byte{1},
		records: []record{
			{key: tiertest.Key(1), kind: compact, group: 0, position: 7, algo: block.SumTree, sums: []uint64{1, 2, 3, 4}},
			{key: tiertest.Key(2), kind: whole, group: 1, algo: block.SumTree},
			{key: tiertest.Key(3), kind: deleted},
		},
	}
	h.groupBytes = page + storedBytes(small) + storedBytes(big)
	b := make([]byte, page)
	h.encode(b, formats)
	f.Add(b)
	for _, at := range []int{8, 12, 16, 24, 32, 72, 76, 96, 128, 136, 140, 150, 250, 280} {
		c := bytes.Clone(b)
		c[at] ^= 0xff
		f.Add(c)
	}
	f.Add(b[:100])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if n, err := headerLen(b); err == nil && int64(len(b)) >= n {
			reseal(b[:n])
		}
		h, err := decodeHeader(b, formats)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
			}
			return
		}
		at := h.bytes
		for _, r := range h.records {
			if r.kind != deleted && (r.off != at || r.off >= h.groupBytes) {
				t.Fatalf("a block at %d of %d", r.off, h.groupBytes)
			}
			if r.foreign() {
				return
			}
			if r.kind != deleted {
				at += storedBytes(formats[r.group])
			}
		}
		if at != h.groupBytes {
			t.Fatalf("blocks end at %d of %d", at, h.groupBytes)
		}
		retry := make([]byte, h.bytes)
		h.encode(retry, formats)
		if _, err := decodeHeader(retry, formats); err != nil {
			t.Fatal(err)
		}
	})
}

// A checkpoint is read to its end or refused. Damage returns ErrCorrupt.
func FuzzReadCheckpoint(f *testing.F) {
	formats := fuzzFormats(f)
	tr, err := Open(f.Context(), Config{Dir: f.TempDir(), Formats: formats[:1], SegmentBytes: 1 << 20, Fsync: FsyncNever})
	if err != nil {
		f.Fatal(err)
	}
	e := tiertest.Buffer(f, formats[0].Layout.ImageBytes())
	for i := range 5 {
		tiertest.Seal(f, formats[0], e.Bytes(), tiertest.Key(i), 0)
		if err := tr.Put(f.Context(), tiertest.Key(i), e); err != nil {
			f.Fatal(err)
		}
	}
	if err := tr.checkpoint(); err != nil {
		f.Fatal(err)
	}
	file, err := tr.dir.Open(indexName, 0)
	if err != nil {
		f.Fatal(err)
	}
	good, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
	if err = errors.Join(err, file.Close(), tr.Close(f.Context())); err != nil {
		f.Fatal(err)
	}
	id := tr.id
	f.Add(good)
	for _, at := range []int{0, 8, 16, 32, 40, 48, 56, page, page + 8, page + 40, page + 48, page + 80, page + 92, len(good) - 1} {
		c := bytes.Clone(good)
		c[at] ^= 0xff
		f.Add(c)
	}
	old := bytes.Clone(good)
	old[offVersion] = 1
	f.Add(old)
	f.Add(good[:len(good)-1])
	f.Add(good[:page])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if len(b) >= page {
			reseal(b[:page])
		}
		entries := 0
		_, err := readCheckpoint(bytes.NewReader(b), id, func([]coverage, int64, int64) {}, func(entry) { entries++ })
		if err != nil && !errors.Is(err, errOldCheckpoint) && !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
			t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
		}
		if entries*itemBytes > len(b) {
			t.Fatalf("%d blocks in %d bytes", entries, len(b))
		}
	})
}

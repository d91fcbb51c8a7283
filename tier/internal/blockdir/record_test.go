package blockdir_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestRecordIsReplaced(t *testing.T) {
	d, err := dirfs.OS().OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := blockdir.ReadRecord(d); !blockdir.Gone(err) {
		t.Errorf("a directory without a record: %v", err)
	}
	at := time.Date(2026, 11, 27, 12, 0, 0, 5, time.UTC)
	for _, r := range []blockdir.Record{
		{Used: at, Renewed: at},
		{Bytes: 24576, Blocks: 3, Peak: 32768, Used: at, Renewed: at.Add(time.Minute), Host: "h", Closed: true},
	} {
		if err := blockdir.WriteRecord(d, blockdir.RecordTemp, r); err != nil {
			t.Fatal(err)
		}
		if got, err := blockdir.ReadRecord(d); err != nil || got != r {
			t.Errorf("%+v, %v, want %+v", got, err, r)
		}
	}
}

func TestRecordOfMoreThanTheBlocksCanHave(t *testing.T) {
	f := block.Formats{tiertest.NewFormat(t)}
	n := f.MaxImageBytes()
	for _, c := range []struct {
		blocks, bytes int64
		ok            bool
	}{
		{0, 0, true},
		{3, 3 * n, true},
		{3, 2 * n, true}, // files of other groups have an unknown length
		{3, 3*n + 1, false},
		{0, 1, false},
		{1<<63 - 1, 1<<63 - 1, false},
	} {
		r := blockdir.Record{Blocks: c.blocks, Bytes: c.bytes}
		if err := r.Check(f); (err == nil) != c.ok || err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%d blocks of %d bytes: %v", c.blocks, c.bytes, err)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	good := blockdir.Record{Bytes: 1 << 30, Blocks: 77, Used: time.Unix(1e9, 0), Renewed: time.Unix(1e9+60, 0), Host: "h"}
	b, err := good.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, text := range []string{
		"", "null", "{}", `{"version":2}`, `{"version":1,"bytes":-1,"blocks":1,"used":"2026-01-01T00:00:00Z","renewed":"2026-01-01T00:00:00Z"}`,
		`{"version":1,"bytes":1e30}`, `{"version":1,"used":"0001-01-01T00:00:00Z","renewed":"9999-12-31T23:59:59Z"}`,
		`{"version":1,"used":"2026-01-01T00:00:00Z","renewed":"9999-12-31T23:59:59-14:00"}`, string(b[:20]),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := blockdir.ParseRecord(b)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrMismatch", err)
			}
			return
		}
		if r.Bytes < 0 || r.Blocks < 0 || r.Peak < r.Bytes || r.Used.Year() < 1970 || r.Renewed.Year() < 1970 {
			t.Fatalf("accepted: %+v", r)
		}
		b, err = r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		after, err := blockdir.ParseRecord(b)
		if err != nil || after.Bytes != r.Bytes || after.Blocks != r.Blocks || after.Peak != r.Peak || after.Host != r.Host || after.Closed != r.Closed ||
			!after.Used.Equal(r.Used) || !after.Renewed.Equal(r.Renewed) {
			t.Fatalf("%+v became %+v, %v", r, after, err)
		}
	})
}

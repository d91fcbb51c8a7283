package ctxio

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kvlane/kvlane/errdefs"
)

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDecompress(t *testing.T) {
	for _, text := range []string{"", "{", "{}\n", strings.Repeat("x", 1<<17)} {
		for _, in := range []string{text, zipped(t, text)} {
			r, err := Decompress(iotest.OneByteReader(strings.NewReader(in)))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || string(got) != text {
				t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
			}
		}
	}
}

func TestDecompressDamagedContent(t *testing.T) {
	if _, err := Decompress(strings.NewReader("\x1f\x8b has no header")); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no gzip: %v", err)
	}
	if _, err := Decompress(iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a reader that fails: %v", err)
	}
	whole := zipped(t, "a truncated text")
	r, err := Decompress(strings.NewReader(whole[:len(whole)-9]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a truncated text is read without an error")
	}
}

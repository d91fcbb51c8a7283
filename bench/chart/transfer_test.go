package chart

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench/transfer"
)

func TestWriteTransfers(t *testing.T) {
	r := &transfer.Report{Protocol: "shm", Op: transfer.Write, Threads: 2, CPUs: 2, Date: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)}
	if files, err := WriteTransfers(t.TempDir(), r); err != nil || len(files) > 0 {
		t.Errorf("charts of nothing: %v, %v", files, err)
	}
	for _, blocks := range []int{1, 128} {
		for i, size := range []int64{4 << 10, 64 << 10, 1 << 20} {
			r.Points = append(r.Points, transfer.Point{BlockBytes: size, Blocks: blocks, GBps: float64(1 + i), TxMicros: float64(10 * (i + blocks)), TxP99Micros: float64(30 * (i + blocks))})
		}
	}
	dir := filepath.Join(t.TempDir(), "new")
	files, err := WriteTransfers(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"transfer-rate", "transfer-time"} {
		want = append(want, filepath.Join(dir, name+".svg"), filepath.Join(dir, name+".png"))
	}
	if !slices.Equal(files, want) {
		t.Fatalf("files %v, want %v", files, want)
	}
	for i, texts := range map[int][]string{0: {"128 blocks a batch", "writes by shm", "GB/s"}, 2: {"99% are within", "microseconds"}} {
		svg, err := os.ReadFile(want[i])
		for _, text := range texts {
			if err != nil || !bytes.Contains(svg, []byte(text)) {
				t.Errorf("%s has no %q, %v", want[i], text, err)
			}
		}
		b, err := os.ReadFile(want[i+1])
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		checkEdges(t, want[i+1], img)
	}
	r.Points = r.Points[:1]
	if _, err := WriteTransfers(dir, r); err != nil {
		t.Errorf("of one point: %v", err)
	}
}

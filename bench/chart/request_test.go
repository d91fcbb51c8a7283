package chart

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/request"
)

// requests is a report of two sizes of requests, one and eight at a time, of which the largest was left out.
func requests() *request.Report {
	r := &request.Report{
		Machine: bench.Facts{Device: "NVIDIA H100 80GB HBM3", DriverVersion: "580.1", Date: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)},
		Setup:   request.Setup{Geometries: []string{"8b"}, Blocks: []int{1024, 64}, Requests: []int{1, 8}},
	}
	for _, w := range []request.Work{request.Load, request.Dump, request.Both} {
		for i, at := range [][2]int{{64, 1}, {1024, 1}, {64, 8}} {
			p := request.Point{
				Place: request.Place{Geometry: "8b", Work: w, Layerwise: w == request.Load, Blocks: at[0], Requests: at[1]},
				GBps:  float64(20 + 10*i), RawGBps: 50, LargeGBps: 55, PercentOfC: float64(36 + 33*i),
			}
			if w != request.Dump {
				p.Hits = request.InCache
			}
			if w == request.Load {
				p.LayersMicros = []float64{10, 20, 31, 40}
			}
			r.Points = append(r.Points, p)
		}
	}
	return r
}

func TestWriteRequests(t *testing.T) {
	dir := t.TempDir()
	files, err := WriteRequests(dir, requests())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"store-rate-8b", "store-layers-8b", "store-map-8b"} {
		want = append(want, filepath.Join(dir, name+".svg"), filepath.Join(dir, name+".png"))
	}
	if !slices.Equal(files, want) {
		t.Fatalf("files %v, want %v", files, want)
	}
	svg, err := os.ReadFile(want[4])
	for _, text := range []string{"\n36\n", "\n69\n", "\n102\n", "\n1024\n", "\n8\n", "loads, by layers", "dumps, whole"} {
		if err != nil || !bytes.Contains(svg, []byte(text)) {
			t.Errorf("the map has no %q, %v", text, err)
		}
	}
	b, err := os.ReadFile(want[5])
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	checkEdges(t, want[5], img)
}

func TestOneSizeHasNoMap(t *testing.T) {
	r := requests()
	r.Setup.Requests = []int{1}
	if f, err := requestMap(r, "8b"); f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := requestMap(requests(), "mla"); f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
}

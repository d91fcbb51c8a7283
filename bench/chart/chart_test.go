package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"

	"github.com/kvlane/kvlane/bench"
)

// sample is a report with points for every chart.
func sample() *bench.Report {
	r := &bench.Report{
		Machine:   bench.Facts{Device: "NVIDIA H100 80GB HBM3", DriverVersion: "580.159.04 (CUDA 13.0)", Date: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)},
		Setup:     bench.Setup{Form: "extents"},
		Reference: bench.Reference{ToDevice: bench.Rate{GBps: 55}, ToHost: bench.Rate{GBps: 54}, Both: bench.Rate{GBps: 96}},
		Product: &bench.ProductFacts{What: "products of 8192 x 8192 bf16 matrices by cublasLt 13.1.0", AloneTFLOPS: 500, BlockBytes: 4096, BatchBytes: 128 << 20, Layout: bench.HostContiguous, Losses: []bench.Loss{
			{Path: "kernel", Direction: bench.ToDevice, Loss: 0.2, Low: 0.15, High: 0.25, GBps: 40},
			{Path: "copy-engine", Direction: bench.ToDevice, Loss: -0.01, Low: -0.02, High: 0, GBps: 40},
			{Path: "auto:background", Direction: bench.ToHost, Loss: 0.01, Low: 0.002, High: 0.018, GBps: 43},
		}},
	}
	r.Peers = &bench.PeerReport{Reference: bench.Reference{ToDevice: bench.Rate{GBps: 396}, ToHost: bench.Rate{GBps: 396}}}
	for i, who := range bench.PeerContenders() {
		for size := int64(4 << 10); size <= 1<<20; size *= 4 {
			for _, d := range directions[:2] {
				for _, l := range []bench.Layout{bench.BothScattered, bench.BothContiguous} {
					r.Peers.Points = append(r.Peers.Points, bench.Point{
						Path: who.Name(), Cell: bench.Cell{Size: size, Count: 1000}, Blocks: 1000, Direction: d.d, Layout: l, GBps: float64(i+1) * float64(size) / 1e4,
					})
				}
			}
		}
	}
	for i, who := range bench.Contenders() {
		for size := int64(256); size <= 16<<20; size *= 4 {
			for _, count := range []int{1, 1000} {
				for _, d := range directions {
					for _, l := range []bench.Layout{bench.HostScattered, bench.HostContiguous} {
						gbps := float64(i+1) * float64(size) / 1e6
						to := &r.Points
						if who.Soft() {
							to = &r.Soft
						}
						*to = append(*to, bench.Point{
							Path: who.Name(), Baseline: who.Baseline != "", Cell: bench.Cell{Size: size, Count: count}, Blocks: count, Direction: d.d, Layout: l,
							GBps: gbps, Share: gbps / 55, P50Micros: float64(count) / gbps,
						})
					}
				}
			}
		}
	}
	return r
}

func TestWriteAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "charts")
	files, err := WriteAll(dir, sample())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{
		"bandwidth-scattered", "share-scattered", "latency-scattered", "map-scattered", "distribution-scattered", "nic-scattered", "nic-soft-scattered",
		"bandwidth-contiguous", "share-contiguous", "latency-contiguous", "map-contiguous", "distribution-contiguous", "nic-contiguous", "nic-soft-contiguous",
		"planner-loss", "beside-product", "between-devices",
	} {
		want = append(want, filepath.Join(dir, name+".svg"), filepath.Join(dir, name+".png"))
	}
	if !slices.Equal(files, want) {
		t.Fatalf("files %v, want %v", files, want)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, ".svg") {
			if !bytes.Contains(b, []byte("<svg")) || !bytes.Contains(b, []byte("NVIDIA H100 80GB HBM3, driver 580.159.04 (CUDA 13.0)")) {
				t.Errorf("%s is no chart of this report", f)
			}
			continue
		}
		img, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		checkEdges(t, f, img)
	}
}

// checkEdges finds text that runs out of the picture: its edges must be white.
func checkEdges(t *testing.T, name string, img image.Image) {
	t.Helper()
	r := img.Bounds()
	white := color.GrayModel.Convert(color.White)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for _, x := range []int{r.Min.X, r.Max.X - 1} {
			if color.GrayModel.Convert(img.At(x, y)) != white {
				t.Fatalf("%s: something is cut off at %d,%d", name, x, y)
			}
		}
	}
	for x := r.Min.X; x < r.Max.X; x++ {
		for _, y := range []int{r.Min.Y, r.Max.Y - 1} {
			if color.GrayModel.Convert(img.At(x, y)) != white {
				t.Fatalf("%s: something is cut off at %d,%d", name, x, y)
			}
		}
	}
}

// What is simulated must say so on every chart: all begin with newFigure.
func TestSimulatedIsSaid(t *testing.T) {
	r := sample()
	r.Machine.Simulated = true
	files, err := write(filepath.Join(t.TempDir(), "chart"), func() (*figure, error) { return product(r) })
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(files[0]); err != nil || !bytes.Contains(b, []byte("SIMULATED")) || !strings.HasSuffix(files[0], ".svg") {
		t.Errorf("%s does not say that it is simulated, %v", files[0], err)
	}
}

func TestReportWithoutPointsHasNoCharts(t *testing.T) {
	if files, err := WriteAll(t.TempDir(), &bench.Report{}); err != nil || len(files) != 0 {
		t.Errorf("files %v, %v", files, err)
	}
	one := sample()
	one.Points, one.Product, one.Peers.Points = one.Points[:1], nil, one.Peers.Points[:1]
	if _, err := WriteAll(t.TempDir(), one); err != nil {
		t.Errorf("one point: %v", err)
	}
}

func TestFolderThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteAll(filepath.Join(file, "charts"), sample()); err == nil {
		t.Error("no error")
	}
}

func TestTicks(t *testing.T) {
	var labels []string
	for _, tick := range (sizeTicks{}).Ticks(256, 16<<20) {
		if tick.Label != "" {
			labels = append(labels, tick.Label)
		}
	}
	if got := strings.Join(labels, " "); got != "256 1K 4K 16K 64K 256K 1M 4M 16M" {
		t.Errorf("sizes are marked %s", got)
	}
	if got := (lossTicks{}).Ticks(-3, 28)[0].Label; got != "0" {
		t.Errorf("zero is marked %s", got)
	}
	labels = nil
	for _, tick := range (decadeTicks{}).Ticks(1, 100_000) {
		if tick.Label != "" {
			labels = append(labels, tick.Label)
		}
	}
	if got := strings.Join(labels, " "); got != "1 10 100 1000 10000 100000" {
		t.Errorf("decades are marked %s", got)
	}
}

// Contenders that are drawn in one panel must not look alike.
func TestStylesDiffer(t *testing.T) {
	seen := make(map[string]string)
	for _, c := range bench.Contenders() {
		s := styleOf(c.Name())
		r, g, b, _ := s.color.RGBA()
		key := strings.Join([]string{string(rune(r)), string(rune(g)), string(rune(b)), string(rune(len(s.dashes)))}, ".") + fmt.Sprintf("%T", s.shape)
		if other, ok := seen[key]; ok {
			t.Errorf("%s looks like %s", c.Name(), other)
		}
		seen[key] = c.Name()
	}
	if a, b := styleOf("some-new-path"), styleOf("some-new-path"); a.color != b.color || a.shape != b.shape {
		t.Error("a name's style is not always the same")
	}
}

// NICs in software are in charts of their own, which say what they are.
func TestSoftNICsAreKeptApart(t *testing.T) {
	dir := t.TempDir()
	files, err := WriteAll(dir, sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f, ".svg") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		own := strings.HasPrefix(filepath.Base(f), "nic-soft-")
		if bytes.Contains(b, []byte("nic-soft")) != own || bytes.Contains(b, []byte("no figure of a NIC")) != own {
			t.Errorf("%s shows NICs in software: %t, want %t", filepath.Base(f), !own, own)
		}
	}
}

// Letters are shapes, which look the same whatever fonts there are, and the description has what is written.
func TestDefectChartsNeedFonts(t *testing.T) {
	files, err := WriteAll(t.TempDir(), sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f, ".svg") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("<text")) || bytes.Contains(b, []byte("font-family")) || !bytes.Contains(b, []byte("<desc>")) {
			t.Errorf("%s needs fonts", filepath.Base(f))
		}
		if err := xml.Unmarshal(b, new(struct{})); err != nil {
			t.Errorf("%s: %v", filepath.Base(f), err)
		}
	}
}

// The shape of a text is as wide as plot takes it for.
func TestOutlineIsAsWideAsMeasured(t *testing.T) {
	face := font.DefaultCache.Lookup(plot.DefaultFont, vg.Points(12))
	p := outline(face, vg.Point{X: 100, Y: 50}, "AVA x 64 KiB")
	low, high, under := p[0].Pos.X, p[0].Pos.X, p[0].Pos.Y
	for _, c := range p {
		if c.Type != vg.CloseComp {
			low, high, under = min(low, c.Pos.X), max(high, c.Pos.X), min(under, c.Pos.Y)
		}
	}
	if w := face.Width("AVA x 64 KiB"); low < 99 || low > 102 || high < 97+w || high > 101+w || under < 49 {
		t.Errorf("from %v to %v, down to %v; measured %v", low, high, under, w)
	}
	if p := outline(face, vg.Point{}, ""); len(p) != 0 {
		t.Errorf("nothing has %d parts", len(p))
	}
}

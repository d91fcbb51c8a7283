package published

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/bench"
)

const (
	chartRun    = "copy-h200-W"
	chartFolder = "../../docs/charts"

	// Geometry of the chart in pixels: two panels side by side, and a legend below them.
	panelWidth, panelHeight       = 380, 260
	marginLeft, marginTop, gutter = 60, 56, 60
	legendTop                     = marginTop + panelHeight + 60
	maxPercent                    = 110
)

// lineColors are the colors of Okabe and Ito without yellow.
var lineColors = []string{"#808080", "#56b4e9", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#000000"}

// drawShares draws the rate of each path by block size, in percent of one large copy.
func drawShares(r *bench.Report) []byte {
	var b bytes.Buffer
	width := marginLeft + 2*panelWidth + gutter + 20
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, legendTop+20)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="14">Share of one large copy by block size, blocks scattered on both sides</text>`+"\n", marginLeft)
	fmt.Fprintf(&b, `<text x="%d" y="36">%s, driver %s, %s</text>`+"\n", marginLeft, r.Machine.Device, r.Machine.DriverVersion, r.Machine.Date.Format("2006-01-02"))
	for i, dir := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		drawPanel(&b, r.BySize(dir, bench.HostScattered), marginLeft+i*(panelWidth+gutter), []string{"host to device", "device to host"}[i])
	}
	x := marginLeft
	for i, row := range r.BySize(bench.ToDevice, bench.HostScattered) {
		fmt.Fprintf(&b, `<path d="M%d %dh20" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n",
			x, legendTop, lineColors[i%len(lineColors)], x+24, legendTop+4, row.Path)
		x += 40 + 8*len(row.Path)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// drawPanel draws the axes and a line for each path.
func drawPanel(b *bytes.Buffer, rows []bench.Row, left int, title string) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, row := range rows {
		for i := range row.Points {
			low, high = min(low, math.Log2(float64(row.Points[i].Size))), max(high, math.Log2(float64(row.Points[i].Size)))
		}
	}
	xOf := func(log2 float64) float64 { return float64(left) + panelWidth*(log2-low)/(high-low) }
	yOf := func(percent float64) float64 { return marginTop + panelHeight*(1-percent/maxPercent) }
	for percent := 0; percent <= 100; percent += 20 {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#d8d8d8"/><text x="%d" y="%.1f" text-anchor="end">%d%%</text>`+"\n",
			left, yOf(float64(percent)), panelWidth, left-6, yOf(float64(percent))+4, percent)
	}
	for log2 := low; log2 <= high; log2 += 4 {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", xOf(log2), marginTop+panelHeight+18, bench.BytesText(1<<int(log2)))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+panelWidth/2, marginTop+panelHeight+36, title)
	for i, row := range rows {
		var points strings.Builder
		for k := range row.Points {
			p := &row.Points[k]
			fmt.Fprintf(&points, "%.1f,%.1f ", xOf(math.Log2(float64(p.Size))), yOf(100*p.Share))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(points.String()), lineColors[i%len(lineColors)])
	}
}

// bars are the servers in the chart: a run, a side, a label and an index of lineColors.
var bars = []struct {
	run, side, label string
	color            int
}{
	{"serving-h200-A", "none", "vLLM, prefix computed again", 0},
	{"serving-h200-A", "vllm", "vLLM's own offloading", 3},
	{"serving-h200-A", "connector", "kvlane Connector", 2},
	{"serving-h200-B", "layerwise", "kvlane LayerwiseConnector", 1},
}

// drawServers draws the time to the first token of each server, with the range of the rounds.
func drawServers(f figures) ([]byte, error) {
	const left, top, height, gap, width, most = 210, 56, 26, 14, 420, 300 // pixels; most is in milliseconds
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", left+width+60, top+len(bars)*(height+gap)+30)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	fmt.Fprintf(&b, `<text x="10" y="20" font-size="14">vllm bench serve: time to the first token of a prompt asked before, ms (less is better)</text>`+"\n")
	fmt.Fprintf(&b, `<text x="10" y="38">8,192 + 128 tokens, 8B model, %s, one request at a time; line: range of three rounds</text>`+"\n", f[bars[0].run].title())
	for i, bar := range bars {
		ttft, _, err := f.rounds(bar.run, bar.side, "memory")
		if err != nil {
			return nil, err
		}
		xOf := func(ms float64) float64 { return left + width*ms/most }
		y := top + i*(height+gap)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			left-8, y+height/2+4, bar.label, left, y, xOf(ttft.median())-left, height, lineColors[bar.color])
		fmt.Fprintf(&b, `<path d="M%.1f %dH%.1f" stroke="black"/><text x="%.1f" y="%d">%s</text>`+"\n",
			xOf(ttft[0]), y+height/2, xOf(ttft[len(ttft)-1]), xOf(ttft[len(ttft)-1])+6, y+height/2+4, rounded(ttft.median(), 0))
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

func TestChartsShowCommittedRuns(t *testing.T) {
	all := readRuns(t)
	serving, err := drawServers(all)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]byte{"share-scattered.svg": drawShares(all[chartRun].copies), "serving.svg": serving} {
		path := filepath.Join(chartFolder, file)
		if *rewrite {
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from its runs (-rewrite draws it), %v", file, err)
		}
	}
}

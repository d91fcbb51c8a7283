package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// nixlColumns are those of nixlbench's table for two workers, with their widths.
var nixlColumns = []struct {
	name  string
	width int
}{
	{"Block Size (B)", 20},
	{"Batch Size", 15},
	{"B/W (GB/Sec)", 15},
	{"Avg Lat. (us)", 15},
	{"Avg Prep (us)", 15},
	{"P99 Prep (us)", 15},
	{"Avg Post (us)", 15},
	{"P99 Post (us)", 15},
	{"Avg Tx (us)", 15},
	{"P99 Tx (us)", 15},
}

// WriteNIXL writes the points in the columns of nixlbench, for who compares the two: a table for each contender,
// direction and layout, after lines that begin with # and say which. What the columns mean here:
//
//   - Block Size, Batch Size: bytes of a block, and blocks that a repetition moved.
//   - B/W: bytes over time from Submit until done, at the mean, in 1e9 bytes a second.
//   - Avg Lat.: mean time from Submit until done, divided by the blocks, as nixlbench divides by its batch.
//   - Prep: writing the batch's lists, from block numbers that are known. nixlbench times the making of a request once,
//     before the iterations; here every repetition makes its lists anew.
//   - Post: Submit. Tx: from there until the batch is done.
func (r *Report) WriteNIXL(w io.Writer) error {
	var b strings.Builder
	if r.Machine.Simulated {
		b.WriteString("# " + simulatedNote + "\n")
	}
	fmt.Fprintf(&b, "# %s, driver %s; B/W from Submit to done at the mean; Lat. a block; Prep writes the lists, Post is Submit, Tx the rest\n",
		r.Machine.Device, r.Machine.DriverVersion)
	type series struct {
		path   string
		dir    Direction
		layout Layout
	}
	var order []series
	of := make(map[series][]*Point)
	points := slices.Concat(r.Points, r.Soft)
	for i := range points {
		p := &points[i]
		s := series{p.Path, p.Direction, p.Layout}
		if of[s] == nil {
			order = append(order, s)
		}
		of[s] = append(of[s], p)
	}
	for _, s := range order {
		fmt.Fprintf(&b, "\n# %s, %s, %s\n", s.path, directionTexts[s.dir], s.layout)
		b.WriteString(NIXLHead())
		for _, p := range of[s] {
			b.WriteString(p.nixl().String())
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (p *Point) nixl() NIXLRow {
	r := NIXLRow{
		BlockBytes: p.Size, Blocks: int64(p.Blocks), PrepMicros: p.PrepMicros, PrepP99Micros: p.PrepP99Micros, PostMicros: p.PostMicros,
		PostP99Micros: p.PostP99Micros, TxMicros: p.TxMicros, TxP99Micros: p.TxP99Micros,
	}
	if p.MeanMicros > 0 {
		r.GBps = float64(p.Bytes) / p.MeanMicros / 1e3
	}
	if p.Blocks > 0 {
		r.BlockMicros = p.MeanMicros / float64(p.Blocks)
	}
	return r
}

// NIXLRow is a row of nixlbench's table: means, but for P99, and of a block for BlockMicros.
type NIXLRow struct {
	BlockBytes, Blocks        int64
	GBps, BlockMicros         float64
	PrepMicros, PrepP99Micros float64
	PostMicros, PostP99Micros float64
	TxMicros, TxP99Micros     float64
}

// NIXLHead returns the line of columns above the rows, and the one below it.
func NIXLHead() string {
	var b strings.Builder
	width := 0
	for _, c := range nixlColumns {
		fmt.Fprintf(&b, "%-*s", c.width, c.name)
		width += c.width
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Repeat("-", width))
	return b.String()
}

// String returns the row, with the end of its line.
func (r NIXLRow) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-*d%-*d%-*.6f", nixlColumns[0].width, r.BlockBytes, nixlColumns[1].width, r.Blocks, nixlColumns[2].width, r.GBps)
	fmt.Fprintf(&b, "%-*.3f", nixlColumns[3].width, r.BlockMicros) // of a block of many it is a small part of a microsecond
	for i, v := range []float64{r.PrepMicros, r.PrepP99Micros, r.PostMicros, r.PostP99Micros, r.TxMicros, r.TxP99Micros} {
		fmt.Fprintf(&b, "%-*.1f", nixlColumns[4+i].width, v)
	}
	return b.String() + "\n"
}

package chart

import (
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot/plotter"

	"github.com/kvlane/kvlane/bench/transfer"
)

// WriteTransfers writes the charts of a report of transfers into dir, which it makes if needed, and returns the files' names: GB/s by block
// size, and how long a batch takes, with a line for each batch size. A report without points has none.
func WriteTransfers(dir string, r *transfer.Report) ([]string, error) {
	if len(r.Points) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write charts: %w", err)
	}
	var files []string
	for _, c := range []struct {
		name string
		draw func(*transfer.Report) (*figure, error)
	}{{"transfer-rate", transferRates}, {"transfer-time", transferTimes}} {
		written, err := write(filepath.Join(dir, c.name), func() (*figure, error) { return c.draw(r) })
		if err != nil {
			return files, err
		}
		files = append(files, written...)
	}
	return files, nil
}

// transferFigure is a figure of what a report is of.
func transferFigure(r *transfer.Report, title string) *figure {
	verb := map[transfer.Op]string{transfer.Read: "reads", transfer.Write: "writes"}[r.Op]
	return blankFigure(title+" by block size", fmt.Sprintf("%s by %s, %d threads, %d CPUs, %s", verb, r.Protocol, r.Threads, r.CPUs, r.Date.Format("2006-01-02")))
}

func transferRates(r *transfer.Report) (*figure, error) {
	f := transferFigure(r, "Rate of transfers")
	return f, f.transferPanel(r, "", "GB/s", func(p *transfer.Point) float64 { return p.GBps })
}

func transferTimes(r *transfer.Report) (*figure, error) {
	f := transferFigure(r, "Time of a batch")
	if err := f.transferPanel(r, "mean", "microseconds", func(p *transfer.Point) float64 { return p.TxMicros }); err != nil {
		return nil, err
	}
	if err := f.transferPanel(r, "99% are within", "microseconds", func(p *transfer.Point) float64 { return p.TxP99Micros }); err != nil {
		return nil, err
	}
	return f.withCommonY()
}

// transferPanel adds a panel with a line for each batch size, in the order in which they were measured.
func (f *figure) transferPanel(r *transfer.Report, title, unit string, value func(*transfer.Point) float64) error {
	lines := make(map[int]plotter.XYs)
	var batches []int
	for i := range r.Points {
		p := &r.Points[i]
		if lines[p.Blocks] == nil {
			batches = append(batches, p.Blocks)
		}
		lines[p.Blocks] = append(lines[p.Blocks], plotter.XY{X: float64(p.BlockBytes), Y: value(p)})
	}
	p := f.panel(title)
	p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", unit
	p.Add(grid())
	for _, n := range batches {
		if err := f.line(p, fmt.Sprintf("%d blocks a batch", n), lines[n]); err != nil {
			return err
		}
	}
	logX(p, sizeTicks{})
	logY(p)
	return nil
}

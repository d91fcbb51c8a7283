package chart

import (
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot/plotter"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/file"
)

// WriteFiles writes the charts of a report of files into dir, which it makes if needed, and returns the files' names: GB/s by block
// size of cold reads, of reads from the page cache and of writes, the best of the raw device beside the paths.
func WriteFiles(dir string, r *file.Report) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write charts: %w", err)
	}
	var files []string
	for _, c := range []struct {
		name, title string
		work        file.Work
		from        file.From
	}{
		{"file-read", "Cold reads", file.Read, file.Cold},
		{"file-page-cache", "Reads from the page cache", file.Read, file.PageCache},
		{"file-write", "Writes", file.Write, file.Cold},
	} {
		written, err := write(filepath.Join(dir, c.name), func() (*figure, error) { return fileRates(r, c.title, c.work, c.from) })
		if err != nil {
			return files, err
		}
		files = append(files, written...)
	}
	return files, nil
}

// fileRates is GB/s by block size, one panel an order.
func fileRates(r *file.Report, title string, work file.Work, from file.From) (*figure, error) {
	f := newFigure(&r.Machine, title+" by block size", fmt.Sprintf("files of %s on %s", bench.BytesText(r.Setup.Bytes), r.Setup.FileSystem))
	for _, order := range []file.Order{file.Sequential, file.Scattered} {
		lines := make(map[string]plotter.XYs)
		var names []string
		for i := range r.Points {
			p := &r.Points[i]
			if p.Work != work || p.From != from || p.Order != order || p.Raw && !p.Best() {
				continue
			}
			name := fmt.Sprintf("%s, %s", p.Name, p.End)
			if p.Raw {
				name = "raw device"
			}
			if lines[name] == nil {
				names = append(names, name)
			}
			lines[name] = append(lines[name], plotter.XY{X: float64(p.Size), Y: p.GBps})
		}
		if len(names) == 0 {
			continue
		}
		p := f.panel(string(order))
		p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", "GB/s"
		p.Add(grid())
		for _, name := range names {
			if err := f.line(p, name, lines[name]); err != nil {
				return nil, err
			}
		}
		logX(p, sizeTicks{})
		logY(p)
	}
	return f.withCommonY()
}

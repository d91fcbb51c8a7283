package chart

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/kept"
)

// WriteAll writes every chart that the report has figures for into dir, which it makes if needed, and returns the files'
// names.
func WriteAll(dir string, r *bench.Report) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write charts: %w", err)
	}
	var files []string
	for _, layout := range []struct {
		l    bench.Layout
		name string
	}{{bench.HostScattered, "scattered"}, {bench.HostContiguous, "contiguous"}} {
		for _, c := range []struct {
			name string
			draw func(*bench.Report, bench.Layout) (*figure, error)
		}{{"bandwidth", bandwidth}, {"share", share}, {"latency", latency}, {"map", copyMap}, {"distribution", distribution}, {"nic", byNIC}, {"nic-soft", bySoftNIC}} {
			written, err := write(filepath.Join(dir, c.name+"-"+layout.name), func() (*figure, error) { return c.draw(r, layout.l) })
			if err != nil {
				return files, err
			}
			files = append(files, written...)
		}
	}
	for _, c := range []struct {
		name string
		draw func(*bench.Report) (*figure, error)
	}{{"planner-loss", plannerLoss}, {"beside-product", product}, {"between-devices", peers}} {
		written, err := write(filepath.Join(dir, c.name), func() (*figure, error) { return c.draw(r) })
		if err != nil {
			return files, err
		}
		files = append(files, written...)
	}
	return files, nil
}

// write draws a figure and writes it in both forms. A nil figure has nothing to show and is left out.
func write(base string, draw func() (*figure, error)) ([]string, error) {
	fig, err := draw()
	if err != nil {
		return nil, fmt.Errorf("draw chart %s: %w", filepath.Base(base), err)
	}
	if fig == nil {
		return nil, nil
	}
	var files []string
	for _, form := range []struct {
		suffix string
		save   func(*figure, io.Writer) error
	}{{".svg", saveSVG}, {".png", savePNG}} {
		name := base + form.suffix
		if err := kept.Replace(name, func(w io.Writer) error { return form.save(fig, w) }); err != nil {
			return files, fmt.Errorf("write chart: %w", err)
		}
		files = append(files, name)
	}
	return files, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/profile"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// filesReport is the output of the command for a directory.
type filesReport struct {
	Dir        string             `json:"dir"`
	FileSystem profile.FileSystem `json:"file_system"`
	Made       time.Time          `json:"made"`
	File       string             `json:"file"`
	Stored     bool               `json:"stored"`
	Points     []streamfile.Point `json:"points"`
	// Direct compares cuFile with pinned memory. It is nil if one of them was not measured.
	Direct *streamfile.Comparison `json:"direct,omitempty"`
}

// comparedBytes is the size for which the comparison of cuFile with pinned memory is shown. An
// engine uses the size of its blocks.
const comparedBytes = 1 << 20

// runCalibrateFiles measures the file systems of directories. If one fails, it continues with the
// others and returns the error at the end.
func runCalibrateFiles(cmd *cobra.Command, f *calibrateFlags) (err error) {
	o := profile.FileOptions{Force: true, Dir: f.opts.Dir}
	if cmd.Flags().Changed("budget") {
		o.Measure.Budget = f.opts.Budget
	}
	if cmd.Flags().Changed("device") || cmd.Flags().Changed("device-index") {
		closeEnds, failed := f.openEnds(cmd, &o.Measure.Stream)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, closeEnds()) }()
	}
	reports := []filesReport{}
	var errs []error
	for _, dir := range f.fileDirs {
		show, finish := drawProgress(cmd)
		o.Measure.Progress = show
		c, err := profile.CalibrateFiles(cmd.Context(), dir, o)
		finish()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c.Note != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), c.Note)
		}
		r := filesReport{Dir: dir, FileSystem: c.FileSystem, Made: c.Made, File: c.File, Stored: c.Stored, Points: c.Profile.Points}
		if found, err := c.CompareDirect(comparedBytes); err == nil {
			r.Direct = &found
		}
		reports = append(reports, r)
	}
	if f.json {
		errs = append(errs, writeJSON(cmd, reports))
	} else {
		for i := range reports {
			errs = append(errs, reports[i].WriteText(cmd.OutOrStdout()))
		}
	}
	return errors.Join(errs...)
}

// openEnds opens the device whose memory is also measured, and its access to files. The returned
// function closes both.
func (f *calibrateFlags) openEnds(cmd *cobra.Command, o *streamfile.Options) (func() error, error) {
	dev, err := openDevice(f.device, f.index, sim.Options{})
	if err != nil {
		return nil, err
	}
	ways := &fileStreams{dev: dev}
	if ways.openStorage(cmd.Context()) {
		o.CuFile.Storage = ways.storage
	}
	for _, m := range ways.missing {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is not measured: %s\n", m.Path, present.Escape(m.Reason))
	}
	copies, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		return nil, errors.Join(err, ways.close(), dev.Close())
	}
	o.Device, o.Copy = dev, copies
	return func() error {
		return errors.Join(copies.Close(context.WithoutCancel(cmd.Context())), ways.close(), dev.Close())
	}, nil
}

// WriteText prints the report as text.
func (r *filesReport) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	p.Verdict(present.Good, "The paths to files of %s were measured in %s.", r.FileSystem, r.Dir)
	if r.Stored {
		p.Text("Stored in %s, %s", r.File, r.Made.Format(time.RFC3339))
	} else {
		p.Text("Not stored.")
	}
	if d := r.Direct; d != nil {
		choice := "pinned memory"
		if d.PrefersDirect() {
			choice = "cuFile"
		}
		p.Text("--direct auto uses %s here for blocks of %s; %s.", choice, present.Size(d.Bytes), d)
	}
	p.Heading("GB/s by size of a transfer")
	t := &present.Table{Head: []string{"path", "way", "memory", "depth"}, Keys: 4, Right: "   rrrrrrrr"}
	rows, columns := map[string]int{}, map[int64]int{}
	for i := range r.Points {
		f := &r.Points[i]
		way, memory := "read", "host"
		if f.Write {
			way = "write"
		}
		if f.Device {
			memory = "device"
		}
		row := []string{f.Path, way, memory, fmt.Sprint(f.Depth)}
		key := fmt.Sprint(row)
		at, seen := rows[key]
		if !seen {
			at = len(t.Rows)
			rows[key] = at
			t.Rows = append(t.Rows, row)
		}
		column, seen := columns[f.Bytes]
		if !seen {
			column = len(t.Head)
			columns[f.Bytes] = column
			t.Head = append(t.Head, present.Size(f.Bytes))
		}
		for len(t.Rows[at]) <= column {
			t.Rows[at] = append(t.Rows[at], "")
		}
		t.Rows[at][column] = present.Rate(f.GBps)
	}
	p.Table(t)
	p.Define("depth", "concurrent transfers")
	p.Define("memory", "source or destination of the bytes")
	return p.Write(w)
}

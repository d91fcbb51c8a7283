package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/chart"
	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/internal/target"
)

// readReport reads an earlier run's report, or returns nil if the flag names none. It is read before anything is
// measured: a wrong name should not cost a run.
func readReport(ctx context.Context, flag, name string) (*bench.Report, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // no report is asked for
	}
	in, err := ctxio.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer func() { _ = in.Close() }() // only read
	r, err := bench.Read(in)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, name, err)
	}
	return r, nil
}

// print prints the report in the form asked for, writes the files, and compares.
func (f *benchFlags) print(cmd *cobra.Command, r, earlier *bench.Report) error {
	out := cmd.OutOrStdout()
	var err error
	switch {
	case f.targets && f.form.json:
		err = writeJSON(cmd, target.Judge(r))
	case f.targets:
		err = target.Judge(r).WriteText(out)
	case f.form.json:
		err = writeJSON(cmd, r)
	case f.form.csv:
		err = r.WriteCSV(out)
	case f.form.nixl:
		err = r.WriteNIXL(out)
	default:
		err = r.WriteText(out)
	}
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := writeFile(f.out, r); err != nil {
			return err
		}
	}
	if f.charts != "" {
		files, err := chart.WriteAll(f.charts, r)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%d charts are in %s\n", len(files), f.charts)
	}
	if earlier == nil {
		return nil
	}
	return f.compareWith(cmd, r, earlier)
}

func writeFile(name string, r *bench.Report) (err error) {
	w, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// compareWith prints the changes, beside the tables or, beside JSON and the like, on standard error.
func (f *benchFlags) compareWith(cmd *cobra.Command, r, earlier *bench.Report) error {
	noise, err := parsePercent(f.noise)
	if err != nil {
		return err
	}
	c := r.Compare(earlier, noise)
	out := cmd.OutOrStdout()
	if f.form != (outputForm{}) {
		out = cmd.ErrOrStderr()
	}
	if err := c.WriteText(out); err != nil {
		return err
	}
	if f.failAbove == "" {
		return nil
	}
	share, err := parsePercent(f.failAbove)
	if err != nil {
		return err
	}
	if n := c.Worse(share); n > 0 {
		return fmt.Errorf("%d points are more than %s slower than in %s", n, f.failAbove, f.compare)
	}
	return nil
}

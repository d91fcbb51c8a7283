package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/internal/kept"
)

// readReport reads the report of an earlier run.
func readReport(ctx context.Context, flag, name string) (*bench.Report, error) {
	return readEarlier(ctx, flag, name, bench.Read)
}

// readEarlier reads the report of an earlier run, which may be compressed with gzip. It returns nil
// if the flag is not given. Call it before the run, so that an invalid name is reported early.
func readEarlier[T any](ctx context.Context, flag, name string, read func(io.Reader) (*T, error)) (*T, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // no report is requested
	}
	in, err := ctxio.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer func() { _ = in.Close() }() // only read
	var r *T
	plain, err := ctxio.Decompress(in)
	if err == nil {
		r, err = read(plain)
	}
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, &interruptedError{"before the first measurement", err}
	}
	return nil, fmt.Errorf("%s %s: %w", flag, name, err)
}

// print prints the report as text or JSON, writes the output file, and prints the comparison.
func (f *benchFlags) print(cmd *cobra.Command, r, earlier *bench.Report) error {
	var err error
	if f.json {
		err = writeJSON(cmd, r)
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := writeFile(f.out, r); err != nil {
			return err
		}
	}
	if earlier == nil {
		return nil
	}
	return f.comparing.print(cmd, f.json, func(noise float64) *bench.Comparison { return r.Compare(earlier, noise) })
}

// checkOutput checks before a run whether the report can be written to the file. An empty name
// means no file.
func checkOutput(name string) error {
	if name == "" {
		return nil
	}
	if err := kept.CheckReplace(name); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// writeFile replaces a file atomically with r as JSON.
func writeFile(name string, r any) error {
	err := kept.Replace(name, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	})
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// textReport is a report that has a text form.
type textReport interface{ WriteText(w io.Writer) error }

// outputReport prints a report, as text or JSON. Unless out is empty, it also replaces that file with
// the report as JSON.
func outputReport(cmd *cobra.Command, r textReport, asJSON bool, out string) (err error) {
	if asJSON {
		err = writeJSON(cmd, r)
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && out != "" {
		err = writeFile(out, r)
	}
	return err
}

// comparing are the flags of a comparison with an earlier run.
type comparing struct{ with, noise, failAbove string }

func (f *comparing) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.with, "compare", "", "file with the JSON object of an earlier run; also compares with it")
	fl.StringVar(&f.noise, "noise", "5%", "largest change that --compare treats as noise; changes within a point's own spread are noise too")
	fl.StringVar(&f.failAbove, "fail-above", "", "exit with 1 if --compare finds a point slower by more than this share, such as 10%; points that exist only in the earlier run are counted, not compared")
}

// check returns an error for values that are not percentages.
func (f *comparing) check() error {
	for flag, text := range map[string]string{"--noise": f.noise, "--fail-above": f.failAbove} {
		if _, err := parsePercent(text); err != nil {
			return usagef("%s: %w", flag, err)
		}
	}
	return nil
}

// print prints the comparison after the tables. If aside is true, it prints to standard error.
func (f *comparing) print(cmd *cobra.Command, aside bool, compare func(noise float64) *bench.Comparison) error {
	noise, err := parsePercent(f.noise)
	if err != nil {
		return err
	}
	c := compare(noise)
	out := cmd.OutOrStdout()
	if aside {
		out = cmd.ErrOrStderr()
	} else {
		fmt.Fprintln(out)
	}
	if err := c.WriteText(out); err != nil {
		return err
	}
	if n := c.Unjudged(); n != "" && !aside { // otherwise WriteText has printed it
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", f.with, n)
	}
	if f.failAbove == "" {
		return nil
	}
	share, err := parsePercent(f.failAbove)
	if err != nil {
		return err
	}
	if n := c.Worse(share); n > 0 {
		return fmt.Errorf("%d points are more than %s slower than in %s", n, f.failAbove, f.with)
	}
	return nil
}

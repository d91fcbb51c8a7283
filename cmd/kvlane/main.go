// Command kvlane stores and transfers the KV cache of language models. It replays traces on the
// store, measures this machine's copy paths and reports its hardware.
//
// exitMeanings describes the exit codes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kvlane/kvlane/internal/present"
)

// Exit codes of the process. exitMeanings describes each.
const (
	exitOK        = 0
	exitFailure   = 1
	exitUsage     = 2
	exitMissing   = 3
	exitUndecided = 4
)

// exitMeanings has the meaning of each exit code.
var exitMeanings = []string{
	exitOK:        "the command succeeded",
	exitFailure:   "the command failed, was interrupted, or found damage, a slower benchmark, or a missed threshold",
	exitUsage:     "the command line or the configuration is wrong",
	exitMissing:   "doctor --require: something is not available",
	exitUndecided: "doctor --require: nothing is missing, but something could not be determined",
}

// exitTable returns the list of exit codes for help texts, one per line.
func exitTable() string {
	var b strings.Builder
	for code, means := range exitMeanings {
		fmt.Fprintf(&b, "  %d  %s\n", code, means)
	}
	return b.String()
}

// codedError is an error with its own exit code.
type codedError struct {
	err  error
	code int
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns its exit code. The first interrupt or termination signal
// cancels the command's context, so that the command can stop cleanly. The second one kills the
// process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()

	root := newRootCommand()
	root.SetArgs(args)
	out := &output{Writer: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.err()
	}
	if err == nil {
		return exitOK
	}
	var noGPU *noGPUError
	if errors.As(err, &noGPU) { // the text of the errors that wrap it is not needed
		err = noGPU
	}
	fmt.Fprintln(stderr, "kvlane: "+errorText(err))
	var usage *usageError
	if errors.As(err, &usage) {
		for _, hint := range usageHints(cmd, err) {
			fmt.Fprintln(stderr, present.Escape(hint))
		}
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	if next := nextStep(cmd, err); next != "" {
		fmt.Fprintln(stderr, "Next: "+present.Escape(next))
	}
	var coded *codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	return exitFailure
}

// errorText returns the text of an error, with one line for each joined error. It escapes
// unprintable characters, so that file names cannot add lines.
func errorText(err error) string {
	var inner []error
	switch e := any(err).(type) {
	case interface{ Unwrap() []error }:
		inner = e.Unwrap()
	case interface{ Unwrap() error }:
		inner = []error{e.Unwrap()}
	}
	var b strings.Builder
	rest := err.Error()
	for i, in := range inner {
		if in == nil {
			continue
		}
		before, after, found := strings.Cut(rest, in.Error())
		if !found { // the text of err omits it
			continue
		}
		if i > 0 && before == "\n" { // errors.Join
			b.WriteString(before)
		} else {
			b.WriteString(present.Escape(before))
		}
		b.WriteString(errorText(in))
		rest = after
	}
	return b.String() + present.Escape(rest)
}

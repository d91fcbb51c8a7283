package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// flushTime is the time that an ending command waits for its output to be read.
const flushTime = 2 * time.Second

// lineWriter writes lines on its own goroutine. A command that prints notifications of peers stays
// responsive even if its output is not read: print waits until its context ends, and close at most
// flushTime.
type lineWriter struct {
	lines chan string
	done  chan struct{}
	err   error // of the first write that failed; valid once done is closed
}

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{lines: make(chan string), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for line := range w.lines {
			if w.err == nil { // lines that follow a failed one are dropped
				_, w.err = io.WriteString(out, line)
			}
		}
	}()
	return w
}

// print hands a line to the goroutine. It waits for the line before to be written, until ctx ends.
func (w *lineWriter) print(ctx context.Context, format string, args ...any) error {
	select {
	case w.lines <- fmt.Sprintf(format, args...):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("print: %w", context.Cause(ctx))
	}
}

// errUnread is the error of output that nothing reads. The goroutine then stays in its write until
// the process ends.
var errUnread = errors.New("the last lines are lost, because standard output is not read")

// close prints a last line and waits until all are written.
func (w *lineWriter) close(format string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	err := w.print(ctx, format, args...)
	close(w.lines)
	if err != nil {
		return errUnread
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return errUnread
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// flushTime is the maximum time for which a command waits at its end until its output is read.
const flushTime = 2 * time.Second

// lineWriter writes lines in its own goroutine. A command that prints notifications of peers thus
// stays responsive even if its output is not read: print waits until its context ends, and close
// waits at most flushTime.
type lineWriter struct {
	lines chan string
	done  chan struct{}
	err   error // first write error; valid after done is closed
}

func newLineWriter(out io.Writer) *lineWriter {
	w := &lineWriter{lines: make(chan string), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for line := range w.lines {
			if w.err == nil { // after an error, lines are dropped
				_, w.err = io.WriteString(out, line)
			}
		}
	}()
	return w
}

// print passes a line to the goroutine. It waits until the previous line was written or ctx ends.
func (w *lineWriter) print(ctx context.Context, format string, args ...any) error {
	select {
	case w.lines <- fmt.Sprintf(format, args...):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("print: %w", context.Cause(ctx))
	}
}

// errUnread means that standard output is not read. The goroutine then stays blocked until the
// process ends.
var errUnread = errors.New("the last lines are lost, because standard output is not read")

// close prints a last line and waits until all lines are written.
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

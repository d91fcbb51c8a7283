package main

import (
	"io"
	"sync/atomic"
)

// output is the standard output of a command. It keeps the first write error, because cobra ignores
// errors when it prints the help. It is safe for concurrent use if the inner writer is.
type output struct {
	io.Writer
	failed atomic.Pointer[outputError]
}

// outputError is a failed write to standard output.
type outputError struct{ err error }

func (e *outputError) Error() string { return "write to standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err == nil {
		return n, nil
	}
	failed := &outputError{err}
	o.failed.CompareAndSwap(nil, failed)
	return n, failed
}

// Unwrap returns the inner writer, so that a terminal can be detected.
func (o *output) Unwrap() io.Writer { return o.Writer }

// err returns the first failed write, or nil.
func (o *output) err() error {
	if failed := o.failed.Load(); failed != nil {
		return failed
	}
	return nil
}

package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/ctxio"
)

// MaxLineBytes is the maximum length of a line in a trace. It limits the memory of a TraceReader.
const MaxLineBytes = 4 << 20

// byteOrderMark is written at the beginning of files by some editors.
const byteOrderMark = "\ufeff"

// format is a description of the format for errors.
const format = `a trace has one JSON object a line, such as {"timestamp":0,"input_length":1024,"output_length":5,"hash_ids":[0,1]}`

// Request is one line of a trace.
type Request struct {
	Line         int   // line number in the file, from 1
	Timestamp    int64 // milliseconds since the beginning of the trace
	InputLength  int64 // tokens
	OutputLength int64 // tokens
	// hash IDs of the input's blocks; an ID identifies a block with its whole prefix
	HashIDs []int64
}

// TraceError is an error in a trace. It wraps errdefs.ErrInvalid.
type TraceError struct {
	File    string
	Line    int    // line number from 1, or 0 for the whole file
	Field   string // for example "hash_ids[3]"; empty: the whole line
	Problem string
}

// Error returns the file, line, field and problem.
func (e *TraceError) Error() string {
	s := e.File + ":"
	if e.Line > 0 {
		s += strconv.Itoa(e.Line) + ":"
	}
	if e.Field != "" {
		s += " " + e.Field
	}
	return s + " " + e.Problem
}

// Unwrap returns errdefs.ErrInvalid.
func (e *TraceError) Unwrap() error { return errdefs.ErrInvalid }

// TraceReader reads traces in Mooncake's format. Each line is a JSON object with "timestamp",
// "input_length", "output_length" and "hash_ids". Other fields, blank lines and a byte order mark
// are ignored. Gzip is detected by the contents. A TraceReader is not safe for concurrent use.
type TraceReader struct {
	name  string
	lines *bufio.Scanner
	raw   rawRequest
	close func() error

	line, requests int // read so far
}

// rawRequest has the undecoded fields of a line. Its buffers are reused.
type rawRequest struct {
	Timestamp    json.RawMessage `json:"timestamp"`
	InputLength  json.RawMessage `json:"input_length"`
	OutputLength json.RawMessage `json:"output_length"`
	HashIDs      json.RawMessage `json:"hash_ids"`
}

// NewTraceReader returns a reader for the trace in r. name is used in errors.
func NewTraceReader(name string, r io.Reader) (*TraceReader, error) {
	buf, err := ctxio.Decompress(r)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", name, err)
	}
	// An error of Peek occurs again when the first line is read.
	if mark, _ := buf.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = buf.Discard(len(mark))
	}
	lines := bufio.NewScanner(buf)
	lines.Buffer(make([]byte, 0, 64<<10), MaxLineBytes)
	return &TraceReader{name: name, lines: lines, close: func() error { return nil }}, nil
}

// OpenTrace opens a trace file. Reads return an error when ctx ends, even for a FIFO without a
// writer.
func OpenTrace(ctx context.Context, path string) (*TraceReader, error) {
	f, err := ctxio.Open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	t, err := NewTraceReader(path, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.close = f.Close
	return t, nil
}

// Close closes the file opened by OpenTrace.
func (t *TraceReader) Close() error { return t.close() }

// Next reads the next request into req and reuses its HashIDs. It returns io.EOF after the last
// request, a *TraceError for an invalid line or a trace without requests, and other errors of
// reading.
func (t *TraceReader) Next(req *Request) error {
	// After a read error, Scan returns an incomplete line as if it were complete.
	for t.lines.Scan() && t.lines.Err() == nil {
		t.line++
		line := bytes.TrimSpace(t.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		t.requests++
		return t.parse(line, req)
	}
	err := t.lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return t.fail(t.line+1, "", fmt.Sprintf("the line is longer than %d bytes; %s", MaxLineBytes, format))
	case err != nil:
		return fmt.Errorf("read trace %s after line %d: %w", t.name, t.line, err)
	case t.requests == 0:
		return t.fail(0, "", "the trace is empty; "+format)
	}
	return io.EOF
}

func (t *TraceReader) parse(line []byte, req *Request) error {
	r := &t.raw
	r.Timestamp, r.InputLength, r.OutputLength, r.HashIDs = r.Timestamp[:0], r.InputLength[:0], r.OutputLength[:0], r.HashIDs[:0]
	if err := json.Unmarshal(line, r); err != nil {
		var typeErr *json.UnmarshalTypeError
		if errors.As(err, &typeErr) {
			return t.fail(t.line, "", "the line is a JSON "+typeErr.Value+", not an object; "+format)
		}
		return t.fail(t.line, "", "the line is not JSON: "+err.Error()+"; "+format)
	}
	req.Line = t.line
	for _, f := range []struct {
		name string
		raw  []byte
		to   *int64
	}{
		{"timestamp", r.Timestamp, &req.Timestamp},
		{"input_length", r.InputLength, &req.InputLength},
		{"output_length", r.OutputLength, &req.OutputLength},
	} {
		if len(f.raw) == 0 {
			return t.fail(t.line, f.name, "is missing; "+format)
		}
		v, problem := parseCount(f.raw)
		if problem != "" {
			return t.fail(t.line, f.name, problem)
		}
		*f.to = v
	}
	return t.parseHashIDs(r.HashIDs, req)
}

// parseHashIDs parses a JSON array of integers. encoding/json would decode null as 0, and its
// errors would not contain the index of the invalid element.
func (t *TraceReader) parseHashIDs(raw []byte, req *Request) error {
	const field = "hash_ids"
	req.HashIDs = req.HashIDs[:0]
	if len(raw) == 0 {
		return t.fail(t.line, field, "is missing; "+format)
	}
	if raw[0] != '[' {
		return t.fail(t.line, field, fmt.Sprintf("is %s, not an array", abridge(raw)))
	}
	rest := bytes.TrimSpace(raw[1 : len(raw)-1])
	for len(rest) > 0 {
		elem, tail, _ := bytes.Cut(rest, []byte{','})
		id, problem := parseCount(bytes.TrimSpace(elem))
		if problem != "" {
			return t.fail(t.line, fmt.Sprintf("%s[%d]", field, len(req.HashIDs)), problem)
		}
		req.HashIDs = append(req.HashIDs, id)
		rest = tail
	}
	return nil
}

// parseCount returns the non-negative integer in raw, or a text about why it is invalid.
func parseCount(raw []byte) (v int64, problem string) {
	v, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Sprintf("is %s, which does not fit 64 bits", abridge(raw))
	case err != nil:
		return 0, fmt.Sprintf("is %s, not an integer", abridge(raw))
	case v < 0:
		return 0, fmt.Sprintf("is %d, but must not be negative", v)
	}
	return v, ""
}

// abridge shortens a long value for an error.
func abridge(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}

func (t *TraceReader) fail(line int, field, problem string) error {
	return &TraceError{File: t.name, Line: line, Field: field, Problem: problem}
}

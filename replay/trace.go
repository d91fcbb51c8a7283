package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/kvlane/kvlane/errdefs"
)

// MaxLineBytes is the longest line of a trace. It bounds the memory of a TraceReader.
const MaxLineBytes = 4 << 20

// Request is one line of a trace.
type Request struct {
	Line         int     // in the file, from 1
	Timestamp    int64   // milliseconds since the trace's start
	InputLength  int64   // tokens
	OutputLength int64   // tokens
	HashIDs      []int64 // of the input's blocks; equal ids share a prefix block
}

// TraceError says where a trace is wrong. It wraps errdefs.ErrInvalid.
type TraceError struct {
	File    string
	Line    int    // from 1; zero where the whole file is wrong
	Field   string // "hash_ids[3]"; empty where the whole line is wrong
	Problem string
}

// Error gives file, line, field and problem.
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

// TraceReader reads a trace: one JSON object a line, {"timestamp", "input_length", "output_length", "hash_ids"}, as the
// Mooncake traces have it; other fields and blank lines are ignored. Gzip is recognized by its content. One user at a time.
type TraceReader struct {
	name  string
	lines *bufio.Scanner
	raw   rawRequest
	close func() error

	line, requests int // read so far
}

// rawRequest keeps its fields' buffers from line to line.
type rawRequest struct {
	Timestamp    json.RawMessage `json:"timestamp"`
	InputLength  json.RawMessage `json:"input_length"`
	OutputLength json.RawMessage `json:"output_length"`
	HashIDs      json.RawMessage `json:"hash_ids"`
}

// NewTraceReader reads a trace from r; name stands for it in errors.
func NewTraceReader(name string, r io.Reader) (*TraceReader, error) {
	buf := bufio.NewReaderSize(r, 64<<10)
	head, err := buf.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read trace %s: %w", name, err)
	}
	var plain io.Reader = buf
	if bytes.Equal(head, []byte{0x1f, 0x8b}) {
		if plain, err = gzip.NewReader(buf); err != nil {
			return nil, fmt.Errorf("read trace %s: %w: %w", name, err, errdefs.ErrInvalid)
		}
	}
	lines := bufio.NewScanner(plain)
	lines.Buffer(make([]byte, 0, 64<<10), MaxLineBytes)
	return &TraceReader{name: name, lines: lines, close: func() error { return nil }}, nil
}

// OpenTrace opens the trace in the named file.
func OpenTrace(path string) (*TraceReader, error) {
	f, err := os.Open(path)
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

// Close closes the file of OpenTrace.
func (t *TraceReader) Close() error { return t.close() }

// Next reads the next request into req, reusing its HashIDs. It returns io.EOF after the last, a *TraceError for a line
// that is wrong, and an error that wraps the cause where reading failed. A trace without a request is a *TraceError.
func (t *TraceReader) Next(req *Request) error {
	// A Scanner hands out what was read before an error as if it were a line.
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
		return t.fail(t.line+1, "", fmt.Sprintf("the line is longer than %d bytes", MaxLineBytes))
	case err != nil:
		return fmt.Errorf("read trace %s after line %d: %w", t.name, t.line, err)
	case t.requests == 0:
		return t.fail(0, "", "the trace is empty")
	}
	return io.EOF
}

func (t *TraceReader) parse(line []byte, req *Request) error {
	r := &t.raw
	r.Timestamp, r.InputLength, r.OutputLength, r.HashIDs = r.Timestamp[:0], r.InputLength[:0], r.OutputLength[:0], r.HashIDs[:0]
	if err := json.Unmarshal(line, r); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return t.fail(t.line, "", "the line is a JSON "+wrong.Value+", not an object")
		}
		return t.fail(t.line, "", "the line is not JSON: "+err.Error())
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
			return t.fail(t.line, f.name, "is missing")
		}
		v, problem := parseCount(f.raw)
		if problem != "" {
			return t.fail(t.line, f.name, problem)
		}
		*f.to = v
	}
	return t.parseHashIDs(r.HashIDs, req)
}

// parseHashIDs reads an array of integers that encoding/json has found to be valid JSON. It is done by hand because
// json would take a null for a zero, and would not say which element is wrong.
func (t *TraceReader) parseHashIDs(raw []byte, req *Request) error {
	const field = "hash_ids"
	req.HashIDs = req.HashIDs[:0]
	if len(raw) == 0 {
		return t.fail(t.line, field, "is missing")
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

// parseCount returns the non-negative integer that raw is, or what is wrong with it.
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

// abridge keeps a hostile value from filling the terminal.
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

// Summary is what a replay must know of a trace before it begins.
type Summary struct {
	Requests    int
	Accesses    int64 // blocks asked for, over all requests
	MaxBlocks   int   // of one request
	LongestLine int   // of the trace, where the request with MaxBlocks is
}

// Scan reads the trace in the named file, or its first limit requests where limit is positive. It finds everything that
// is wrong with it, so that a replay does not fail half way. The memory it takes does not grow with the trace.
func Scan(path string, limit int) (s Summary, err error) {
	t, err := OpenTrace(path)
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	var req Request
	for limit <= 0 || s.Requests < limit {
		err := t.Next(&req)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Summary{}, err
		}
		s.Requests++
		s.Accesses += int64(len(req.HashIDs))
		if len(req.HashIDs) > s.MaxBlocks {
			s.MaxBlocks, s.LongestLine = len(req.HashIDs), req.Line
		}
	}
	return s, nil
}

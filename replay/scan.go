package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/kvlane/kvlane/internal/ctxio"
)

// Summary describes a trace. It is the result of Scan.
type Summary struct {
	Requests    int
	Accesses    int64 // blocks of all requests
	MaxBlocks   int   // blocks of the longest request
	LongestLine int   // line number of the longest request

	// leastTokens and mostTokens are the bounds of the number of tokens per hash ID that fits all
	// requests read. Both are zero before the first request.
	leastTokens, mostTokens int64

	// spool is a temporary file with the text of a trace that can be read only once. It has no
	// name.
	spool *os.File
}

// Scan reads a trace file, or its first limit requests if limit is positive. It returns an error
// for any invalid request, so that a replay does not fail halfway. It needs constant memory. If the
// trace can be read only once (a pipe, /dev/stdin), it is copied to a temporary file for the
// replay. The caller closes the summary. If ctx ends first, Scan returns its cause.
func Scan(ctx context.Context, path string, limit int) (_ *Summary, err error) {
	in, err := ctxio.Open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	s := &Summary{}
	var text io.Reader = in
	if !in.Regular() {
		if s.spool, err = newSpool(); err != nil {
			return nil, fmt.Errorf("keep trace %s: %w", path, err)
		}
		text = io.TeeReader(in, s.spool)
	}
	if err := s.scan(path, text, limit); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newSpool creates a temporary file in TMPDIR and removes its name, so that the file is deleted
// when it is closed or the process ends.
func newSpool() (*os.File, error) {
	f, err := os.CreateTemp("", "kvlane-trace-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *Summary) scan(path string, text io.Reader, limit int) error {
	t, err := NewTraceReader(path, text)
	if err != nil {
		return err
	}
	var req Request
	for limit <= 0 || s.Requests < limit {
		err := t.Next(&req)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		s.Requests++
		s.Accesses += int64(len(req.HashIDs))
		s.narrow(req.InputLength, int64(len(req.HashIDs)))
		if len(req.HashIDs) > s.MaxBlocks {
			s.MaxBlocks, s.LongestLine = len(req.HashIDs), req.Line
		}
	}
	return nil
}

// narrow restricts leastTokens and mostTokens to the values that fit a request: all of its blocks
// except the last are full.
func (s *Summary) narrow(tokens, ids int64) {
	if ids == 0 {
		return
	}
	least, most := max((tokens+ids-1)/ids, 1), int64(math.MaxInt64)
	if ids > 1 {
		most = (tokens+ids-2)/(ids-1) - 1
	}
	if s.leastTokens == 0 {
		s.leastTokens, s.mostTokens = least, most
	}
	s.leastTokens, s.mostTokens = max(s.leastTokens, least), min(s.mostTokens, most)
}

// mooncakeTokens is the number of tokens per hash ID in Mooncake's traces (testdata/README.md).
const mooncakeTokens = 512

// IDTokens returns the number of input tokens per hash ID; the last block of a request may have
// fewer. It returns Mooncake's 512 if that fits all requests, otherwise the smallest number that
// does, or 0 if there is none.
func (s *Summary) IDTokens() int64 {
	switch {
	case s.leastTokens > s.mostTokens:
		return 0
	case s.leastTokens <= mooncakeTokens && mooncakeTokens <= s.mostTokens:
		return mooncakeTokens
	}
	return s.leastTokens
}

// open opens the scanned trace. path is its name in errors.
func (s *Summary) open(ctx context.Context, path string) (*TraceReader, error) {
	if s.spool == nil {
		return OpenTrace(ctx, path)
	}
	return NewTraceReader(path, io.NewSectionReader(s.spool, 0, math.MaxInt64))
}

// Close deletes the copy of the trace, if any. It may be called again.
func (s *Summary) Close() error {
	if s.spool == nil {
		return nil
	}
	err := s.spool.Close()
	s.spool = nil
	return err
}

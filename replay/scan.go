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

// Summary is what a replay must know of a trace before it begins.
type Summary struct {
	Requests    int
	Accesses    int64 // blocks asked for, over all requests
	MaxBlocks   int   // of one request
	LongestLine int   // of the trace, where the request with MaxBlocks is

	leastTokens, mostTokens int64 // that one id can stand for, by every request so far; zero before the first

	spool *os.File // what was read of a trace that can be read only once; has no name any more
}

// Scan reads the trace in the named file, or its first limit requests where limit is positive. It finds everything that
// is wrong with it, so that a replay does not fail half way. The memory it takes does not grow with the trace. What can be
// read only once (a pipe, /dev/stdin) is kept in a temporary file for the replay. The caller closes the summary. The
// context's cause where ctx ends first.
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

// newSpool makes a file in the place for temporary ones (TMPDIR) that is gone when it is closed, whatever becomes of the process.
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

// narrow keeps to what an id can stand for if those of a request of so many tokens are as many as it takes.
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

// mooncakeTokens is how many tokens an id of Mooncake's traces stands for (testdata/README.md).
const mooncakeTokens = 512

// IDTokens returns how many tokens of the input a hash id stands for, the last one of a request for up to as many: Mooncake's 512 where
// the requests' lengths agree with that, or else the least number that they agree with, or zero if there is none.
func (s *Summary) IDTokens() int64 {
	switch {
	case s.leastTokens > s.mostTokens:
		return 0
	case s.leastTokens <= mooncakeTokens && mooncakeTokens <= s.mostTokens:
		return mooncakeTokens
	}
	return s.leastTokens
}

// open opens what was scanned once more, under the trace's name.
func (s *Summary) open(ctx context.Context, path string) (*TraceReader, error) {
	if s.spool == nil {
		return OpenTrace(ctx, path)
	}
	return NewTraceReader(path, io.NewSectionReader(s.spool, 0, math.MaxInt64))
}

// Close gives back what Scan kept of the trace. It may be called again.
func (s *Summary) Close() error {
	if s.spool == nil {
		return nil
	}
	err := s.spool.Close()
	s.spool = nil
	return err
}

package tiertest

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/internal/dirfs"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// FileStream returns a Reader for tiers. At the end of the test it adds the number of bytes read to
// read.
func FileStream(t *testing.T, read *int64) dirfs.Reader {
	t.Helper()
	s, err := streamfile.Open(streamfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range s.Stats().Bytes {
			*read += n
		}
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

package file

import (
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/stream"
)

// NewWith is New with a function that opens a file with O_DIRECT.
func NewWith(base dirfs.File, name string, direct func(fd int) (int, error)) (*File, error) {
	return open(base, name, direct)
}

// IsDirect reports whether f uses O_DIRECT.
func (f *File) IsDirect() bool { return !f.refused.Load() }

// UsePatience sets the time after which broken queues of the device are idle. Call it before the
// first batch.
func (s *Stream) UsePatience(d time.Duration) {
	q, _ := s.queues[stream.PathCuFile].(*cuFileQueues)
	for _, l := range q.lanes {
		l.patience = d
	}
}

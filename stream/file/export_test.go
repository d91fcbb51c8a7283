package file

import (
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/stream"
)

// NewWith is New with another way to open a file with O_DIRECT.
func NewWith(base dirfs.File, name string, direct func(fd int) (int, error)) (*File, error) {
	return open(base, name, direct)
}

// IsDirect reports whether f is moved with O_DIRECT.
func (f *File) IsDirect() bool { return !f.refused.Load() }

// UsePatience has queues of the device that broke be idle in so much time. Nothing has been submitted yet.
func (s *Stream) UsePatience(d time.Duration) {
	q, _ := s.queues[stream.PathCuFile].(*cuFileQueues)
	for _, l := range q.lanes {
		l.patience = d
	}
}

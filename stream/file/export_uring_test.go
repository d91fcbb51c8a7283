package file

import (
	"context"

	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/stream"
)

// UseAPI has path uring go by other system calls. Nothing has been submitted yet.
func (s *Stream) UseAPI(ctx context.Context, a uring.API) error {
	q, err := openURingBy(uring.Options{Depth: s.opts.Transfers, API: a})
	if err != nil {
		return err
	}
	old := s.queues[stream.PathURing]
	s.queues[stream.PathURing] = q
	for i, told := range s.staging.told {
		if told == old {
			s.staging.told[i], _ = q.(bufferQueue)
		}
	}
	for i, lossy := range s.lossy {
		if lossy == old {
			s.lossy[i], _ = q.(quarantineQueue)
		}
	}
	return old.close(ctx)
}

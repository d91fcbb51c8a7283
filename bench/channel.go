package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Channel copies batches with a NIC directly, without a stream. It measures the NIC itself. Only
// one Move may be in progress.
type Channel interface {
	// Move submits all batches, which must be lists of extents, and waits for them. posted is the
	// time at which the submission was complete. After an error the memory may be in use until the
	// channel is closed.
	Move(ctx context.Context, batches []mem.Batch) (posted time.Time, err error)
	// Path returns the path that reports show for the batches.
	Path() stream.Path
	// Close closes the channel when its memory is no longer in use.
	Close(ctx context.Context) error
}

// ChannelOpener opens a channel for NICChannel or NICSoftChannel. If the error wraps
// ErrNotSupported, the contender is skipped and the report has the reason.
type ChannelOpener func(c Contender) (Channel, error)

// channelMover copies with a Channel.
type channelMover struct{ Channel }

func (m channelMover) move(ctx context.Context, batches []mem.Batch) (time.Time, error) {
	return m.Move(ctx, batches)
}

func (m channelMover) last() outcome { return outcome{path: m.Path()} }

func (b *bench) openChannel(c Contender) (mover, error) {
	if b.o.OpenChannel == nil {
		return nil, fmt.Errorf("no NIC is available: %w", errdefs.ErrNotSupported)
	}
	ch, err := b.o.OpenChannel(c)
	if err != nil {
		return nil, err
	}
	b.rig.OnClose(ch.Close)
	return channelMover{ch}, nil
}

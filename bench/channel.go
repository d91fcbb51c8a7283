package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Channel copies batches by a NIC without a stream, one set at a time. It measures the NIC itself.
type Channel interface {
	// Move submits all batches, which are lists of extents, and waits for them. posted is the end
	// of the submission. After an error the memory may be in use until the channel is closed.
	Move(ctx context.Context, batches []mem.Batch) (posted time.Time, err error)
	// Path returns the path of the batches.
	Path() stream.Path
	// Close frees the channel when nothing uses its memory.
	Close(ctx context.Context) error
}

// ChannelOpener opens a channel for NICChannel or NICSoftChannel. An error that wraps
// ErrNotSupported leaves the contender out of the run, and its reason is in the report.
type ChannelOpener func(c Contender) (Channel, error)

// channelMover copies by a channel.
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

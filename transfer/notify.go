package transfer

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
)

// MaxNoticeBytes is the maximum length of a notification.
const MaxNoticeBytes = 64 << 10

// Notice is a notification from another engine. The data of its batch has already arrived.
type Notice struct {
	From    share.Identity
	Segment string // name of the segment of this engine
	Body    []byte
}

// recent is the number of notifications that are remembered to detect duplicates.
const recent = 1 << 14

// inbox is the queue of notifications for Receive.
type inbox struct {
	ready chan Notice

	mu   sync.Mutex
	seen map[noticeKey]struct{}
	last []noticeKey // keys of seen, a ring buffer
	at   int
}

type noticeKey struct {
	from   share.Identity
	number uint64
}

func (b *inbox) init(size int) {
	b.ready, b.seen = make(chan Notice, size), make(map[noticeKey]struct{})
}

// put adds a notification unless it is a duplicate. It returns ErrBusy if the inbox is full; the
// sender retries then.
func (b *inbox) put(q *notifyRequest) error {
	if len(q.Body) > MaxNoticeBytes || checkName(q.Segment) != nil {
		return fmt.Errorf("notification of %d bytes for segment %q: %w", len(q.Body), q.Segment, errdefs.ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := noticeKey{q.From, q.Number}
	if _, ok := b.seen[k]; ok {
		return nil
	}
	select {
	case b.ready <- Notice{From: q.From, Segment: q.Segment, Body: q.Body}:
	default:
		return fmt.Errorf("%d notifications wait to be received: %w", len(b.ready), errdefs.ErrBusy)
	}
	b.seen[k] = struct{}{}
	if len(b.last) < recent {
		b.last = append(b.last, k)
		return nil
	}
	delete(b.seen, b.last[b.at])
	b.last[b.at] = k
	b.at = (b.at + 1) % recent
	return nil
}

// Receive waits for the next notification and returns it. All bytes of its batch have arrived. It
// returns ErrClosed when the engine closes.
func (e *Engine) Receive(ctx context.Context) (Notice, error) {
	select {
	case n := <-e.inbox.ready:
		return n, nil
	default:
	}
	select {
	case n := <-e.inbox.ready:
		return n, nil
	case <-e.ctx.Done():
		return Notice{}, context.Cause(e.ctx)
	case <-ctx.Done():
		return Notice{}, fmt.Errorf("receive notification: %w", context.Cause(ctx))
	}
}

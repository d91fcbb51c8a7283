package renew

import (
	"context"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// retiredStream is a broken stream that a goroutine is closing, because closing may have to wait
// for the hardware.
type retiredStream struct {
	st   stream.Stream
	done chan struct{} // closed when the goroutine has returned
	err  error         // nil if st is closed; valid after done
}

// The delay between attempts to close a broken stream doubles from closeRetryDelay to
// maxCloseRetryDelay.
const (
	closeRetryDelay    = 10 * time.Millisecond
	maxCloseRetryDelay = time.Second
)

// closeAndRetry closes the stream and retries until that succeeds or ctx ends, because an open
// stream keeps memory and queues of the device. onRetry is called before each delay.
func (r *retiredStream) closeAndRetry(ctx context.Context, onRetry func()) {
	defer close(r.done)
	for delay := closeRetryDelay; ; delay = min(2*delay, maxCloseRetryDelay) {
		if r.err = r.st.Close(ctx); r.err == nil || ctx.Err() != nil {
			return
		}
		onRetry()
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
	}
}

// wait blocks until the stream is closed. If ctx ends first, wait calls cancel to stop the closing
// goroutine and returns the cause of ctx. The next call waits for that goroutine and then tries to
// close the stream itself.
func (r *retiredStream) wait(ctx context.Context, cancel func()) error {
	select {
	case <-r.done:
	case <-ctx.Done():
		cancel()
		return context.Cause(ctx)
	}
	if r.err != nil {
		_, r.err = closeStream(ctx, r.st)
	}
	return r.err
}

// closed reports whether the stream is closed. It does not block.
func (r *retiredStream) closed() bool {
	select {
	case <-r.done:
		return r.err == nil
	default:
		return false
	}
}

// closeStream closes st. If the first Close fails, it calls Close again to find out whether st is
// closed. If so, it returns the error of the first call as reported, otherwise as err.
func closeStream(ctx context.Context, st stream.Stream) (reported, err error) {
	first := st.Close(ctx)
	if first == nil {
		return nil, nil
	}
	if ctx.Err() != nil || st.Close(ctx) != nil {
		return nil, first
	}
	return first, nil
}

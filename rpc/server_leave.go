package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

const (
	stoppingText = "Server is stopping"
	// noticeID is the correlation id of a LogOff that answers no request. Clients of this package
	// count from 1, and drop a response with an unknown id.
	noticeID = 0
	// leaveWait is the time in which notified clients must close their connections.
	leaveWait = time.Second
)

// markNotified notes that the client is sent a LogOff. It reports whether this is the first one.
func (c *serverConn) markNotified() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.notified
	c.notified = true
	return first
}

// notify sends a LogOff that answers no request, if the client has sent a request with
// ReportExecuted.
func (c *serverConn) notify() {
	c.mu.Lock()
	asks := c.asks
	c.mu.Unlock()
	if !asks || !c.markNotified() {
		return
	}
	o, err := newOutput(c.out.transport, frame.Message, &pb.Meta{
		Response:      &pb.Response{ErrorCode: proto.Int32(int32(LogOff)), ErrorText: proto.String(stoppingText)},
		CorrelationId: proto.Int64(noticeID),
	}, nil, nil)
	if err == nil {
		_ = c.out.write(o) // its error ends the connection
	}
}

// waitNotified waits until notified clients have closed their connections. Until then their
// requests are answered: they may have been sent before the LogOff arrived.
func waitNotified(ctx context.Context, conns []*serverConn) {
	ctx, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	for _, c := range conns {
		c.mu.Lock()
		notified := c.notified
		c.mu.Unlock()
		if !notified {
			continue
		}
		select {
		case <-c.ended:
		case <-ctx.Done():
			return
		}
	}
}

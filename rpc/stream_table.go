package rpc

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// streamTable has the streams of a connection.
type streamTable struct {
	out    *writer
	active func() // called for each received frame; may be nil
	max    int64  // bytes of one message, and of all messages that wait for Receive

	mu     sync.Mutex
	next   int64
	live   map[int64]*Stream
	queued int64 // bytes that wait for Receive
	err    error // reason for the end of the connection
}

func newStreamTable(out *writer, max int64) *streamTable {
	return &streamTable{out: out, max: max, live: make(map[int64]*Stream)}
}

// open adds a stream in the state streamOpening.
func (t *streamTable) open(o StreamOptions) (*Stream, error) {
	s := &Stream{table: t, o: o}
	s.changed.L = &s.mu
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return nil, t.err
	}
	if len(t.live) >= maxStreams {
		return nil, Errorf(LimitReached, "more than %d streams on a connection", maxStreams)
	}
	s.id = t.next
	t.next++
	t.live[s.id] = s
	return s, nil
}

func (t *streamTable) find(id int64) *Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[id]
}

// used reports whether the connection has streams.
func (t *streamTable) used() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live) > 0
}

// close ends all streams with err.
func (t *streamTable) close(err error) {
	t.mu.Lock()
	t.err = err
	live := t.live
	t.live = make(map[int64]*Stream)
	t.mu.Unlock()
	for _, s := range live {
		s.end(err)
	}
}

// take counts bytes that wait for Receive. It returns false if there would be too many.
func (t *streamTable) take(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queued+n > t.max+pieceBytes {
		return false
	}
	t.queued += n
	return true
}

func (t *streamTable) give(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queued -= n
}

// read handles a frame of a stream. An error ends the connection.
func (t *streamTable) read(in frameSource, meta []byte) error {
	if t.active != nil {
		t.active()
	}
	f := new(pb.StreamFrame)
	if err := proto.Unmarshal(meta, f); err != nil {
		return fmt.Errorf("decode a frame of a stream: %w: %w", errdefs.ErrInvalid, err)
	}
	s := t.find(f.GetStreamId())
	if s == nil {
		if f.SourceStreamId != nil && frameType(f) != frameFeedback {
			_ = t.send(frameReset, f.GetSourceStreamId(), nil) // its error ends the connection
		}
		return in.Skip()
	}
	switch frameType(f) {
	case frameData:
		return s.data(in, f)
	case frameFeedback:
		s.mu.Lock()
		s.consumed = min(max(s.consumed, f.GetFeedback().GetConsumedSize()), s.sent)
		s.changed.Broadcast()
		s.mu.Unlock()
	case frameClose:
		s.peerClosed(f.GetSourceStreamId())
	case frameReset:
		s.peerReset()
	}
	return in.Skip()
}

// The types of frames of streams.
const (
	frameReset    = 1
	frameClose    = 2
	frameData     = 3
	frameFeedback = 4
)

func frameType(f *pb.StreamFrame) int32 { return f.GetFrameType() }

// send writes a frame without data.
func (t *streamTable) send(kind int32, to int64, from *int64) error {
	o, err := newOutput(nil, frame.Stream, &pb.StreamFrame{StreamId: &to, SourceStreamId: from, FrameType: &kind}, nil, nil)
	if err != nil {
		return err
	}
	return t.out.write(o)
}

// sendData writes a frame with data when there is space. more means that the message goes on.
func (t *streamTable) sendData(ctx context.Context, to int64, from *int64, data *chain.Chain, more bool) error {
	o, err := newOutput(nil, frame.Stream, &pb.StreamFrame{StreamId: &to, SourceStreamId: from, FrameType: proto.Int32(frameData), HasContinuation: &more}, nil, data)
	if err != nil {
		data.Release()
		return err
	}
	return t.out.writeWait(ctx, o, false)
}

// settings returns the settings of streams that were opened together.
func settings(list []*Stream) *pb.StreamSettings {
	m := &pb.StreamSettings{StreamId: &list[0].id, NeedFeedback: proto.Bool(true), Writable: proto.Bool(!list[0].o.SendOnly)}
	for _, s := range list[1:] {
		m.ExtraStreamIds = append(m.ExtraStreamIds, s.id)
	}
	return m
}

// streamIDs returns the ids of settings.
func streamIDs(m *pb.StreamSettings) []int64 {
	return append([]int64{m.GetStreamId()}, m.GetExtraStreamIds()...)
}

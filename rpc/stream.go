package rpc

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// DefaultMaxBuffered is the default of StreamOptions.MaxBuffered.
const DefaultMaxBuffered = 2 << 20

// segmentBytes is the length of the pieces in which long messages are sent, so that other frames
// can be sent between them.
const segmentBytes = 1 << 20

// pieceBytes is the memory that a received piece of a message takes at least: a block of a pool.
const pieceBytes = 4 << 10

// maxStreams limits the streams of a connection.
const maxStreams = 1024

// feedbackBytes is the number of consumed bytes after which the peer is notified even if received
// messages are still queued.
const feedbackBytes = 64 << 10

// StreamOptions are the options of one side of a stream.
type StreamOptions struct {
	// MaxBuffered limits the sent bytes that the peer has not consumed; Send waits until there are
	// fewer. The last message may exceed it. Default: DefaultMaxBuffered.
	MaxBuffered int64
	// SendOnly reports to the peer that this side does not receive.
	SendOnly bool
}

func (o *StreamOptions) setDefaults() error {
	setDefault(&o.MaxBuffered, DefaultMaxBuffered)
	if o.MaxBuffered < 0 {
		return &Error{BadRequest, "open stream: MaxBuffered is negative", errdefs.ErrInvalid}
	}
	return nil
}

// streamState is the state of a stream.
type streamState uint8

const (
	streamOpening streamState = iota // the response of the call is not sent, or not received
	streamOpen
	streamClosing // Close was called; the CLOSE is not sent yet
	streamEnded   // one side has closed the stream, or it failed
)

// Stream is a sequence of messages in each direction on the connection of a call. A client opens it
// with a call (Client.OpenStreams), and the handler accepts it (Call.AcceptStreams). Messages
// arrive whole and in order. It is safe for concurrent use.
type Stream struct {
	table *streamTable
	id    int64
	o     StreamOptions
	// respond delivers the first message to a client's call: it is the response.
	respond func(*chain.Chain) error

	mu       sync.Mutex
	changed  sync.Cond
	state    streamState
	err      error // reason for the end of the stream; io.EOF if it was closed
	peer     int64 // the peer's id
	answered bool  // the first message, the response, has arrived
	deaf     bool  // the peer does not receive messages
	feedback bool  // the peer needs feedback
	sent     int64 // bytes
	consumed int64 // bytes of sent that the peer has consumed

	sending bool // a Send is in progress: segments of several messages must not mix
	queue   []received
	partial *chain.Chain // segments of a message that is not complete

	partialCost int64 // bytes that partial counts for
	received    int64 // bytes taken by Receive
	reported    int64 // part of received that was reported to the peer
}

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
			_ = t.send(frameReset, f.GetSourceStreamId(), nil, nil, nil) // its error ends the connection
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

// send writes a frame of a stream.
func (t *streamTable) send(kind int32, to int64, from *int64, data *chain.Chain, more *bool) error {
	o, err := newOutput(nil, frame.Stream, &pb.StreamFrame{StreamId: &to, SourceStreamId: from, FrameType: &kind, HasContinuation: more}, nil, data)
	if err != nil {
		data.Release()
		return err
	}
	return t.out.write(o)
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

// data receives a piece of a message.
func (s *Stream) data(in frameSource, f *pb.StreamFrame) error {
	n := in.Left()
	cost := max(n, pieceBytes)
	s.mu.Lock()
	closed := s.state > streamOpen
	var respond func(*chain.Chain) error
	if s.state == streamOpening && !s.answered {
		respond = s.respond
	}
	if respond != nil {
		s.peer, s.answered = f.GetSourceStreamId(), true
	}
	s.mu.Unlock()
	if closed || s.o.SendOnly && respond == nil {
		return in.Skip()
	}
	if respond == nil && !s.table.take(cost) {
		s.reset(&Error{Overcrowded, fmt.Sprintf("more than %d bytes of streams wait", s.table.max), errdefs.ErrBusy})
		return in.Skip()
	}
	c, err := in.ReadHost(n)
	if respond != nil {
		if err != nil {
			return err
		}
		return respond(c)
	}
	if err != nil {
		s.table.give(cost)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state > streamOpen { // closed meanwhile
		s.table.give(cost)
		c.Release()
		return nil
	}
	if s.partial == nil {
		s.partial = new(chain.Chain)
	}
	s.partial.Append(c)
	s.partialCost += cost
	if !f.GetHasContinuation() {
		s.queue = append(s.queue, received{s.partial, s.partialCost})
		s.partial, s.partialCost = nil, 0
		s.changed.Broadcast()
	}
	return nil
}

// opened ends the state streamOpening, after the response was sent or received. It sends the frames
// that Close and Receive deferred until then.
func (s *Stream) opened(peer int64, settings *pb.StreamSettings) {
	s.mu.Lock()
	state := s.state
	s.peer, s.deaf, s.feedback = peer, !settings.GetWritable(), settings.GetNeedFeedback()
	if state == streamOpening {
		s.state = streamOpen
	}
	consumed := s.report()
	s.changed.Broadcast()
	s.mu.Unlock()
	s.sendFeedback(peer, consumed)
	if state == streamClosing {
		_ = s.sendClose(peer) // its error ends the connection
	}
}

// report returns the consumed bytes if the peer is to be notified now, or 0. The caller holds mu.
func (s *Stream) report() int64 {
	if !s.feedback || s.state != streamOpen || s.received == s.reported || len(s.queue) > 0 && s.received-s.reported < feedbackBytes {
		return 0
	}
	s.reported = s.received
	return s.received
}

// sendFeedback notifies the peer of consumed bytes, if there are any.
func (s *Stream) sendFeedback(peer, consumed int64) {
	if consumed == 0 {
		return
	}
	kind := int32(frameFeedback)
	o, err := newOutput(nil, frame.Stream, &pb.StreamFrame{StreamId: &peer, SourceStreamId: &s.id, FrameType: &kind, Feedback: &pb.Feedback{ConsumedSize: &consumed}}, nil, nil)
	if err == nil {
		_ = s.table.out.write(o) // its error ends the connection
	}
}

// received is a message that waits for Receive.
type received struct {
	data *chain.Chain
	cost int64 // bytes that it counts for
}

// peerReset handles a RST from the peer. It is the last frame of a close by this side. Otherwise
// the peer ends the stream without its last messages.
func (s *Stream) peerReset() {
	s.mu.Lock()
	closing := s.state == streamClosing
	s.mu.Unlock()
	if closing {
		s.end(io.EOF)
		return
	}
	s.end(&Error{EndOfFile, "the peer has reset the stream", nil})
}

// peerClosed handles a CLOSE from the peer. It sends one in return, or completes a close of this
// side.
func (s *Stream) peerClosed(peer int64) {
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	switch state {
	case streamOpen, streamOpening:
		_ = s.table.send(frameClose, peer, &s.id, nil, nil) // its error ends the connection
	case streamClosing:
		_ = s.table.send(frameReset, peer, nil, nil, nil) // its error ends the connection
	case streamEnded:
	}
	s.end(io.EOF)
}

// reset ends the stream with err and notifies the peer.
func (s *Stream) reset(err error) {
	s.mu.Lock()
	ended, peer := s.state == streamEnded, s.peer
	s.mu.Unlock()
	if !ended {
		_ = s.table.send(frameReset, peer, nil, nil, nil) // its error ends the connection
	}
	s.end(err)
}

// end removes the stream. Messages that have arrived can still be received if the peer closed it.
func (s *Stream) end(err error) {
	s.table.mu.Lock()
	delete(s.table.live, s.id)
	s.table.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == streamEnded {
		return
	}
	s.state, s.err = streamEnded, err
	if s.partial != nil {
		s.table.give(s.partialCost)
		s.partial.Release()
		s.partial, s.partialCost = nil, 0
	}
	s.changed.Broadcast()
}

// wait waits until ok returns true. The caller holds mu.
func (s *Stream) wait(ctx context.Context, ok func() bool) error {
	if ok() {
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	for !ok() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.changed.Wait()
	}
	return nil
}

// Send sends a message. It takes over the chain in any case. It waits until the call's response is
// sent or received, and while the peer has not consumed MaxBuffered bytes. It returns an *Error
// with the code Closed after the stream has ended, and for a peer that does not receive.
func (s *Stream) Send(ctx context.Context, message *chain.Chain) error {
	defer message.Release()
	n := message.Len()
	s.mu.Lock()
	err := s.wait(ctx, func() bool {
		return s.state > streamOpen || s.state == streamOpen && !s.sending && s.sent-s.consumed < s.o.MaxBuffered
	})
	switch {
	case err != nil:
	case s.state > streamOpen:
		err = &Error{Closed, "send on a stream that was closed", s.err}
	case s.table.out.overcrowded():
		err = Errorf(Overcrowded, "more than %d bytes wait for the peer", s.table.out.max)
	case s.deaf:
		err = &Error{Closed, "send on a stream whose peer does not receive", errdefs.ErrNotSupported}
	default:
		s.sent += n
		s.sending = true
	}
	peer := s.peer
	s.mu.Unlock()
	if err != nil {
		return callError(ctx, err)
	}
	for first := true; err == nil && (first || message.Len() > 0); first = false {
		piece := message.Cut(segmentBytes)
		err = s.table.send(frameData, peer, &s.id, piece, proto.Bool(message.Len() > 0))
	}
	s.mu.Lock()
	s.sending = false
	s.changed.Broadcast()
	s.mu.Unlock()
	if err != nil {
		s.reset(err) // the peer may have a part of the message
	}
	return callError(ctx, err)
}

// Receive returns the next message, which the caller releases. It returns io.EOF after the last
// message of a stream that the peer or Close has closed, and otherwise an *Error.
func (s *Stream) Receive(ctx context.Context) (*chain.Chain, error) {
	s.mu.Lock()
	if err := s.wait(ctx, func() bool { return len(s.queue) > 0 || s.state == streamEnded }); err != nil {
		s.mu.Unlock()
		return nil, callError(ctx, err)
	}
	if len(s.queue) == 0 {
		defer s.mu.Unlock()
		if s.err == io.EOF { //nolint:errorlint // set by end, never wrapped
			return nil, io.EOF
		}
		return nil, callError(ctx, s.err)
	}
	m := s.queue[0]
	s.queue[0] = received{}
	s.queue = s.queue[1:]
	s.received += m.data.Len()
	consumed, peer := s.report(), s.peer
	s.mu.Unlock()
	s.table.give(m.cost)
	s.sendFeedback(peer, consumed)
	return m.data, nil
}

// Close closes the stream in both directions. The peer receives the messages that were sent before.
// Messages that were not received are dropped. Later calls do nothing.
func (s *Stream) Close() error {
	s.mu.Lock()
	state, peer := s.state, s.peer
	if state <= streamOpen {
		s.state = streamClosing
	}
	for _, m := range s.queue {
		s.table.give(m.cost)
		m.data.Release()
	}
	s.queue = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	if state == streamOpen {
		return callError(context.Background(), s.sendClose(peer))
	}
	return nil // opened sends the CLOSE, or it was sent, or is not needed
}

// sendClose sends a CLOSE and ends the stream. The answer to the peer's CLOSE is a RST, as to all
// frames for streams that have ended. brpc may send none.
func (s *Stream) sendClose(peer int64) error {
	err := s.table.send(frameClose, peer, &s.id, nil, nil)
	s.end(io.EOF)
	return err
}

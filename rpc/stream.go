package rpc

import (
	"context"
	"fmt"
	"io"
	"sync"

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
		_ = s.table.send(frameClose, peer, &s.id) // its error ends the connection
	case streamClosing:
		_ = s.table.send(frameReset, peer, nil) // its error ends the connection
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
		_ = s.table.send(frameReset, peer, nil) // its error ends the connection
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

// Send sends a message. It takes over the chain in any case; nil is an empty message. It waits until the call's response is
// sent or received, while the peer has not consumed MaxBuffered bytes, and while too many bytes of
// the connection are unread. It returns an *Error: the code Closed after the stream has ended, and
// for a peer that does not receive. If ctx ends within a message of several MiB, the stream is
// reset.
func (s *Stream) Send(ctx context.Context, message *chain.Chain) error {
	checkContext(ctx)
	defer message.Release()
	n := message.Len()
	if n > s.table.max {
		return Errorf(BadRequest, "a stream message of %d bytes exceeds MaxBodyBytes of %d", n, s.table.max)
	}
	s.mu.Lock()
	err := s.wait(ctx, func() bool {
		return s.state > streamOpen || s.state == streamOpen && !s.sending && s.sent-s.consumed < s.o.MaxBuffered
	})
	switch {
	case err != nil:
	case s.state > streamOpen:
		err = &Error{Closed, "send on a stream that was closed", s.err}
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
	pieces := 0
	for ; err == nil && (pieces == 0 || message.Len() > 0); pieces++ {
		piece := message.Cut(segmentBytes)
		err = s.table.sendData(ctx, peer, &s.id, piece, message.Len() > 0)
	}
	s.mu.Lock()
	s.sending = false
	if err != nil && pieces == 1 {
		s.sent -= n // no byte was sent
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	if err != nil && pieces > 1 {
		s.reset(err) // the peer has a part of the message
	}
	return callError(ctx, err)
}

// Receive returns the next message, which the caller releases. It returns io.EOF after the last
// message of a stream that the peer or Close has closed, and otherwise an *Error.
func (s *Stream) Receive(ctx context.Context) (*chain.Chain, error) {
	checkContext(ctx)
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
	err := s.table.send(frameClose, peer, &s.id)
	s.end(io.EOF)
	return err
}

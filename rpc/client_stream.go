package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
)

// OpenStreams makes a call that requests n streams and returns them after the response. It needs a
// client with a Single connection. If the call fails or the server does not accept the streams, it
// returns an *Error. The caller closes the streams.
func (c *Client) OpenStreams(ctx context.Context, method string, in, out proto.Message, n int, o StreamOptions, options ...CallOption) ([]*Stream, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if c.o.Connections != Single || n < 1 {
		return nil, &Error{BadRequest, "streams need a single connection, and at least one stream", errdefs.ErrInvalid}
	}
	r, err := NewRequest(method, in, options...)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if err := checkResponse(out); err != nil {
		return nil, err
	}
	var list []*Stream
	response, err := c.do(ctx, r, func(conn *clientConn) error {
		for range n {
			s, err := conn.streams.open(o)
			if err != nil {
				return err
			}
			list = append(list, s)
		}
		list[0].mu.Lock()
		list[0].respond = conn.respondInStream
		list[0].mu.Unlock()
		r.o.streams = list
		return nil
	})
	if err == nil {
		err = response.Decode(out)
	}
	if err != nil {
		for _, s := range list {
			s.fail(err)
		}
		return nil, err
	}
	return list, nil
}

// accept opens the streams of a call by its response.
func (p *pendingCall) accept(list []*Stream) error {
	settings := p.meta.GetStreamSettings()
	ids := streamIDs(settings)
	if settings == nil || len(ids) != len(list) {
		return Errorf(BadRequest, "The server didn't accept the stream")
	}
	for i, s := range list {
		s.opened(ids[i], settings)
	}
	return nil
}

// fail ends a stream whose call has failed. The server is notified if it has accepted the stream.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	accepted := s.answered && s.peer >= 0 || s.state == streamOpen
	s.mu.Unlock()
	if accepted {
		s.reset(err)
	} else {
		s.end(err)
	}
}

package rpc

import (
	"net"

	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
)

// frameSource reads the frames of a connection. frame.Reader documents the methods.
type frameSource interface {
	Next() (frame.Header, []byte, error)
	Left() int64
	// ReadHost returns bytes in host memory, and ReadChain in any memory.
	ReadHost(n int64) (*chain.Chain, error)
	ReadChain(n int64) (*chain.Chain, error)
	Skip() error
}

// transport carries the frames of a connection in place of its socket. The end of the socket is the
// end of the transport.
type transport interface {
	// source returns the reader of frames. It is called once.
	source(l frame.Limits) frameSource
	// check returns ErrNotSupported for an attachment that cannot be sent.
	check(attachment *chain.Chain) error
	// send sends frames, and drops each when its memory is not read any more. It has one caller at
	// a time.
	send(batch []output) error
	// close ends the transport and releases its memory. The source is not used any more.
	close(err error)
}

// newSource returns the reader of a connection whose transport is t, or nil for its socket.
func newSource(conn net.Conn, t transport, l frame.Limits) frameSource {
	if t != nil {
		return t.source(l)
	}
	return frame.NewReader(conn, l)
}

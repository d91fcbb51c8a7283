package transfer

import (
	"io"
	"net"
	"testing"
	"time"
)

// fullConn is a connection that always has bytes to read.
type fullConn struct{ net.Conn }

func (fullConn) Read(p []byte) (int, error)      { return len(p), nil }
func (fullConn) SetReadDeadline(time.Time) error { return nil }

// TestDefectLargePiecesAreReadAhead checks how many bytes are read ahead with the header of a
// request. With alternating headers and large pieces, up to 256 KiB of each 4 MiB were read ahead
// and therefore copied twice.
func TestDefectLargePiecesAreReadAhead(t *testing.T) {
	in := newBufferedConn(newPacedConn(fullConn{}, time.Minute), forData)
	for _, tt := range []struct {
		piece int64
		want  int // bytes that may be read ahead for pieces of this size
	}{{1 << 20, headBytes}, {4 << 10, dataBuffer}, {directBytes, headBytes}} {
		s := shape{planes: []plane{{bytes: tt.piece}}, pages: make([]uint32, 4)}
		if _, err := in.Peek(1); err != nil { // reads the header
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, in.body(s.bytes(), &s)); err != nil {
			t.Fatal(err)
		}
		_, err := in.Discard(in.Buffered())
		if err == nil {
			_, err = in.Peek(1)
		}
		if n := in.Buffered(); err != nil || n != tt.want {
			t.Errorf("behind pieces of %d bytes %d bytes are read ahead, want %d: %v", tt.piece, n, tt.want, err)
		}
	}
}

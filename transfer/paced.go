package transfer

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/wire"
)

// chunk is the maximum length of one write to a socket. Progress is recorded after each write.
const chunk = 1 << 20

// pacedConn is a connection that fails if it makes no progress for the time limit while it is busy.
// Progress is a byte in either direction.
type pacedConn struct {
	net.Conn
	limit        time.Duration
	lastProgress atomic.Int64 // time of the last progress, in Unix nanoseconds
	// busy is the number of expected replies. If it is 0, reads have no time limit.
	busy atomic.Int64
	// pace is the minimum rate of the peer during a request. Optional.
	pace *wire.Pace
}

func newPacedConn(c net.Conn, limit time.Duration) *pacedConn {
	p := &pacedConn{Conn: c, limit: limit}
	p.markProgress()
	return p
}

func (c *pacedConn) markProgress() { c.lastProgress.Store(time.Now().UnixNano()) }

// expect adds n to the number of expected replies.
func (c *pacedConn) expect(n int64) {
	if n > 0 {
		c.markProgress()
	}
	c.busy.Add(n)
}

func (c *pacedConn) stalled() bool {
	return c.busy.Load() > 0 && time.Since(time.Unix(0, c.lastProgress.Load())) >= c.limit
}

func (c *pacedConn) Read(p []byte) (int, error) {
	for {
		if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
			return 0, err
		}
		began := time.Now()
		n, err := c.Conn.Read(p)
		if n > 0 {
			c.markProgress()
			if err == nil {
				err = c.tooSlow(n, began)
			}
			return n, err
		}
		if err == nil || !timedOut(err) || c.stalled() {
			return n, err
		}
	}
}

// tooSlow returns an error if the peer is slower than its pace during a request. It moved n bytes
// since began.
func (c *pacedConn) tooSlow(n int, began time.Time) error {
	if c.pace == nil || c.busy.Load() == 0 {
		return nil
	}
	return c.pace.Moved(n, began)
}

// ReadBy implements wire.BriefReader.
func (c *pacedConn) ReadBy(p []byte, by time.Time) (int, error) {
	if err := c.SetReadDeadline(by); err != nil {
		return 0, err
	}
	began := time.Now()
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.markProgress()
	}
	if err == nil || timedOut(err) {
		err = c.tooSlow(n, began)
	}
	return n, err
}

// WriteBy writes as much of p as possible before the time by. A short write is not an error.
func (c *pacedConn) WriteBy(p []byte, by time.Time) (int, error) {
	if err := c.SetWriteDeadline(by); err != nil {
		return 0, err
	}
	began := time.Now()
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.markProgress()
	}
	if err == nil || timedOut(err) {
		err = c.tooSlow(n, began)
	}
	return n, err
}

func (c *pacedConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if err = c.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return n, err
		}
		began := time.Now()
		var m int
		m, err = c.Conn.Write(p[n:min(n+chunk, len(p))])
		if n += m; m > 0 {
			c.markProgress()
		}
		if err == nil {
			err = c.tooSlow(m, began)
		}
	}
	return n, err
}

func timedOut(err error) bool {
	t, ok := err.(net.Error) //nolint:errorlint // a connection returns its own error unwrapped
	return ok && t.Timeout()
}

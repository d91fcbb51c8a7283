package transfer

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/wire"
)

// chunk is what one call of the system writes at most, so that progress shows.
const chunk = 1 << 20

// pacedConn is a connection whose every read and write has to get on: it fails when nothing has moved, either way, for the limit, but
// for while it is idle.
type pacedConn struct {
	net.Conn
	limit        time.Duration
	lastProgress atomic.Int64 // when something last did, in Unix nanoseconds
	// busy is how many answers are waited for. A reader that waits for none waits for good.
	busy atomic.Int64
	// pace bounds how slow the peer may be while a request is under way; nil: not at all.
	pace *wire.Pace
}

func newPacedConn(c net.Conn, limit time.Duration) *pacedConn {
	p := &pacedConn{Conn: c, limit: limit}
	p.markProgress()
	return p
}

func (c *pacedConn) markProgress() { c.lastProgress.Store(time.Now().UnixNano()) }

// expect adds n to what is waited for.
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

// tooSlow returns an error if the peer of a request under way moves less than its pace. The n last
// bytes took since began.
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

// WriteBy writes what it can until a time. That it was not all is no error.
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
	t, ok := err.(net.Error) //nolint:errorlint // a connection's own error, as it returns it
	return ok && t.Timeout()
}

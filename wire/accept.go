package wire

import (
	"errors"
	"net"
	"time"
)

// acceptRetryDelay is the delay after a failed accept, for example if there are no free file
// descriptors.
const acceptRetryDelay = 10 * time.Millisecond

// Accept passes each connection of l to handle until l is closed. handle must not block. If an
// accept fails, Accept calls failed and retries after a delay.
func Accept(l net.Listener, handle func(net.Conn), failed func()) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			handle(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			failed()
			time.Sleep(acceptRetryDelay)
		}
	}
}

package blockio

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// ErrRefused is the class of errors of a server that answers and refuses the connection. They wrap
// the error of the server's status too.
var ErrRefused = errors.New("the server refuses the connection")

// StaleError is the error of a hello with an epoch below that of the server's list of servers. It
// wraps ErrStale.
type StaleError struct{ Epoch uint64 }

// Error returns the server's epoch.
func (e *StaleError) Error() string { return fmt.Sprintf("%v: it has epoch %d", ErrStale, e.Epoch) }

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// advice is the next step after a refused hello, by status.
var advice = [statuses]string{
	StatusDenied:       "check the token, or the name in the client's certificate",
	StatusBusy:         "this tenant has too many connections: use fewer clients, or raise the server's --max-connections",
	StatusNoSpace:      "an image is longer than the tenant's memory, or the tenant has too many identities: raise the server's --cache-bytes or --tenant-bytes",
	StatusMismatch:     "it has another version, or knows an identity with another layout",
	StatusCanceled:     "its disk did not open the directories in time: use a longer timeout",
	StatusFailed:       "its disk failed: see its log",
	StatusNotSupported: "it needs TLS: give the authorities of its certificate (remote_ca)",
}

// refusal returns the error of the status with the next step, or nil for StatusOK.
func (h *HelloResult) refusal() error {
	err := h.Status.Err()
	if err == nil {
		return nil
	}
	if h.Status == StatusStale {
		err = &StaleError{h.Epoch}
	}
	if why := advice[h.Status]; why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// unanswered returns the error of a hello without a result, with its likely cause.
func unanswered(nc net.Conn, err, read error) error {
	var op *net.OpError
	_, isTLS := nc.(*tls.Conn)
	switch {
	case errors.As(read, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate required"):
		return &wire.AnswerError{Err: fmt.Errorf("%w: %w: it needs a client's certificate (remote_cert and remote_key): %w", ErrRefused, ErrDenied, read)}
	case errors.As(read, &op) && op.Op == "remote error":
		return &wire.AnswerError{Err: fmt.Errorf("%w: %w: check the client's certificate (remote_cert): %w", ErrRefused, ErrDenied, read)}
	case errors.Is(read, errdefs.ErrInvalid), errors.Is(read, errdefs.ErrCorrupt):
		return &wire.AnswerError{Err: fmt.Errorf("the answer is not that of a block server: check the address: %w", read)}
	case !isTLS && ended(read):
		return fmt.Errorf("the server closed the connection without an answer: check the address, and whether the server needs TLS (remote_ca): %w", err)
	case ended(read):
		return fmt.Errorf("the server closed the connection without an answer: %w", err)
	}
	return err
}

// ended reports whether err is the end of a connection by the peer.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// sayHello sends the hello and reads its result.
func sayHello(nc net.Conn, h *Hello) (*conn, error) {
	body, err := h.Append(nil)
	if err != nil {
		return nil, err
	}
	c := &conn{
		nc: nc, w: wire.NewFrameWriter(nc), r: wire.NewFrameReader(nc, h.Limits.BodyBytes(), h.Limits.RequestBytes), id: h.ID,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}), calls: make(map[uint64]*call),
	}
	sent := errors.Join(c.w.Append(body), c.w.Flush()) // the server may have answered before
	body, data, err := c.r.Next()
	if err != nil {
		return nil, unanswered(nc, cmp.Or(sent, err), err)
	}
	var r HelloResult
	if err = r.Decode(body); err == nil {
		err = r.Answers(h)
	}
	if err == nil && data > 0 {
		err = invalid("result of hello with %d bytes of data", data)
	}
	if err == nil {
		err = r.refusal()
	}
	if err != nil {
		return nil, &wire.AnswerError{Err: err}
	}
	c.limits, c.boot, c.zone, c.credits = r.Limits, r.Boot, r.Zone, int64(r.Limits.Credits)
	return c, nil
}

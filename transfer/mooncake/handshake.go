package mooncake

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
	"unicode/utf8"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// Kinds of handshake requests. A connection carries one request and one reply in the same format:
// u64 length of the rest, little endian, u8 kind, JSON.
const (
	kindConnection = 0 // connection of RDMA queue pairs
	kindMetadata   = 1
	kindNotify     = 2
	kindProbe      = 3
)

// Time limits of the handshake.
const (
	dialTime      = 5 * time.Second
	handshakeTime = 10 * time.Second // limit for a request and its reply
)

const success = "success"

// Notification is a message to the process that serves a segment.
type Notification struct {
	Name    string `json:"name"`       // name of the sender
	Message string `json:"notify_msg"` // in a reply: "success" or an error
}

type probeAnswer struct {
	Status string `json:"status"`
}

// connectionAnswer is the reply that refuses an RDMA connection. The initiator displays its
// message.
type connectionAnswer struct {
	LocalNICPath string   `json:"local_nic_path"`
	PeerNICPath  string   `json:"peer_nic_path"`
	QPNum        []uint32 `json:"qp_num"`
	Reply        string   `json:"reply_msg"`
}

// writeFrame writes a request or a reply.
func writeFrame(w io.Writer, kind byte, body []byte) error {
	if len(body)+1 > maxFrame {
		return fmt.Errorf("%d bytes are more than a frame may have, %d: %w", len(body), maxFrame-1, errdefs.ErrInvalid)
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 9+len(body)), uint64(len(body)+1))
	b = append(append(b, kind), body...)
	_, err := w.Write(b)
	return err
}

// readFrame reads a request or a reply.
func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	n, err := readLength(r)
	if err != nil {
		return 0, nil, err
	}
	return readBody(r, n)
}

// readLength reads and checks the length of the rest of a frame: 1 to maxFrame.
func readLength(r io.Reader) (int64, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n == 0 || n > maxFrame {
		return 0, fmt.Errorf("frame of %d bytes: must be 1 to %d: %w", n, maxFrame, errdefs.ErrInvalid)
	}
	return int64(n), nil
}

// readBody reads the n bytes that follow the length of a frame.
func readBody(r io.Reader, n int64) (kind byte, body []byte, err error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, err
	}
	return b[0], b[1:], nil
}

// exchange sends one handshake request to addr and returns the reply.
func exchange(ctx context.Context, addr string, kind byte, body []byte) (answer []byte, err error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // the reply is complete, or err is set
	if err := c.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	got, answer, err := byte(0), nil, writeFrame(c, kind, body)
	if err == nil {
		got, answer, err = readFrame(c)
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("handshake with %s: %w: %w", addr, errdefs.ErrCanceled, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("handshake with %s: %w", addr, &wire.AnswerError{Err: stalled(err, handshakeTime)})
	case got != kind:
		return nil, &wire.AnswerError{Err: fmt.Errorf("handshake with %s: the answer to request %d is of kind %d: %w", addr, kind, got, errdefs.ErrInvalid)}
	}
	return answer, nil
}

// dial connects to addr within dialTime.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w: %w", errdefs.ErrCanceled, context.Cause(ctx), err)
	}
	return c, err
}

// Probe sends a probe to the process that serves a segment and returns the round-trip time.
func Probe(ctx context.Context, d Directory, segment string) (time.Duration, error) {
	addr, err := d.handshake(ctx, segment)
	if err != nil {
		return 0, fmt.Errorf("probe segment %s: %w", segment, err)
	}
	began := time.Now()
	text, err := exchange(ctx, addr, kindProbe, []byte("{}"))
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("probe segment %s: %w", segment, err)
	}
	var a probeAnswer
	if err := json.Unmarshal(text, &a); err != nil || a.Status != success {
		return 0, &wire.AnswerError{Err: fmt.Errorf("probe segment %s: it answered %.100q: %w", segment, text, errdefs.ErrInvalid)}
	}
	return took, nil
}

// Notify sends a message to the process that serves a segment and waits until the message is
// accepted. Bytes of batches that the caller has waited for arrive before it. Notify returns
// ErrBusy with the reply if the process refuses the message.
func Notify(ctx context.Context, d Directory, segment string, n Notification) error {
	addr, err := d.handshake(ctx, segment)
	if err != nil {
		return fmt.Errorf("notify segment %s: %w", segment, err)
	}
	if !utf8.ValidString(n.Name) || !utf8.ValidString(n.Message) {
		return fmt.Errorf("notify segment %s: the message is not UTF-8, which JSON cannot carry: %w", segment, errdefs.ErrInvalid)
	}
	body, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("notify segment %s: %w", segment, err)
	}
	text, err := exchange(ctx, addr, kindNotify, body)
	if err != nil {
		return fmt.Errorf("notify segment %s: %w", segment, err)
	}
	var a Notification
	if err := json.Unmarshal(text, &a); err != nil || a.Message != success {
		return fmt.Errorf("notify segment %s: it answered %.100q: %w", segment, text, errdefs.ErrBusy)
	}
	return nil
}

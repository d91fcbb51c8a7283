package transfer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
)

// A control connection carries frames: requests, and one reply to each of them in order.
//
//	frame: length of the payload u32 | type u8 | status u8 | 0 u16 | payload
//
// A request has no status. A reply has the type of its request; its payload is JSON, or the text of
// an error.
const (
	frameBytes        = 8
	maxFramePayload   = 4 << 20
	maxRequestPayload = 256 << 10 // only replies are longer
)

// call is the type of a request.
type call uint8

const (
	callProbe    call = iota + 1
	callDescribe      // describeRequest -> Description
	// callFence has a fenceRequest. The target ends data connections and replies when they no
	// longer access memory.
	callFence
	callNotify // notifyRequest
	// callConnect has a connectRequest; the reply is a connectReply. It is the only request of a
	// connection for a queue pair.
	callConnect
	calls
)

type describeRequest struct {
	Name string `json:"name"`
}

type fenceRequest struct {
	Lanes []uint64 `json:"lanes"`
}

type notifyRequest struct {
	From share.Identity `json:"from"`
	// unique for the engine From; duplicates are detected by it
	Number  uint64 `json:"number"`
	Segment string `json:"segment"`
	Body    []byte `json:"body"`
}

// connectRequest asks the target to open a queue pair with access to one segment, and to connect
// it.
type connectRequest struct {
	Segment uint64        `json:"segment"`
	NIC     int           `json:"nic"` // index in Description.NICs
	From    rail.Endpoint `json:"from"`
}

type connectReply struct {
	To rail.Endpoint `json:"to"`
}

type frame struct {
	call    call
	status  status
	payload []byte
}

func (f *frame) write(w io.Writer) error {
	b := make([]byte, frameBytes, frameBytes+len(f.payload))
	binary.LittleEndian.PutUint32(b, uint32(len(f.payload)))
	b[4], b[5] = byte(f.call), byte(f.status)
	_, err := w.Write(append(b, f.payload...))
	return err
}

// readFrame reads a frame. It returns ErrInvalid if it is malformed.
func readFrame(r io.Reader) (frame, error) {
	f, n, err := readFrameHead(r)
	if err == nil {
		err = f.readPayload(r, n)
	}
	return f, err
}

// readFrameHead reads the head of a frame. The payload of n bytes follows. It returns ErrInvalid
// for a malformed head.
func readFrameHead(r io.Reader) (f frame, n uint32, err error) {
	var b [frameBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return f, 0, err
	}
	n = binary.LittleEndian.Uint32(b[:])
	f = frame{call: call(b[4]), status: status(b[5])}
	if n > maxFramePayload || f.call == 0 || f.call >= calls || f.status >= statuses || b[6] != 0 || b[7] != 0 {
		return frame{}, 0, fmt.Errorf("frame of type %d, status %d and %d bytes: %w", b[4], b[5], n, errdefs.ErrInvalid)
	}
	return f, n, nil
}

// readPayload reads n bytes. It allocates memory as bytes arrive, because n is not trusted.
func (f *frame) readPayload(r io.Reader, n uint32) (err error) {
	f.payload, err = io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(f.payload) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// decode decodes the payload as JSON. It returns ErrInvalid if the payload is malformed.
func (f *frame) decode(v any) error {
	if err := json.Unmarshal(f.payload, v); err != nil {
		return fmt.Errorf("read request of type %d: %w: %w", f.call, errdefs.ErrInvalid, err)
	}
	return nil
}

// newFrame returns a frame with v encoded as JSON. It returns ErrInvalid if the payload is too
// long.
func newFrame(c call, v any) (frame, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return frame{}, fmt.Errorf("write request of type %d: %w", c, err)
	}
	if len(b) > maxFramePayload {
		return frame{}, fmt.Errorf("frame of type %d and %d bytes, of %d at most: %w", c, len(b), maxFramePayload, errdefs.ErrInvalid)
	}
	return frame{call: c, payload: b}, nil
}

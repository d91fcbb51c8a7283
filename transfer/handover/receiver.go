package handover

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/transfer"
)

// MaxIDBytes is the maximum length of a request's identifier.
const MaxIDBytes = 4096

// maxLayers is the maximum number of layers of a request.
const maxLayers = 1 << 16

// Format of a notification:
//
//	"kvh2" | kind u8 | 0 u8 | layer u16 | layers u32 | number u64 | identifier
const (
	magic       = "kvh2"
	headerBytes = 20
)

type kind uint8

const (
	arrived kind = iota + 1
	failed
)

type message struct {
	kind          kind
	layer, layers int
	number        uint64 // distinguishes requests with the same identifier
	id            []byte
}

func (m message) encode() []byte {
	b := append(make([]byte, 0, headerBytes+len(m.id)), magic...)
	b = append(b, byte(m.kind), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(m.layer))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.layers))
	b = binary.LittleEndian.AppendUint64(b, m.number)
	return append(b, m.id...)
}

// decode decodes a message encoded by encode. It returns ErrInvalid if the message is malformed.
func decode(b []byte) (m message, err error) {
	if len(b) < headerBytes || len(b) > headerBytes+MaxIDBytes || string(b[:4]) != magic || b[5] != 0 {
		return m, fmt.Errorf("a notification of %d bytes does not belong to a request: %w", len(b), errdefs.ErrInvalid)
	}
	m = message{
		kind(b[4]), int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint32(b[8:])), binary.LittleEndian.Uint64(b[12:]), b[headerBytes:],
	}
	if m.kind != arrived && m.kind != failed || m.layers < 1 || m.layers > maxLayers || m.layer >= m.layers {
		return m, fmt.Errorf("a notification of layer %d of %d: %w", m.layer, m.layers, errdefs.ErrInvalid)
	}
	return m, nil
}

// Event is progress or failure of a request.
type Event struct {
	From    share.Identity // the sender's engine
	Segment string
	Request []byte
	// Layer is the layer that has arrived, of Layers. Complete means that all layers have arrived.
	Layer, Layers int
	Complete      bool
	// Failed means that the pages of the request are undefined and that no other event follows.
	Failed bool
}

// Receiver reports events of requests. It reads all notifications of an engine, which must all be
// from Senders. It is safe for concurrent use.
type Receiver struct {
	e    *transfer.Engine
	most int

	mu       sync.Mutex
	requests map[requestKey]*arrivals
	order    []requestKey // keys of requests, oldest first
	stats    Stats
}

// requestKey identifies one attempt of a request. An attempt after a failure may use the same
// identifier.
type requestKey struct {
	from    share.Identity
	segment string
	id      string
	number  uint64
}

// arrivals is the set of arrived layers of a request.
type arrivals struct {
	layers []uint64 // a bit set
	done   bool     // complete or failed
}

// DefaultRequests is the default maximum number of requests that a Receiver tracks.
const DefaultRequests = 4096

// NewReceiver returns a receiver of e's notifications. requests is the maximum number of tracked
// requests; 0: DefaultRequests.
func NewReceiver(e *transfer.Engine, requests int) *Receiver {
	if requests <= 0 {
		requests = DefaultRequests
	}
	return &Receiver{e: e, most: requests, requests: make(map[requestKey]*arrivals)}
}

// Stats counts notifications that a Receiver ignored and requests that it dropped.
type Stats struct {
	Forgotten int64 // incomplete requests dropped because the Receiver tracked too many
	Foreign   int64 // notifications that no Sender has sent
	Late      int64 // layers that arrived for complete or failed requests
}

// Stats returns the counts.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Receive waits for the next event. It returns the errors of transfer.Engine.Receive.
func (r *Receiver) Receive(ctx context.Context) (Event, error) {
	for {
		n, err := r.e.Receive(ctx)
		if err != nil {
			return Event{}, err
		}
		m, err := decode(n.Body)
		if err != nil {
			r.mu.Lock()
			r.stats.Foreign++
			r.mu.Unlock()
			continue
		}
		if e, ok := r.record(n, m); ok {
			return e, nil
		}
	}
}

// record updates the request's state. It returns the event, or false if the notification is not
// reported.
func (r *Receiver) record(n transfer.Notice, m message) (Event, bool) {
	e := Event{From: n.From, Segment: n.Segment, Request: m.id, Layer: m.layer, Layers: m.layers, Failed: m.kind == failed}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.find(requestKey{n.From, n.Segment, string(m.id), m.number}, m.layers)
	if a.done {
		r.stats.Late++
		return e, false
	}
	if !e.Failed && m.layer/64 < len(a.layers) {
		a.layers[m.layer/64] |= 1 << (m.layer % 64)
		e.Complete = full(a.layers, m.layers)
	}
	if a.done = e.Failed || e.Complete; a.done {
		a.layers = nil
	}
	return e, true
}

// find returns the state of a request. If the request is new and the limit is reached, it first
// drops a finished request, or the oldest one if none is finished.
func (r *Receiver) find(k requestKey, layers int) *arrivals {
	a := r.requests[k]
	if a != nil {
		return a
	}
	if len(r.order) >= r.most {
		i := slices.IndexFunc(r.order, func(k requestKey) bool { return r.requests[k].done })
		if i < 0 {
			i = 0
			r.stats.Forgotten++
		}
		delete(r.requests, r.order[i])
		r.order = slices.Delete(r.order, i, i+1)
	}
	a = &arrivals{layers: make([]uint64, (layers+63)/64)}
	r.requests[k] = a
	r.order = append(r.order, k)
	return a
}

// full reports whether the first n bits are set.
func full(bits []uint64, n int) bool {
	for i := range n {
		if i/64 >= len(bits) || bits[i/64]>>(i%64)&1 == 0 {
			return false
		}
	}
	return true
}

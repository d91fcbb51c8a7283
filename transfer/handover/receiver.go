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

// MaxIDBytes is how long a request's identifier is at most.
const MaxIDBytes = 4096

// maxLayers is how many layers a request has at most.
const maxLayers = 1 << 16

// What a notification says:
//
//	"kvh2" | what u8 | 0 u8 | layer u16 | layers u32 | number u64 | identifier
const (
	magic       = "kvh2"
	headerBytes = 20
)

type what uint8

const (
	arrived what = iota + 1
	failed
)

type message struct {
	what          what
	layer, layers int
	number        uint64 // of the request, which tells it from others of its identifier
	id            []byte
}

func (m message) encode() []byte {
	b := append(make([]byte, 0, headerBytes+len(m.id)), magic...)
	b = append(b, byte(m.what), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(m.layer))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.layers))
	b = binary.LittleEndian.AppendUint64(b, m.number)
	return append(b, m.id...)
}

// decode reads what encode writes. ErrInvalid.
func decode(b []byte) (m message, err error) {
	if len(b) < headerBytes || len(b) > headerBytes+MaxIDBytes || string(b[:4]) != magic || b[5] != 0 {
		return m, fmt.Errorf("a notification of %d bytes is none of a request: %w", len(b), errdefs.ErrInvalid)
	}
	m = message{
		what(b[4]), int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint32(b[8:])), binary.LittleEndian.Uint64(b[12:]), b[headerBytes:],
	}
	if m.what != arrived && m.what != failed || m.layers < 1 || m.layers > maxLayers || m.layer >= m.layers {
		return m, fmt.Errorf("a notification of layer %d of %d: %w", m.layer, m.layers, errdefs.ErrInvalid)
	}
	return m, nil
}

// Event is what became of a request.
type Event struct {
	From    share.Identity // the sender's engine
	Segment string
	Request []byte
	// Layer has arrived in its pages, of Layers; Complete says that all have.
	Layer, Layers int
	Complete      bool
	// Failed says that the request's pages hold undefined bytes, whatever arrived before, and that nothing more comes of it.
	Failed bool
}

// Receiver tells what becomes of requests, of an engine whose notifications are all of senders. Safe for concurrent use.
type Receiver struct {
	e    *transfer.Engine
	most int

	mu    sync.Mutex
	there map[requestKey]*arrivals
	order []requestKey // of there, from the oldest
	stats Stats
}

// requestKey is a request, and which of those of its identifier: one that was given up may be begun again.
type requestKey struct {
	from    share.Identity
	segment string
	id      string
	number  uint64
}

// arrivals is what is there of a request.
type arrivals struct {
	layers []uint64 // as bits
	over   bool     // it is complete, or failed
}

// DefaultRequests is how many requests a Receiver keeps count of.
const DefaultRequests = 4096

// NewReceiver returns a receiver of e's notifications that keeps count of the layers of so many requests at a time; 0 is DefaultRequests.
func NewReceiver(e *transfer.Engine, requests int) *Receiver {
	if requests <= 0 {
		requests = DefaultRequests
	}
	return &Receiver{e: e, most: requests, there: make(map[requestKey]*arrivals)}
}

// Stats counts what a Receiver had no use for.
type Stats struct {
	Forgotten int64 // requests of which too many others came before they were complete
	Foreign   int64 // notifications that were none of a sender
	Late      int64 // layers that came after their request had failed or was complete
}

// Stats returns the counts.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Receive waits for the next event. Errors are those of transfer.Engine.Receive.
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
		if e, ok := r.note(n, m); ok {
			return e, nil
		}
	}
}

// note counts a layer, and says whether there is something to tell.
func (r *Receiver) note(n transfer.Notice, m message) (Event, bool) {
	e := Event{From: n.From, Segment: n.Segment, Request: m.id, Layer: m.layer, Layers: m.layers, Failed: m.what == failed}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.find(requestKey{n.From, n.Segment, string(m.id), m.number}, m.layers)
	if a.over {
		r.stats.Late++
		return e, false
	}
	if !e.Failed && m.layer/64 < len(a.layers) {
		a.layers[m.layer/64] |= 1 << (m.layer % 64)
		e.Complete = full(a.layers, m.layers)
	}
	if a.over = e.Failed || e.Complete; a.over {
		a.layers = nil
	}
	return e, true
}

// find returns what is there of a request, for which another one is forgotten if it has to be: one that is over, if there is one.
func (r *Receiver) find(k requestKey, layers int) *arrivals {
	a := r.there[k]
	if a != nil {
		return a
	}
	if len(r.order) >= r.most {
		i := slices.IndexFunc(r.order, func(k requestKey) bool { return r.there[k].over })
		if i < 0 {
			i = 0
			r.stats.Forgotten++
		}
		delete(r.there, r.order[i])
		r.order = slices.Delete(r.order, i, i+1)
	}
	a = &arrivals{layers: make([]uint64, (layers+63)/64)}
	r.there[k] = a
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

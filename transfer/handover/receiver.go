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
//	"kvh1" | what u8 | 0 u8 | layer u16 | layers u32 | identifier
const (
	magic       = "kvh1"
	headerBytes = 12
)

type what uint8

const (
	arrived what = iota + 1
	failed
)

type message struct {
	what          what
	layer, layers int
	id            []byte
}

func (m message) encode() []byte {
	b := append(make([]byte, 0, headerBytes+len(m.id)), magic...)
	b = append(b, byte(m.what), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(m.layer))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.layers))
	return append(b, m.id...)
}

// decode reads what encode writes. ErrInvalid.
func decode(b []byte) (m message, err error) {
	if len(b) < headerBytes || len(b) > headerBytes+MaxIDBytes || string(b[:4]) != magic || b[5] != 0 {
		return m, fmt.Errorf("a notification of %d bytes is none of a request: %w", len(b), errdefs.ErrInvalid)
	}
	m = message{what(b[4]), int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint32(b[8:])), b[headerBytes:]}
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
	there map[string][]uint64 // the layers that have arrived, as bits, by sender, segment and request
	order []string            // of there, from the oldest
	lost  int64
	odd   int64
}

// DefaultRequests is how many requests a Receiver keeps count of.
const DefaultRequests = 4096

// NewReceiver returns a receiver of e's notifications that keeps count of the layers of so many requests at a time; 0 is DefaultRequests.
func NewReceiver(e *transfer.Engine, requests int) *Receiver {
	if requests <= 0 {
		requests = DefaultRequests
	}
	return &Receiver{e: e, most: requests, there: make(map[string][]uint64)}
}

// Stats counts what a Receiver had no use for.
type Stats struct {
	Forgotten int64 // requests of which too many others came before they were complete
	Foreign   int64 // notifications that were none of a sender
}

// Stats returns the counts.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{r.lost, r.odd}
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
			r.odd++
			r.mu.Unlock()
			continue
		}
		return r.note(n, m), nil
	}
}

// note counts a layer.
func (r *Receiver) note(n transfer.Notice, m message) Event {
	e := Event{From: n.From, Segment: n.Segment, Request: m.id, Layer: m.layer, Layers: m.layers, Failed: m.what == failed}
	k := fmt.Sprintf("%s/%q/%s", n.From, n.Segment, m.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	bits, ok := r.there[k]
	switch {
	case e.Failed && !ok:
		return e
	case !ok:
		if len(r.order) >= r.most {
			delete(r.there, r.order[0])
			r.order = r.order[1:]
			r.lost++
		}
		bits = make([]uint64, (m.layers+63)/64)
		r.there[k] = bits
		r.order = append(r.order, k)
	}
	if !e.Failed && m.layer/64 < len(bits) {
		bits[m.layer/64] |= 1 << (m.layer % 64)
		e.Complete = full(bits, m.layers)
	}
	if e.Failed || e.Complete {
		delete(r.there, k)
		r.order = slices.DeleteFunc(r.order, func(other string) bool { return other == k })
	}
	return e
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

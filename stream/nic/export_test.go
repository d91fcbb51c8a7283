package nic

import (
	"slices"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/stream"
)

// FlushTime is the time that queue pairs have to flush their requests.
const FlushTime = flushTime

// QueuePairs returns the queried state of all queue pairs of s.
func (s *Stream) QueuePairs(tb testing.TB) []rdma.QPInfo {
	tb.Helper()
	var infos []rdma.QPInfo
	for _, q := range s.pairs {
		info, err := q.QP.Query()
		if err != nil {
			tb.Fatal(err)
		}
		infos = append(infos, info)
	}
	return infos
}

// PairNumber returns the number of a queue pair.
func (s *Stream) PairNumber(index int) uint32 { return s.pairs[index].QP.Num() }

// PairOf returns the index of the queue pair that writes to an address.
func (s *Stream) PairOf(addr uint64) int {
	q, _ := s.route(addr, 1)
	return slices.Index(s.pairs, q)
}

// Posted returns the number of posted requests, the number of signaled ones, and the largest
// numbers of scatter-gather entries and of bytes of a request. The queues must not have wrapped
// around.
func (s *Stream) Posted(tb testing.TB) (requests, signaled, sges int, bytes int64) {
	tb.Helper()
	s.hw.Lock()
	defer s.hw.Unlock()
	for _, q := range s.pairs {
		if q.Posted() > q.mask+1 {
			tb.Fatal("the queue has wrapped around")
		}
		for i := range q.Posted() {
			w := &q.wrs[i]
			requests++
			if w.Flags&rdma.SendSignaled != 0 {
				signaled++
			}
			sges, bytes = max(sges, len(w.SGEs)), max(bytes, w.Bytes())
		}
	}
	return requests, signaled, sges, bytes
}

// SubmitSpoiled submits b with remote keys that are valid for no memory.
func (s *Stream) SubmitSpoiled(tb testing.TB, b *mem.Batch) *stream.Ticket {
	tb.Helper()
	o, err := s.prepare(b)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range o.manifest.keys {
		o.manifest.keys[i].rkey ^= 0x5a5a00
	}
	t, err := s.submit(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// FailPairs moves the queue pairs to the error state without informing the stream.
func (s *Stream) FailPairs(tb testing.TB) {
	tb.Helper()
	for _, q := range s.pairs {
		if err := q.QP.Modify(rdma.QPAttr{State: rdma.QPSErr}); err != nil {
			tb.Fatal(err)
		}
	}
}

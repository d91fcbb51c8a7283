package rdmatest

import (
	"encoding/binary"
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

// testChain posts chains in which only the last request has a completion.
func testChain(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		const pieces, n = 60, 1000
		for round := range 5 {
			var wrs []rdma.SendWR
			for i := range pieces {
				w := a.write(b, uint64(i), int64(i*n), n)
				if i != pieces-1 {
					w.Flags = 0
				}
				wrs = append(wrs, w)
			}
			if round%2 == 1 {
				for i := range wrs {
					wrs[i].Opcode = rdma.WRRDMARead
				}
			}
			a.post(t, wrs...)
			// The caller owns the slice again.
			clear(wrs)
			wc := ok(t, a.scq, 1)[0]
			wantStatus(t, &wc, pieces-1, a.qp, rdma.WCSuccess)
			same(t, "chain", b.far()[:pieces*n], a.near()[:pieces*n])
			none(t, a.scq)
			h.fill(t, a.near())
		}
	})
}

func testSignalAll(t *testing.T, h *harness) {
	a, b := h.pair(t, options{signalAll: true})
	w := a.write(b, 1, 0, 10)
	w.Flags = 0
	a.post(t, w, w, w)
	ok(t, a.scq, 3)
}

// testOrder checks that completions arrive in the order of posting, and that the last of several
// writes to one address wins.
func testOrder(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		const rounds, n = 20, 32
		for round := range rounds {
			var wrs []rdma.SendWR
			for i := range n {
				binary.LittleEndian.PutUint64(a.near()[i*8:], uint64(round*n+i))
				w := a.write(b, uint64(i), 0, 8)
				w.SGEs = []rdma.SGE{a.sge(int64(i*8), 8)}
				wrs = append(wrs, w)
			}
			a.post(t, wrs...)
			for i, wc := range ok(t, a.scq, n) {
				wantStatus(t, &wc, uint64(i), a.qp, rdma.WCSuccess)
			}
			if v := binary.LittleEndian.Uint64(b.far()); v != uint64(round*n+n-1) {
				t.Fatalf("round %d: write %d stayed", round, v)
			}
		}
	})
}

// testReadAfterWrite checks that a read returns the bytes of earlier writes of the same queue pair.
func testReadAfterWrite(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i := range 50 {
			binary.LittleEndian.PutUint64(a.near(), uint64(i)+1)
			w, r := a.write(b, 1, 0, 8), a.read(b, 2, 0, 8)
			w.Flags = 0
			r.SGEs = []rdma.SGE{a.sge(64, 8)}
			a.post(t, w, r)
			ok(t, a.scq, 1)
			if v := binary.LittleEndian.Uint64(a.near()[64:]); v != uint64(i)+1 {
				t.Fatalf("read %d after writing %d", v, i+1)
			}
		}
		// A fenced write sends the bytes that the read before it stored.
		h.fill(t, b.far())
		r, w := a.read(b, 1, 0, 4096), a.write(b, 2, 8192, 4096)
		w.SGEs = r.SGEs
		w.Flags |= rdma.SendFence
		a.post(t, r, w)
		ok(t, a.scq, 2)
		same(t, "fenced write", b.far()[8192:8192+4096], b.far()[:4096])
	})
}

// testWriteThenSend checks that earlier writes are visible when the receive of a send completes.
func testWriteThenSend(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i := range 20 {
			h.fill(t, a.near()[:65536])
			b.postRecv(t, rdma.RecvWR{WRID: uint64(i)})
			w, s := a.write(b, 1, 0, 65536), a.send(2, 0, 0)
			w.Flags = 0
			a.post(t, w, s)
			ok(t, b.rcq, 1)
			same(t, "write before a send", b.far()[:65536], a.near()[:65536])
			ok(t, a.scq, 1)
		}
	})
}

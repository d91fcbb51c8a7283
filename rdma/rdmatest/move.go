package rdmatest

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

var sizes = []uint32{1, 3, 4095, 4096, 4097, 65536, 300001}

func testWrite(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i, n := range sizes {
			off := int64(i * 13)
			before := bytes.Clone(b.far())
			a.post(t, a.write(b, uint64(i), off, n))
			wc := ok(t, a.scq, 1)[0]
			wantStatus(t, &wc, uint64(i), a.qp, rdma.WCSuccess)
			if wc.Opcode != rdma.WCRDMAWrite {
				t.Errorf("opcode %s", wc.Opcode)
			}
			end := off + int64(n)
			same(t, "write", b.far()[off:end], a.near()[off:end])
			same(t, "before it", b.far()[:off], before[:off])
			same(t, "behind it", b.far()[end:], before[end:])
			h.fill(t, a.near())
		}
		none(t, b.rcq)
	})
}

func testRead(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i, n := range sizes {
			off := int64(i * 13)
			before := bytes.Clone(a.near())
			a.post(t, a.read(b, uint64(i), off, n))
			wc := ok(t, a.scq, 1)[0]
			if wc.Opcode != rdma.WCRDMARead {
				t.Errorf("opcode %s", wc.Opcode)
			}
			end := off + int64(n)
			same(t, "read", a.near()[off:end], b.far()[off:end])
			same(t, "before it", a.near()[:off], before[:off])
			same(t, "behind it", a.near()[end:], before[end:])
			h.fill(t, b.far())
		}
	})
}

func testSend(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		for i, n := range sizes {
			b.postRecv(t, b.recv(100+uint64(i), 0, half))
			a.post(t, a.send(uint64(i), 0, n))
			if wc := ok(t, a.scq, 1)[0]; wc.Opcode != rdma.WCSend {
				t.Errorf("opcode %s", wc.Opcode)
			}
			wc := ok(t, b.rcq, 1)[0]
			wantStatus(t, &wc, 100+uint64(i), b.qp, rdma.WCSuccess)
			if wc.Opcode != rdma.WCRecv || wc.ByteLen != n || wc.Flags&rdma.WCWithImm != 0 {
				t.Errorf("completion %+v of %d bytes", wc, n)
			}
			same(t, "send", b.far()[:n], a.near()[:n])
			h.fill(t, a.near())
		}
		// Receives are used in the order of posting.
		b.postRecv(t, b.recv(1, 0, 4), b.recv(2, 4, 4), b.recv(3, 8, 4))
		a.post(t, a.send(1, 0, 4), a.send(2, 4, 4), a.send(3, 8, 4))
		for i, wc := range ok(t, b.rcq, 3) {
			wantStatus(t, &wc, uint64(i+1), b.qp, rdma.WCSuccess)
		}
		ok(t, a.scq, 3)
		same(t, "three sends", b.far()[:12], a.near()[:12])
	})
}

func testImmediate(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		// The receive of a write with immediate data needs no space.
		b.postRecv(t, rdma.RecvWR{WRID: 1}, b.recv(2, half-4096, 4096))
		w := a.write(b, 1, 0, 4096)
		w.Opcode, w.Imm = rdma.WRRDMAWriteWithImm, 0x01020304
		s := a.send(2, 4096, 4096)
		s.Opcode, s.Imm = rdma.WRSendWithImm, 0xfffefdfc
		a.post(t, w, s)
		ok(t, a.scq, 2)
		wcs := ok(t, b.rcq, 2)
		if wc := wcs[0]; wc.WRID != 1 || wc.Opcode != rdma.WCRecvRDMAWithImm || wc.Flags&rdma.WCWithImm == 0 || wc.Imm != w.Imm || wc.ByteLen != 4096 {
			t.Errorf("write with immediate data: %+v", wc)
		}
		if wc := wcs[1]; wc.WRID != 2 || wc.Opcode != rdma.WCRecv || wc.Flags&rdma.WCWithImm == 0 || wc.Imm != s.Imm || wc.ByteLen != 4096 {
			t.Errorf("send with immediate data: %+v", wc)
		}
		same(t, "write", b.far()[:4096], a.near()[:4096])
		same(t, "send", b.far()[half-4096:], a.near()[4096:8192])
	})
}

// testManySGEs checks that entries are used in order, including empty ones, and that the two sides
// may split the bytes differently.
func testManySGEs(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		parts := []rdma.SGE{a.sge(5000, 7), a.sge(0, 0), a.sge(100, 4096), a.sge(20000, 1)}
		want := bytes.Join([][]byte{a.near()[5000:5007], a.near()[100:4196], a.near()[20000:20001]}, nil)
		n := len(want)
		w := a.write(b, 1, 33, 0)
		w.SGEs = parts
		a.post(t, w)
		ok(t, a.scq, 1)
		same(t, "gathered write", b.far()[33:33+n], want)

		b.postRecv(t, rdma.RecvWR{WRID: 2, SGEs: []rdma.SGE{
			{Addr: b.farAddr(9000), Length: 2000, LKey: b.info.LKey},
			{Addr: b.farAddr(8000), Length: 8, LKey: b.info.LKey},
			{Addr: b.farAddr(30000), Length: 9000, LKey: b.info.LKey},
		}})
		s := a.send(2, 0, 0)
		s.SGEs = parts
		a.post(t, s)
		ok(t, a.scq, 1)
		if wc := ok(t, b.rcq, 1)[0]; int(wc.ByteLen) != n {
			t.Errorf("%d bytes of %d", wc.ByteLen, n)
		}
		got := bytes.Join([][]byte{b.far()[9000:11000], b.far()[8000:8008], b.far()[30000 : 30000+n-2008]}, nil)
		same(t, "scattered send", got, want)

		want = bytes.Clone(b.far()[50000 : 50000+n])
		r := a.read(b, 3, 50000, 0)
		r.SGEs = parts
		a.post(t, r)
		ok(t, a.scq, 1)
		got = bytes.Join([][]byte{a.near()[5000:5007], a.near()[100:4196], a.near()[20000:20001]}, nil)
		same(t, "scattered read", got, want)
	})
}

// testNoBytes checks that requests without bytes complete and access no memory.
func testNoBytes(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		before := bytes.Clone(b.mem.Bytes())
		for i, sges := range [][]rdma.SGE{nil, {a.sge(0, 0)}} {
			b.postRecv(t, b.recv(0, 0, 100), rdma.RecvWR{WRID: 1})
			for j, op := range []rdma.WROpcode{rdma.WRRDMAWrite, rdma.WRRDMARead, rdma.WRSend, rdma.WRRDMAWriteWithImm} {
				w := a.write(b, uint64(10*i+j), 7, 0)
				w.Opcode, w.SGEs, w.Imm = op, sges, 5
				a.post(t, w)
			}
			for j, wc := range ok(t, a.scq, 4) {
				wantStatus(t, &wc, uint64(10*i+j), a.qp, rdma.WCSuccess)
			}
			for j, wc := range ok(t, b.rcq, 2) {
				if wc.WRID != uint64(j) || wc.ByteLen != 0 {
					t.Errorf("completion %+v", wc)
				}
			}
		}
		same(t, "memory", b.mem.Bytes(), before)
	})
}

// testInline checks that PostSend copies an inline payload.
func testInline(t *testing.T, h *harness) {
	h.shapes(t, options{}, func(t *testing.T, a, b *end) {
		info, err := a.qp.Query()
		must(t, err)
		most := info.Caps.MaxInlineBytes
		if most < defaultCaps.MaxInlineBytes {
			t.Fatalf("the queue pair takes %d bytes inline of %d asked for", most, defaultCaps.MaxInlineBytes)
		}
		payload, want := make([]byte, most), make([]byte, most)
		h.fill(t, payload)
		copy(want, payload)
		w := a.write(b, 1, 64, 0)
		w.Flags |= rdma.SendInline
		w.SGEs, w.Inline = nil, payload
		a.post(t, w)
		clear(payload)
		ok(t, a.scq, 1)
		same(t, "inline write", b.far()[64:64+most], want)

		b.postRecv(t, b.recv(2, 4096, uint32(most)), b.recv(3, 0, 0))
		s := rdma.SendWR{WRID: 2, Opcode: rdma.WRSend, Flags: rdma.SendSignaled | rdma.SendInline, Inline: append(payload[:0], want[:5]...)}
		empty := rdma.SendWR{WRID: 3, Opcode: rdma.WRSend, Flags: rdma.SendSignaled | rdma.SendInline}
		a.post(t, s, empty)
		clear(payload)
		ok(t, a.scq, 2)
		if wcs := ok(t, b.rcq, 2); wcs[0].ByteLen != 5 || wcs[1].ByteLen != 0 {
			t.Errorf("completions %+v", wcs)
		}
		same(t, "inline send", b.far()[4096:4101], want[:5])
	})
}

package rdmatest

import (
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

func testRegister(t *testing.T, h *harness) {
	pd, err := h.devs[0].AllocPD()
	must(t, err)
	closeAtEnd(t, "protection domain", pd)
	r := memory(t, 64<<10)
	keys := make(map[uint32]bool)
	for _, e := range []mem.Extent{mem.All(r), mem.All(r), {Region: r, Off: 4096, Len: 8192}, {Region: r, Off: 5, Len: 1}, {Region: r, Off: 64<<10 - 3, Len: 3}} {
		m, err := pd.RegMR(e, rdma.MROptions{Access: access})
		must(t, err)
		i := m.Info()
		if i.Extent != e || i.Addr != uint64(e.CPU()) || i.Access != access {
			t.Errorf("info of %+v: %+v", e, i)
		}
		if keys[i.LKey] {
			t.Errorf("local key %#x is given twice", i.LKey)
		}
		keys[i.LKey] = true
		closeAtEnd(t, "memory region", m)
		if s := i.SGE(1, 2); s != (rdma.SGE{Addr: i.Addr + 1, Length: 2, LKey: i.LKey}) {
			t.Errorf("scatter-gather entry %+v", s)
		}
	}
}

func testRegisterRefuses(t *testing.T, h *harness) {
	pd, err := h.devs[0].AllocPD()
	must(t, err)
	closeAtEnd(t, "protection domain", pd)
	r := memory(t, 64<<10)
	elsewhere, last := uint64(8), ^uint64(0)&^4095
	for what, tt := range map[string]struct {
		e mem.Extent
		o rdma.MROptions
	}{
		"no region":                {mem.Extent{}, rdma.MROptions{Access: access}},
		"no bytes":                 {mem.Extent{Region: r, Off: 10}, rdma.MROptions{Access: access}},
		"beyond the end":           {mem.Extent{Region: r, Off: 1, Len: 64 << 10}, rdma.MROptions{Access: access}},
		"before the start":         {mem.Extent{Region: r, Off: -1, Len: 10}, rdma.MROptions{Access: access}},
		"remote write alone":       {mem.All(r), rdma.MROptions{Access: rdma.AccessRemoteWrite}},
		"remote atomic alone":      {mem.All(r), rdma.MROptions{Access: rdma.AccessRemoteAtomic}},
		"flags that are none":      {mem.All(r), rdma.MROptions{Access: access | 1<<14}},
		"an IOVA within a page":    {mem.All(r), rdma.MROptions{IOVA: &elsewhere}},
		"an IOVA too near the end": {mem.All(r), rdma.MROptions{IOVA: &last}},
	} {
		m, err := pd.RegMR(tt.e, tt.o)
		wantErr(t, what, err, errdefs.ErrInvalid)
		if err == nil {
			must(t, m.Close())
		}
	}
	_, err = pd.RegDMABufMR(mem.All(r), -1, 0, rdma.MROptions{Access: access})
	if err == nil {
		t.Error("a dma-buf without a descriptor was registered")
	}
}

// testIOVA checks local and remote access to memory at the IOVA of its registration, including
// zero.
func testIOVA(t *testing.T, h *harness) {
	for _, base := range []uint64{0, 7 << 44} {
		a, b := h.pair(t, options{})
		// An extent that begins within a page keeps its offset in the page.
		const off, n = 4096 + 8, 8192
		iova := base + off%4096
		o := rdma.MROptions{Access: access, IOVA: &iova}
		keys := make(map[*end]rdma.MRInfo)
		for _, e := range []*end{a, b} {
			m, err := e.pd.RegMR(mem.Extent{Region: e.mem, Off: off, Len: n}, o)
			must(t, err)
			closeAtEnd(t, "memory region", m)
			keys[e] = m.Info()
			if m.Info().Addr != iova {
				t.Errorf("memory is at %#x, not %#x", m.Info().Addr, iova)
			}
		}
		near, far := keys[a], keys[b]
		w := rdma.SendWR{
			WRID: 1, Opcode: rdma.WRRDMAWrite, Flags: rdma.SendSignaled, RKey: far.RKey, RemoteAddr: iova + 4096, SGEs: []rdma.SGE{near.SGE(0, 4000)},
		}
		a.post(t, w)
		ok(t, a.scq, 1)
		same(t, "write", b.mem.Bytes()[off+4096:][:4000], a.mem.Bytes()[off:][:4000])
		w.Opcode, w.RemoteAddr, w.SGEs = rdma.WRRDMARead, iova, []rdma.SGE{near.SGE(4096, 4000)}
		a.post(t, w)
		ok(t, a.scq, 1)
		same(t, "read", a.mem.Bytes()[off+4096:][:4000], b.mem.Bytes()[off:][:4000])
	}
}

// testRegisterLate checks transfers from memory registered after the queue pair was connected.
func testRegisterLate(t *testing.T, h *harness) {
	a, b := h.pair(t, options{})
	r := memory(t, 8192)
	h.fill(t, r.Bytes())
	m, err := a.pd.RegMR(mem.All(r), rdma.MROptions{})
	must(t, err)
	closeAtEnd(t, "memory region", m)
	i := m.Info()
	w := a.write(b, 1, 0, 0)
	w.SGEs = []rdma.SGE{i.SGE(0, 8192)}
	a.post(t, w)
	ok(t, a.scq, 1)
	same(t, "write", b.far()[:8192], r.Bytes())
}

// testDeregisterInFlight checks that Close of a region waits for requests in flight or fails them,
// and that the memory can be unmapped afterwards. A request may stay in flight on some devices. The
// test ends such requests by moving the queue pair to QPSErr.
func testDeregisterInFlight(t *testing.T, h *harness) {
	const n = 64 << 10
	for round := range 8 {
		a, b := h.pair(t, options{})
		buf, err := hostmem.Alloc(n)
		must(t, err)
		r, err := hostmem.Region(buf)
		must(t, err)
		m, err := a.pd.RegMR(mem.All(r), rdma.MROptions{Access: rdma.AccessLocalWrite})
		must(t, err)
		i := m.Info()
		var wrs []rdma.SendWR
		for k := range 16 {
			w := a.write(b, uint64(k), 0, n)
			if round%2 == 1 {
				w.Opcode = rdma.WRRDMARead
			}
			w.SGEs = []rdma.SGE{i.SGE(0, n)}
			wrs = append(wrs, w)
		}
		a.post(t, wrs...)
		if round >= 4 {
			await(t, a.scq, 1)
		}
		must(t, m.Close())
		must(t, hostmem.Free(buf))
		must(t, a.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
		rest := len(wrs)
		if round >= 4 {
			rest--
		}
		failed := false
		for _, wc := range await(t, a.scq, rest) {
			switch {
			case wc.Status == rdma.WCSuccess && !failed:
			case wc.Status == rdma.WCWRFlushErr && failed, wc.Err() != nil && !failed:
				failed = true
			default:
				t.Fatalf("completion %+v", wc)
			}
		}
	}
}

package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

const (
	// patience is the maximum time to wait for an expected event.
	patience = 30 * time.Second
	// glance is the time in which an unexpected event must not happen.
	glance = 5 * time.Millisecond
	// half is the length in bytes of each half of an end's memory.
	half = 512 << 10
	// access is the default access of an end's memory.
	access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead
)

// harness is the state of one test: its provider and devices.
type harness struct {
	c    Config
	prov rdma.Provider
	devs []rdma.Device // two devices, or the only one twice
	rng  *rand.ChaCha8
}

func newHarness(t *testing.T, c Config) *harness {
	t.Helper()
	h := &harness{c: c, prov: c.Open(t), rng: rand.NewChaCha8([32]byte{7})}
	closeAtEnd(t, "provider", h.prov)
	if h.c.Port == 0 {
		h.c.Port = 1
	}
	if len(h.c.Devices) == 0 {
		names, err := h.prov.Devices()
		must(t, err)
		h.c.Devices = names[:1]
	}
	for _, name := range h.c.Devices {
		d, err := h.prov.Open(name)
		must(t, err)
		closeAtEnd(t, name, d)
		h.devs = append(h.devs, d)
	}
	if len(h.devs) == 1 {
		h.devs = append(h.devs, h.devs[0])
	}
	return h
}

// closeAtEnd closes c at the end of the test. Objects created later are closed before it.
func closeAtEnd(t *testing.T, what string, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %s: %v", what, err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks that err wraps target.
func wantErr(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error %v, not %q", what, err, target)
	}
}

// memory returns host memory that is freed at the end of the test.
func memory(t *testing.T, n int64) *mem.Region {
	t.Helper()
	b, err := hostmem.Alloc(n)
	must(t, err)
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	must(t, err)
	return r
}

// options are the options of an end.
type options struct {
	caps      rdma.QPCaps
	srq       rdma.SRQ // belongs to pd
	pd        rdma.PD
	cq        rdma.CQ // completion queue of both queues
	signalAll bool
	access    rdma.Access // access of the memory
	connect   rdma.ConnectOptions
}

// end is one side of a connection.
type end struct {
	h        *harness
	dev      rdma.Device
	pd       rdma.PD
	scq, rcq rdma.CQ
	qp       rdma.QP
	// the near half for local use, then the far half for the peer
	mem  *mem.Region
	mr   rdma.MR
	info rdma.MRInfo
	o    options
}

var defaultCaps = rdma.QPCaps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineBytes: 64}

// end returns a queue pair of device i in QPSReset, with its own memory and queues.
func (h *harness) end(t *testing.T, i int, o options) *end {
	t.Helper()
	e := &end{h: h, dev: h.devs[i], pd: o.pd}
	var err error
	if e.pd == nil {
		e.pd, err = e.dev.AllocPD()
		must(t, err)
		closeAtEnd(t, "protection domain", e.pd)
	}
	if o.caps == (rdma.QPCaps{}) {
		o.caps = defaultCaps
	}
	if o.srq != nil {
		o.caps.MaxRecvWR = 0
	}
	if o.access == 0 {
		o.access = access
	}
	o.connect.Port, o.connect.GIDIndex = h.c.Port, h.c.GIDIndex
	if o.connect.RetryCount == 0 && os.Getenv(LossEnv) != "" {
		// Unlimited for soft-RoCE: a long message may lose more packets than the maximum number of
		// retries.
		o.connect.RetryCount = 7
	}
	e.o = o
	e.scq, e.rcq = o.cq, o.cq
	if o.cq == nil {
		e.scq, e.rcq = h.cq(t, i, 256, nil), h.cq(t, i, 256, nil)
	}
	e.mem = memory(t, 2*half)
	e.mr, err = e.pd.RegMR(mem.All(e.mem), rdma.MROptions{Access: o.access})
	must(t, err)
	closeAtEnd(t, "memory region", e.mr)
	e.info = e.mr.Info()
	e.qp, err = e.pd.CreateQP(rdma.QPOptions{SendCQ: e.scq, RecvCQ: e.rcq, SRQ: o.srq, Caps: o.caps, SignalAll: o.signalAll})
	must(t, err)
	closeAtEnd(t, "queue pair", e.qp)
	h.fill(t, e.mem.Bytes())
	return e
}

func (h *harness) cq(t *testing.T, i, entries int, c rdma.CompChannel) rdma.CQ {
	t.Helper()
	q, err := h.devs[i].CreateCQ(rdma.CQOptions{Entries: entries, Channel: c})
	must(t, err)
	closeAtEnd(t, "completion queue", q)
	return q
}

func (h *harness) fill(t *testing.T, b []byte) {
	t.Helper()
	_, err := h.rng.Read(b)
	must(t, err)
}

// connect connects two queue pairs in QPSReset. a and b may be the same.
func connect(t *testing.T, a, b *end) {
	t.Helper()
	a.o.connect.PSN, b.o.connect.PSN = 0x123456, 0x123456
	if a != b {
		b.o.connect.PSN = 0xfffffe // sequence numbers wrap around soon
	}
	toA, err := rdma.LocalEndpoint(a.dev, a.qp, a.o.connect)
	must(t, err)
	toB, err := rdma.LocalEndpoint(b.dev, b.qp, b.o.connect)
	must(t, err)
	must(t, rdma.Connect(a.dev, a.qp, a.o.connect, toB))
	if a != b {
		must(t, rdma.Connect(b.dev, b.qp, b.o.connect, toA))
	}
}

// pair returns two connected ends.
func (h *harness) pair(t *testing.T, o options) (a, b *end) {
	t.Helper()
	a, b = h.end(t, 0, o), h.end(t, 1, o)
	connect(t, a, b)
	return a, b
}

// reset moves e to QPSReset, also if requests are posted.
func (e *end) reset(t *testing.T) {
	t.Helper()
	if e.h.c.QuietResets {
		t.Log("QuietResets: move to ERR and poll the flushed requests before the reset")
		e.flush(t)
	}
	must(t, e.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}))
}

// flush moves e to QPSErr and polls completions until it finds its own last request of each queue.
// Afterwards the device no longer uses the queue pair.
func (e *end) flush(t *testing.T) {
	t.Helper()
	const last = 1 << 40
	e.postRecv(t, e.recv(last, 0, 8))
	must(t, e.qp.Modify(rdma.QPAttr{State: rdma.QPSErr}))
	for {
		_, err := e.qp.PostSend([]rdma.SendWR{e.send(last, 0, 8)})
		if err == nil {
			break
		}
		wantErr(t, "post to flush", err, errdefs.ErrBusy)
		await(t, e.scq, 1)
	}
	for _, q := range []rdma.CQ{e.scq, e.rcq} {
		for await(t, q, 1)[0].WRID != last {
			continue
		}
	}
}

// shapes runs test with two connected queue pairs, and with one that is connected to itself; then a
// and b are equal.
func (h *harness) shapes(t *testing.T, o options, test func(t *testing.T, a, b *end)) {
	t.Helper()
	t.Run("pair", func(t *testing.T) {
		a, b := h.pair(t, o)
		test(t, a, b)
	})
	t.Run("loopback", func(t *testing.T) {
		a := h.end(t, 0, o)
		connect(t, a, a)
		test(t, a, a)
	})
}

// near returns the half of an end's memory for local use. far returns the half that its peer
// accesses.
func (e *end) near() []byte { return e.mem.Bytes()[:half] }
func (e *end) far() []byte  { return e.mem.Bytes()[half:] }

// sge returns the entry for n bytes at off of the near half.
func (e *end) sge(off int64, n uint32) rdma.SGE { return e.info.SGE(off, n) }

// farAddr returns the address of offset off in the far half.
func (e *end) farAddr(off int64) uint64 { return e.info.Addr + half + uint64(off) }

// write returns a request of e that writes n bytes at off of its near half to the same offset of
// the peer's far half.
func (e *end) write(peer *end, wrid uint64, off int64, n uint32) rdma.SendWR {
	return rdma.SendWR{
		WRID: wrid, Opcode: rdma.WRRDMAWrite, Flags: rdma.SendSignaled, RKey: peer.info.RKey, RemoteAddr: peer.farAddr(off),
		SGEs: []rdma.SGE{e.sge(off, n)},
	}
}

// read returns a request that reads n bytes at off of the peer's far half into the same offset of
// e's near half.
func (e *end) read(peer *end, wrid uint64, off int64, n uint32) rdma.SendWR {
	w := e.write(peer, wrid, off, n)
	w.Opcode = rdma.WRRDMARead
	return w
}

// send returns a request that sends n bytes at off.
func (e *end) send(wrid uint64, off int64, n uint32) rdma.SendWR {
	return rdma.SendWR{WRID: wrid, Opcode: rdma.WRSend, Flags: rdma.SendSignaled, SGEs: []rdma.SGE{e.sge(off, n)}}
}

// recv returns a request for n bytes at off of the far half.
func (e *end) recv(wrid uint64, off int64, n uint32) rdma.RecvWR {
	return rdma.RecvWR{WRID: wrid, SGEs: []rdma.SGE{{Addr: e.farAddr(off), Length: n, LKey: e.info.LKey}}}
}

func (e *end) post(t *testing.T, wrs ...rdma.SendWR) {
	t.Helper()
	if n, err := e.qp.PostSend(wrs); err != nil || n != len(wrs) {
		t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func (e *end) postRecv(t *testing.T, wrs ...rdma.RecvWR) {
	t.Helper()
	if n, err := e.qp.PostRecv(wrs); err != nil || n != len(wrs) {
		t.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// await polls until it has n completions.
func await(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wcs := make([]rdma.WC, n)
	for got := 0; got < n; {
		k, err := q.Poll(wcs[got:])
		must(t, err)
		got += k
		if k == 0 {
			select {
			case <-time.After(20 * time.Microsecond):
			case <-ctx.Done():
				t.Fatalf("%d completions of %d: %+v", got, n, wcs[:got])
			}
		}
	}
	return wcs
}

// ok polls n completions and checks that they are successful.
func ok(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	wcs := await(t, q, n)
	for i := range wcs {
		must(t, wcs[i].Err())
	}
	return wcs
}

// none checks that q has no completion and gets none for a while.
func none(t *testing.T, q rdma.CQ) {
	t.Helper()
	var wcs [4]rdma.WC
	for end := time.Now().Add(glance); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n, err := q.Poll(wcs[:]); n != 0 || err != nil {
			t.Fatalf("%d completions that nobody asked for: %+v, %v", n, wcs[:n], err)
		}
	}
}

// same checks that the destination bytes got equal want.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: %d bytes, wrong from byte %d on", what, len(got), i)
			}
		}
	}
}

// wantState checks the state of a queue pair.
func wantState(t *testing.T, q rdma.QP, want rdma.QPState) {
	t.Helper()
	info, err := q.Query()
	must(t, err)
	if info.Attr.State != want {
		t.Errorf("queue pair is in %s, not %s", info.Attr.State, want)
	}
}

// wantStatus checks that a completion belongs to request wrid of qp and has one of the statuses.
func wantStatus(t *testing.T, wc *rdma.WC, wrid uint64, qp rdma.QP, statuses ...rdma.WCStatus) {
	t.Helper()
	okay := false
	for _, s := range statuses {
		okay = okay || wc.Status == s
	}
	if !okay || wc.WRID != wrid || wc.QPNum != qp.Num() {
		t.Errorf("completion of request %d of queue pair %d is %s; want request %d of %d, %v", wc.WRID, wc.QPNum, wc.Status, wrid, qp.Num(), statuses)
	}
	if wc.Status != rdma.WCSuccess {
		var e *rdma.WCError
		if err := wc.Err(); !errors.As(err, &e) || e.Status != wc.Status || e.VendorErr != wc.VendorErr || e.WRID != wrid {
			t.Errorf("the completion's error is %v", err)
		}
	}
}

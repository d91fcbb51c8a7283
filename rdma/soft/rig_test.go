package soft_test

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// rig is a loopback queue pair over one region.
type rig struct {
	p    *soft.Provider
	dev  *soft.Device
	pd   rdma.PD
	cq   rdma.CQ
	qp   rdma.QP
	mem  *mem.Region
	mr   rdma.MR
	info rdma.MRInfo
}

const rigDepth = 16

func newRig(t *testing.T, o soft.Options, c rdma.ConnectOptions) *rig {
	t.Helper()
	r := &rig{mem: region(t, 1<<20)}
	var err error
	r.p, err = soft.New(o)
	check(t, err)
	closing(t, r.p)
	d, err := r.p.Open("soft0")
	check(t, err)
	var ok bool
	if r.dev, ok = d.(*soft.Device); !ok {
		t.Fatalf("the device is a %T", d)
	}
	closing(t, r.dev)
	r.pd, err = d.AllocPD()
	check(t, err)
	closing(t, r.pd)
	r.mr, err = r.pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: access})
	check(t, err)
	closing(t, r.mr)
	r.info = r.mr.Info()
	r.cq, err = d.CreateCQ(rdma.CQOptions{Entries: 1024})
	check(t, err)
	closing(t, r.cq)
	r.qp = r.newQP(t, c)
	random(r.mem.Bytes(), 1)
	return r
}

func (r *rig) newQP(t *testing.T, c rdma.ConnectOptions) rdma.QP {
	t.Helper()
	return r.newQPOf(t, r.pd, rigDepth, c)
}

// newQPOf is newQP in a given protection domain, with a send queue of the given depth.
func (r *rig) newQPOf(t *testing.T, pd rdma.PD, depth int, c rdma.ConnectOptions) rdma.QP {
	t.Helper()
	q, err := pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendWR: depth, MaxSendSGE: 5, MaxRecvWR: rigDepth, MaxRecvSGE: 3}})
	check(t, err)
	closing(t, q)
	check(t, rdmatest.Loopback(r.dev, q, c))
	return q
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() { check(t, c.Close()) })
}

func random(b []byte, seed byte) {
	c := rand.NewChaCha8([32]byte{seed})
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, c.Uint64())
	}
}

// move returns a request that moves n bytes between two places of the region: from near to far, or
// from far to near for a read.
func (r *rig) move(op rdma.WROpcode, wrid uint64, far, near int64, n uint32) rdma.SendWR {
	return rdma.SendWR{
		WRID: wrid, Opcode: op, Flags: rdma.SendSignaled, RKey: r.info.RKey, RemoteAddr: r.info.Addr + uint64(far),
		SGEs: []rdma.SGE{r.info.SGE(near, n)},
	}
}

func (r *rig) write(wrid uint64, far, near int64, n uint32) rdma.SendWR {
	return r.move(rdma.WRRDMAWrite, wrid, far, near, n)
}

// from sets the local side of w to an offset in other memory.
func from(w rdma.SendWR, i rdma.MRInfo, off int64) rdma.SendWR {
	w.SGEs = []rdma.SGE{i.SGE(off, w.SGEs[0].Length)}
	return w
}

func post(t *testing.T, q rdma.QP, wrs ...rdma.SendWR) {
	t.Helper()
	if n, err := q.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// await polls n completions.
func await(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	wcs := make([]rdma.WC, n)
	for got, tries := 0, 0; got < n; tries++ {
		k, err := q.Poll(wcs[got:])
		check(t, err)
		if got += k; k == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if tries > 6_000_000 {
			t.Fatalf("%d completions of %d", got, n)
		}
	}
	return wcs
}

func good(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	wcs := await(t, q, n)
	for i := range wcs {
		check(t, wcs[i].Err())
	}
	return wcs
}

func idle(t *testing.T, q rdma.CQ) {
	t.Helper()
	time.Sleep(5 * time.Millisecond)
	var wcs [1]rdma.WC
	if n, err := q.Poll(wcs[:]); n != 0 || err != nil {
		t.Fatalf("completion %+v, %v", wcs[0], err)
	}
}

func state(t *testing.T, q rdma.QP) rdma.QPState {
	t.Helper()
	i, err := q.Query()
	check(t, err)
	return i.Attr.State
}

// slowMover delays transfers until they are released in order. It makes the copies of each in
// random order.
type slowMover struct {
	mu      sync.Mutex
	rng     *rand.Rand
	open    bool
	blocked []*soft.Transfer
	overlap bool  // a transfer had a destination twice, or a destination that is also a source
	err     error // result of transfers
}

func newSlowMover(seed uint64) *slowMover {
	return &slowMover{rng: rand.New(rand.NewPCG(seed, 1))}
}

func (m *slowMover) Reaches(*mem.Region) error { return nil }

func (m *slowMover) Move(t *soft.Transfer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocked = append(m.blocked, t)
	if m.open {
		m.release()
	}
}

// release ends the held transfers. The caller holds mu.
func (m *slowMover) release() {
	for _, t := range m.blocked {
		m.overlap = m.overlap || overlaps(t)
		if m.err == nil {
			dst, src := extents(t)
			for _, i := range m.rng.Perm(len(dst)) {
				copy(dst[i].Bytes(), src[i].Bytes())
			}
		}
		t.Done(m.err)
	}
	m.blocked = nil
}

// releaseAll releases the held transfers and all later ones.
func (m *slowMover) releaseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = true
	m.release()
}

// shut undoes releaseAll.
func (m *slowMover) shut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
}

// holds waits until the mover has n transfers.
func (m *slowMover) holds(t *testing.T, n int) {
	t.Helper()
	for range 6_000_000 {
		m.mu.Lock()
		have := len(m.blocked)
		m.mu.Unlock()
		if have >= n {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
	t.Fatalf("the mover never had %d transfers", n)
}

// extents returns the copies of a transfer as two lists.
func extents(t *soft.Transfer) (dst, src []mem.Extent) {
	for d, s := range t.Batch.Extents() {
		dst, src = append(dst, d), append(src, s)
	}
	return dst, src
}

func overlaps(t *soft.Transfer) bool {
	hit := func(a, b mem.Extent) bool {
		return a.Region == b.Region && a.Len > 0 && b.Len > 0 && a.Off < b.Off+b.Len && b.Off < a.Off+a.Len
	}
	dst, src := extents(t)
	for i := range dst {
		for j := range dst {
			if i != j && (hit(dst[i], dst[j]) || hit(dst[i], src[j])) {
				return true
			}
		}
	}
	return false
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func region(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	m, err := hostmem.Alloc(bytes)
	check(tb, err)
	tb.Cleanup(func() { check(tb, hostmem.Free(m)) })
	r, err := hostmem.Region(m)
	check(tb, err)
	return r
}

package ibv

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
)

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

// closing closes an object when the test ends.
func closing(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
}

// load returns the provider of this machine, or skips the test if it has no device.
func load(tb testing.TB) (*Provider, []string) {
	tb.Helper()
	p, err := Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "verbs", err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
	closing(tb, p)
	names, err := p.Devices()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "verbs", err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
	return p, names
}

// loopback is a queue pair of the first device, connected to itself, with registered memory.
type loopback struct {
	dev rdma.Device
	pd  rdma.PD
	cq  rdma.CQ
	qp  rdma.QP
	mr  rdma.MRInfo
	mem []byte
}

// newLoopback opens the first device. entries is the size of the completion queue, depth that of the send queue.
func newLoopback(tb testing.TB, entries, depth int) *loopback {
	tb.Helper()
	p, names := load(tb)
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	l := new(loopback)
	var err error
	l.dev, err = p.Open(names[0])
	must(err)
	closing(tb, l.dev)
	l.pd, err = l.dev.AllocPD()
	must(err)
	closing(tb, l.pd)
	l.mem, err = hostmem.Alloc(64 << 10)
	must(err)
	tb.Cleanup(func() { must(hostmem.Free(l.mem)) })
	region, err := hostmem.Region(l.mem)
	must(err)
	mr, err := l.pd.RegMR(mem.All(region), rdma.MROptions{Access: rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead})
	must(err)
	closing(tb, mr)
	l.mr = mr.Info()
	l.cq, err = l.dev.CreateCQ(rdma.CQOptions{Entries: entries})
	must(err)
	closing(tb, l.cq)
	l.qp, err = l.pd.CreateQP(rdma.QPOptions{SendCQ: l.cq, RecvCQ: l.cq, Caps: rdma.QPCaps{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 2, MaxRecvSGE: 1}})
	must(err)
	closing(tb, l.qp)
	must(rdmatest.Loopback(l.dev, l.qp, rdma.ConnectOptions{GIDIndex: gidIndex(tb, l.dev)}))
	return l
}

// gidIndex returns the index of a GID of the first port. It prefers a GID of an IPv4 address,
// because that is routed.
func gidIndex(tb testing.TB, d rdma.Device) int {
	tb.Helper()
	port, err := d.QueryPort(1)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range port.GIDs {
		g, err := d.QueryGID(1, i)
		if err == nil && g.Type == rdma.GIDTypeRoCEv2 && netip.AddrFrom16(g.GID).Is4In6() {
			return i
		}
	}
	return 0
}

// devicesEnv names the environment variable with devices that reach each other, separated by
// commas.
const devicesEnv = "KVLANE_VERBS_DEVICES"

// soft reports whether the device is a soft-RoCE device, which differs in some points.
func soft(device string) bool { return strings.HasPrefix(device, "rxe") }

func TestConformance(t *testing.T) {
	p, names := load(t)
	names = names[:1]
	if list := os.Getenv(devicesEnv); list != "" {
		names = strings.Split(list, ",")
	}
	d, err := p.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	gid := gidIndex(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rdmatest.Lossy(t)
	rdmatest.Run(t, rdmatest.Config{
		Open: func(t *testing.T) rdma.Provider {
			p, err := Load()
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		Devices: names, GIDIndex: gid, LateReceivesStay: soft(names[0]), QuietResets: soft(names[0]),
	})
}

// write returns a request that copies n bytes within l's memory.
func (l *loopback) write(id uint64, to, from int64, n uint32, flags rdma.SendFlags) rdma.SendWR {
	return rdma.SendWR{
		WRID: id, Opcode: rdma.WRRDMAWrite, Flags: flags, RKey: l.mr.RKey, RemoteAddr: l.mr.Addr + uint64(to),
		SGEs: []rdma.SGE{l.mr.SGE(from, n)},
	}
}

// poll returns the next n completions.
func (l *loopback) poll(tb testing.TB, n int) []rdma.WC {
	tb.Helper()
	wcs := make([]rdma.WC, n)
	deadline := time.Now().Add(patience)
	for got := 0; got < n; {
		k, err := l.cq.Poll(wcs[got:])
		if err != nil || time.Now().After(deadline) {
			tb.Fatalf("%d of %d completions: %v", got+k, n, err)
		}
		got += k
	}
	return wcs
}

func TestWriteReachesMemory(t *testing.T) {
	l := newLoopback(t, 16, 16)
	copy(l.mem, "from here")
	if n, err := l.qp.PostSend([]rdma.SendWR{l.write(7, 4096, 0, 9, rdma.SendSignaled)}); n != 1 || err != nil {
		t.Fatalf("posted %d: %v", n, err)
	}
	wc := l.poll(t, 1)[0]
	if wc.Err() != nil || wc.WRID != 7 || wc.Opcode != rdma.WCRDMAWrite {
		t.Errorf("completion %+v", wc)
	}
	if !bytes.Equal(l.mem[4096:4105], []byte("from here")) {
		t.Errorf("memory holds %q", l.mem[4096:4105])
	}
}

// Soft-RoCE does not support dma-bufs. The error must report that, and differ from the error of a
// wrong call.
func TestDMABufIsRefusedWithTheReason(t *testing.T) {
	l := newLoopback(t, 1, 1)
	if !soft(l.dev.Info().Name) {
		t.Skip("a device of another kind may take dma-bufs")
	}
	// Addresses that the kernel cannot pin.
	absent, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(absent); err != nil {
			t.Error(err)
		}
	}()
	region, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 4096, Dev: mem.DevAddr(hostmem.Addr(absent))})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.pd.RegDMABufMR(mem.All(region), 0, 0, rdma.MROptions{Access: rdma.AccessLocalWrite})
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "cannot register dma-bufs") {
		t.Errorf("error %v, want ErrNotSupported and why", err)
	}
	_, err = l.pd.RegMR(mem.All(region), rdma.MROptions{Access: rdma.AccessLocalWrite})
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "nvidia_peermem") {
		t.Errorf("error %v, want ErrNotSupported naming the module", err)
	}
}

// With soft-RoCE the test can cause the event of an overflowed completion queue.
func TestEventOfAnOverflownQueue(t *testing.T) {
	l := newLoopback(t, 1, 64)
	if !soft(l.dev.Info().Name) {
		t.Skip("a device of another kind may lose its port with the queue")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wrs []rdma.SendWR
	for i := range uint64(l.cq.Entries() + 8) {
		wrs = append(wrs, l.write(i, 0, 4096, 8, rdma.SendSignaled))
	}
	for len(wrs) > 0 {
		n, err := l.qp.PostSend(wrs[:min(len(wrs), 32)])
		if err != nil && !errors.Is(err, errdefs.ErrBusy) {
			t.Fatal(err)
		}
		wrs = wrs[n:]
	}
	for {
		e, err := l.dev.WaitEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("event %s", e.Type)
		if e.Type == rdma.EventCQErr {
			if e.CQ != l.cq {
				t.Errorf("the event is of queue %v", e.CQ)
			}
			return
		}
	}
}

func TestPostAndPollAllocateNothing(t *testing.T) {
	l := newLoopback(t, 64, 64)
	wrs := make([]rdma.SendWR, 32)
	for i := range wrs {
		wrs[i] = l.write(uint64(i), 4096, 0, 8, 0)
	}
	wrs[31].Flags = rdma.SendSignaled
	wcs := make([]rdma.WC, 8)
	allocs := testing.AllocsPerRun(50, func() {
		if n, err := l.qp.PostSend(wrs); n != len(wrs) || err != nil {
			t.Fatalf("posted %d: %v", n, err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = l.cq.Poll(wcs); err != nil {
				t.Fatal(err)
			}
		}
		if err := wcs[0].Err(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs >= 1 {
		t.Errorf("%v allocations for a chain", allocs)
	}
}

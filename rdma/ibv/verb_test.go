package ibv

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
)

func TestMissingDeviceIsReported(t *testing.T) {
	l, api := newLibrary(t)
	p := newProvider(api)
	closing(t, p)
	for _, c := range []struct {
		set  func()
		want string
		is   error
	}{
		{func() { l.devices = nil }, "no RDMA device", errdefs.ErrNotSupported},
		{func() { l.openErr = unix.ENOSYS }, "ib_uverbs", errdefs.ErrNotSupported},
		{func() { l.openErr = unix.EPERM }, "EPERM", errdefs.ErrNotSupported},
		{func() { l.openErr = unix.ENOMEM }, "ENOMEM", errdefs.ErrNoMemory},
	} {
		c.set()
		_, err := p.Devices()
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("list: %v, want %v with %q", err, c.is, c.want)
		}
		if _, err := p.Open("fake0"); !errors.Is(err, c.is) {
			t.Errorf("open: %v, want %v", err, c.is)
		}
	}
}

func TestUnknownDeviceNamesThoseThatAre(t *testing.T) {
	_, r := opened(t)
	_, err := r.p.Open("mlx5_0")
	if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "fake0") {
		t.Errorf("error %v, want ErrNotFound naming fake0", err)
	}
}

func TestInfo(t *testing.T) {
	_, r := opened(t)
	info := r.dev.Info()
	if info.Name != "fake0" || info.Provider != "ibv" || info.Firmware != "1.2.3" || info.GUID != 0x0102030405060708 || info.Ports != 1 {
		t.Errorf("device %+v", info)
	}
	port, err := r.dev.QueryPort(1)
	if err != nil || port.State != rdma.PortActive || port.ActiveMTU != rdma.MTU1024 || port.RateGbps != 100 || port.LinkLayer != rdma.LinkLayerEthernet {
		t.Errorf("port %+v, %v", port, err)
	}
	for _, n := range []int{0, 2, -1, 257} {
		if _, err := r.dev.QueryPort(n); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("port %d: %v, want ErrInvalid", n, err)
		}
	}
	if g, err := r.dev.QueryGID(1, 1); err != nil || g.Type != rdma.GIDTypeRoCEv2 || g.GID.String() != "::ffff:10.0.0.0" {
		t.Errorf("GID %+v, %v", g, err)
	}
	for index, want := range map[int]error{2: errdefs.ErrNotFound, 3: errdefs.ErrNotFound, 4: errdefs.ErrInvalid, -1: errdefs.ErrInvalid} {
		if _, err := r.dev.QueryGID(1, index); !errors.Is(err, want) {
			t.Errorf("GID %d: %v, want %v", index, err, want)
		}
	}
}

func deviceRegion(t *testing.T) *mem.Region {
	t.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 8192, Dev: 0x7f0000000000})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRegisterMemory(t *testing.T) {
	l, r := opened(t)
	m := r.mr.Info()
	if m.Addr != uint64(r.memory.CPU()) || m.LKey != 0x10 || m.RKey != 0x20 || l.access != 1|1<<20 || l.iova != m.Addr {
		t.Errorf("region %+v with access %#x", m, l.access)
	}
	low, err := r.pd.RegMR(mem.All(r.memory), rdma.MROptions{IOVA: new(uint64)})
	if err != nil {
		t.Fatal(err)
	}
	if l.iova != 0 || low.Info().Addr != 0 {
		t.Errorf("registered at %#x, and known at %#x", l.iova, low.Info().Addr)
	}
	if err := low.Close(); err != nil {
		t.Error(err)
	}
	gpu := deviceRegion(t)
	d, err := r.pd.RegDMABufMR(mem.All(gpu), 9, 4096, rdma.MROptions{Access: rdma.AccessLocalWrite})
	if err != nil {
		t.Fatal(err)
	}
	if d.Info().Addr != uint64(gpu.Dev()) {
		t.Errorf("device memory at %#x", d.Info().Addr)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestHostPinnedRegistersDeviceAddress checks that the library pins the CPU mapping and uses the
// device address as the IOVA.
func TestHostPinnedRegistersDeviceAddress(t *testing.T) {
	l, r := opened(t)
	pinned, err := mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHostPinned, Len: r.memory.Len(), CPU: r.memory.CPU(), Dev: 0x7f0000000000, Bytes: r.memory.Bytes(),
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.pd.RegMR(mem.All(pinned).Sub(64, 128), rdma.MROptions{})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, m)
	if l.addr != uint64(pinned.CPU())+64 || l.iova != 0x7f0000000040 || m.Info().Addr != l.iova {
		t.Errorf("registered %#x at %#x, known at %#x", l.addr, l.iova, m.Info().Addr)
	}
}

func TestFailedRegistrationReportsTheReason(t *testing.T) {
	l, r := opened(t)
	gpu := deviceRegion(t)
	host := mem.All(r.memory)
	reg := func(e mem.Extent, a rdma.Access) func() error {
		return func() error { _, err := r.pd.RegMR(e, rdma.MROptions{Access: a}); return err }
	}
	elsewhere := func() error { _, err := r.pd.RegMR(host, rdma.MROptions{IOVA: new(uint64)}); return err }
	dmabuf := func() error {
		_, err := r.pd.RegDMABufMR(mem.All(gpu), 9, 4096, rdma.MROptions{Access: rdma.AccessLocalWrite})
		return err
	}
	hostBuf := func(e mem.Extent) func() error {
		return func() error { _, err := r.pd.RegDMABufMR(e, 9, 4096, rdma.MROptions{}); return err }
	}
	pinned, err := mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHostPinned, Len: r.memory.Len(), CPU: r.memory.CPU(), Dev: 0x7f0000000000, Bytes: r.memory.Bytes(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		errno unix.Errno
		call  func() error
		is    error
		want  string
	}{
		{"an empty part", 0, reg(host.Sub(0, 0), 0), errdefs.ErrInvalid, "an empty part"},
		{"outside", 0, reg(mem.Extent{Region: r.memory, Off: 1, Len: 4096}, 0), errdefs.ErrInvalid, ""},
		{"remote write without local write", 0, reg(host, rdma.AccessRemoteWrite), errdefs.ErrInvalid, "LOCAL_WRITE"},
		{"no pages left to lock", unix.ENOMEM, reg(host, 0), errdefs.ErrNoMemory, "ENOMEM"},
		{"host memory refused", unix.EFAULT, reg(host, 0), errdefs.ErrInvalid, "EFAULT"},
		{"device memory without a peer module", unix.EFAULT, reg(mem.All(gpu), 0), errdefs.ErrNotSupported, "nvidia_peermem"},
		{"pinned memory refused at its device address", unix.EINVAL, reg(mem.All(pinned), 0), errdefs.ErrNotSupported, "the driver cannot register host-pinned memory at its device address"},
		{"IOVA refused", unix.EINVAL, elsewhere, errdefs.ErrInvalid, "iova=0x0 access=none): EINVAL (22): the driver may require"},
		{"no IOVAs", unix.EOPNOTSUPP, elsewhere, errdefs.ErrNotSupported, "the driver may require"},
		{"no dma-bufs", unix.EOPNOTSUPP, dmabuf, errdefs.ErrNotSupported, "cannot register dma-bufs"},
		{"dma-buf refused", unix.EINVAL, dmabuf, errdefs.ErrInvalid, "fd=9 offset=4096 bytes=8192"},
		{"host memory as a dma-buf", 0, hostBuf(host), errdefs.ErrInvalid, "not device memory"},
		{"pinned memory as a dma-buf", 0, hostBuf(mem.All(pinned)), errdefs.ErrInvalid, "not device memory"},
		{"no descriptor", 0, func() error { _, err := r.pd.RegDMABufMR(mem.All(gpu), -1, 0, rdma.MROptions{}); return err }, errdefs.ErrInvalid, "fd=-1"},
	} {
		l.regErr = c.errno
		if err := c.call(); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.is, c.want)
		}
	}
	l.regErr = 0
	api := *r.p.api
	api.RegDMABufMR = nil
	r.p.api = &api
	dev, err := r.p.Open("fake0")
	if err != nil {
		t.Fatal(err)
	}
	closing(t, dev)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	closing(t, pd)
	if _, err := pd.RegDMABufMR(mem.All(gpu), 9, 0, rdma.MROptions{}); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "rdma-core 34") {
		t.Errorf("a library without dma-bufs: %v", err)
	}
}

func TestCapacitiesAreChecked(t *testing.T) {
	_, r := opened(t)
	for name, err := range map[string]error{
		"no entries":     second(r.dev.CreateCQ(rdma.CQOptions{})),
		"many entries":   second(r.dev.CreateCQ(rdma.CQOptions{Entries: 257})),
		"vector":         second(r.dev.CreateCQ(rdma.CQOptions{Entries: 1, Vector: 2})),
		"sends":          second(r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendWR: 65}})),
		"receives":       second(r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, SRQ: r.srq, Caps: rdma.QPCaps{MaxRecvWR: 1}})),
		"send entries":   second(r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendSGE: 5}})),
		"inline":         second(r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxInlineBytes: -1}})),
		"shared":         second(r.pd.CreateSRQ(rdma.SRQCaps{})),
		"shared entries": second(r.pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1, MaxSGE: 5})),
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if n := r.cq.Entries(); n != 9 {
		t.Errorf("the queue has %d entries, want the requested number, one less than the library created", n)
	}
	info, err := r.qp.Query()
	if err != nil || info.Caps.MaxSendWR != 6 || info.Attr.State != rdma.QPSErr {
		t.Errorf("queue pair %+v, %v", info, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestStepsOfAConnection(t *testing.T) {
	l, r := opened(t)
	o := rdma.ConnectOptions{GIDIndex: 1, PSN: 0x123456, ServiceLevel: 3}
	if err := rdmatest.Loopback(r.dev, r.qp, o); err != nil {
		t.Fatal(err)
	}
	// The attribute masks of ibv_modify_qp(3) for reliable connections, as numbers from the header.
	if want := []int32{1 | 16 | 32 | 8, 1 | 128 | 256 | 1<<20 | 4096 | 1<<17 | 1<<15, 1 | 1<<16 | 8192 | 1024 | 2048 | 512}; !slices.Equal(l.modified, want) {
		t.Errorf("masks %v, want %v", l.modified, want)
	}
	info, err := r.qp.Query()
	if err != nil {
		t.Fatal(err)
	}
	if a := info.Attr; a.Port != 1 || a.SQPSN != 0x123456 || a.RQPSN != 0x123456 || a.DestQPNum != r.qp.Num() || a.PathMTU != rdma.MTU1024 || a.Timeout != 14 {
		t.Errorf("attributes %+v", a)
	}
	if err := r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}); err != nil {
		t.Fatal(err)
	}
	info, err = r.qp.Query()
	if err != nil || info.Attr != (rdma.QPAttr{State: rdma.QPSErr}) {
		t.Errorf("attributes after a reset %+v, %v", info.Attr, err)
	}
}

func TestAddress(t *testing.T) {
	a := rdma.Address{GID: rdma.GID{1}, GIDIndex: 5, LID: 6, HopLimit: 7, TrafficClass: 8, ServiceLevel: 9}
	want := ibverbs.AHAttr{DGID: [16]byte{1}, SGIDIndex: 5, HopLimit: 7, TrafficClass: 8, DLID: 6, SL: 9, IsGlobal: 1, Port: 2}
	if got := addressOf(&a, 2); got != want {
		t.Errorf("address %+v, want %+v", got, want)
	}
	a.GID = rdma.GID{}
	if got := addressOf(&a, 2); got != (ibverbs.AHAttr{DLID: 6, SL: 9, Port: 2}) {
		t.Errorf("address within a subnet %+v", got)
	}
}

func TestWrongStepsAndAttributes(t *testing.T) {
	l, r := opened(t)
	valid := rdma.QPAttr{Port: 1, PathMTU: rdma.MTU1024}
	refused := func(name string, state rdma.QPState, change func(*rdma.QPAttr)) {
		t.Helper()
		a := valid
		a.State = state
		if change != nil {
			change(&a)
		}
		before := len(l.modified)
		if err := r.qp.Modify(a); !errors.Is(err, errdefs.ErrInvalid) || len(l.modified) != before {
			t.Errorf("%s: %v, want ErrInvalid and no call", name, err)
		}
	}
	take := func(state rdma.QPState) {
		t.Helper()
		a := valid
		a.State = state
		if err := r.qp.Modify(a); err != nil {
			t.Fatal(err)
		}
	}
	refused("reset to RTR", rdma.QPSRTR, nil)
	refused("reset to RTS", rdma.QPSRTS, nil)
	refused("reset to error", rdma.QPSErr, nil)
	refused("reset to nowhere", rdma.QPSUnknown, nil)
	refused("port", rdma.QPSInit, func(a *rdma.QPAttr) { a.Port = 2 })
	refused("key index", rdma.QPSInit, func(a *rdma.QPAttr) { a.PKeyIndex = -1 })
	take(rdma.QPSInit)
	refused("init to init", rdma.QPSInit, nil)
	refused("MTU", rdma.QPSRTR, func(a *rdma.QPAttr) { a.PathMTU = 0 })
	refused("queue pair number", rdma.QPSRTR, func(a *rdma.QPAttr) { a.DestQPNum = 1 << 24 })
	refused("sequence number", rdma.QPSRTR, func(a *rdma.QPAttr) { a.RQPSN = 1 << 24 })
	refused("timer", rdma.QPSRTR, func(a *rdma.QPAttr) { a.MinRNRTimer = 32 })
	refused("GID index", rdma.QPSRTR, func(a *rdma.QPAttr) { a.Address.GIDIndex = 256 })
	take(rdma.QPSRTR)
	refused("own sequence number", rdma.QPSRTS, func(a *rdma.QPAttr) { a.SQPSN = 1 << 24 })
	refused("timeout", rdma.QPSRTS, func(a *rdma.QPAttr) { a.Timeout = 32 })
	refused("retries", rdma.QPSRTS, func(a *rdma.QPAttr) { a.RetryCount = 8 })
	refused("receiver's retries", rdma.QPSRTS, func(a *rdma.QPAttr) { a.RNRRetry = 8 })
	take(rdma.QPSRTS)
	refused("RTS to RTS", rdma.QPSRTS, nil)
	take(rdma.QPSErr)
	take(rdma.QPSReset)
	take(rdma.QPSInit)
}

func TestPostChecksRequests(t *testing.T) {
	_, r := opened(t)
	good := rdma.SendWR{Opcode: rdma.WRSend}
	if n, err := r.qp.PostSend([]rdma.SendWR{good}); n != 0 || !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "RESET") {
		t.Errorf("in reset: posted %d, %v", n, err)
	}
	if n, err := r.qp.PostRecv(make([]rdma.RecvWR, 1)); n != 0 || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("receive in reset: posted %d, %v", n, err)
	}
	if err := rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]rdma.SendWR{
		"operation":        {Opcode: rdma.WRRDMARead + 1},
		"entries":          {Opcode: rdma.WRSend, SGEs: make([]rdma.SGE, 4)},
		"entries to read":  {Opcode: rdma.WRRDMARead, SGEs: make([]rdma.SGE, 3)},
		"read inline":      {Opcode: rdma.WRRDMARead, Flags: rdma.SendInline},
		"inline too long":  {Opcode: rdma.WRSend, Flags: rdma.SendInline, Inline: make([]byte, 17)},
		"inline with both": {Opcode: rdma.WRSend, Flags: rdma.SendInline, SGEs: make([]rdma.SGE, 1)},
		"inline unasked":   {Opcode: rdma.WRSend, Inline: make([]byte, 1)},
	} {
		bad.WRID = 0xbad
		if n, err := r.qp.PostSend([]rdma.SendWR{good, bad, good}); n != 1 || !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "0xbad") {
			t.Errorf("%s: posted %d, %v; want 1, ErrInvalid", name, n, err)
		}
	}
	// The library created two more entries than requested.
	if n, err := r.qp.PostSend(make([]rdma.SendWR, 7)); n != 6 || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("post 7 sends: posted %d, %v; want 6, ErrBusy", n, err)
	}
	if n, err := r.qp.PostRecv([]rdma.RecvWR{{}, {SGEs: make([]rdma.SGE, 2)}}); n != 1 || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("receive: posted %d, %v; want 1, ErrInvalid", n, err)
	}
	if n, err := r.qp.PostRecv(make([]rdma.RecvWR, 5)); n != 4 || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("post 5 receives: posted %d, %v; want 4, ErrBusy", n, err)
	}
	if n, err := r.sharing.PostRecv(make([]rdma.RecvWR, 1)); n != 0 || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("receive with a shared queue: posted %d, %v", n, err)
	}
	if n, err := r.qp.PostSend(nil); n != 0 || err != nil {
		t.Errorf("post no sends: posted %d, %v", n, err)
	}
}

func TestFullQueueIsBusy(t *testing.T) {
	_, r := opened(t)
	if err := rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	api := *r.p.api
	api.PostSend = func(ibverbs.QP, *ibverbs.SendChain) (int, unix.Errno) { return 2, unix.ENOMEM }
	dev, ok := r.dev.(*Device)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	dev.api = &api
	n, err := r.qp.PostSend([]rdma.SendWR{{}, {}, {WRID: 0x33, Opcode: rdma.WRSend}})
	if n != 2 || !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "wr_id=0x33 opcode=SEND") {
		t.Errorf("posted %d, %v; want 2, ErrBusy of the third", n, err)
	}
	dev.api = r.p.api
}

// BenchmarkPostSend measures a request in a chain of 62 up to the library, which does nothing.
func BenchmarkPostSend(b *testing.B) {
	const depth = 62
	_, r := opened(b)
	big, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendWR: depth, MaxSendSGE: 1}})
	if err != nil {
		b.Fatal(err)
	}
	defer big.Close()
	if err := rdmatest.Loopback(r.dev, big, rdma.ConnectOptions{}); err != nil {
		b.Fatal(err)
	}
	wrs := make([]rdma.SendWR, depth)
	for i := range wrs {
		wrs[i] = rdma.SendWR{WRID: uint64(i), Opcode: rdma.WRRDMAWrite, SGEs: []rdma.SGE{{Length: 4096}}}
	}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := big.PostSend(wrs); n != depth || err != nil {
			b.Fatalf("posted %d, %v", n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/request")
}

func TestPollConverts(t *testing.T) {
	l, r := opened(t)
	l.wcs = []ibverbs.WC{
		{WRID: 1, Opcode: 1 << 7, ByteLen: 5, Imm: 0x04030201, QPNum: 9, Flags: 2},
		{WRID: 2, Status: 10, VendorErr: 0x88, Imm: 7},
	}
	for i := range 20 { // needs more than one fetch
		l.wcs = append(l.wcs, ibverbs.WC{WRID: uint64(i + 3)})
	}
	wcs := make([]rdma.WC, 30)
	n, err := r.cq.Poll(wcs)
	if n != 22 || err != nil {
		t.Fatalf("%d completions, %v", n, err)
	}
	if want := (rdma.WC{WRID: 1, Opcode: rdma.WCRecv, ByteLen: 5, Imm: 0x01020304, QPNum: 9, Flags: rdma.WCWithImm}); wcs[0] != want {
		t.Errorf("completion %+v, want %+v", wcs[0], want)
	}
	var failure *rdma.WCError
	if err := wcs[1].Err(); !errors.As(err, &failure) || failure.Status != rdma.WCRemAccessErr || failure.VendorErr != 0x88 {
		t.Errorf("failure %v", err)
	}
	for i := range n {
		if wcs[i].WRID != uint64(i+1) {
			t.Errorf("completion %d is of request %d", i, wcs[i].WRID)
		}
	}
	if n, err := r.cq.Poll(wcs); n != 0 || err != nil {
		t.Errorf("empty queue: %d, %v", n, err)
	}
}

// TestDefectConnectionIsTriedAgainInSilence checks that connection retries are counted for all
// users of the device, whether or not the last one succeeds.
func TestDefectConnectionIsTriedAgainInSilence(t *testing.T) {
	l, r := opened(t)
	want := int64(0)
	for _, lost := range []int{0, 2, 4} {
		l.unresolved = lost
		err := rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{GIDIndex: 1})
		if (err != nil) != (lost == resolveTries) {
			t.Errorf("%d packets lost: %v", lost, err)
		}
		want += int64(min(lost, resolveTries-1))
		if got, other := r.p.ConnectRetries("fake0"), r.p.ConnectRetries("fake1"); got != want || other != 0 {
			t.Errorf("%d packets lost: %d retries, want %d, and %d of another device", lost, got, want, other)
		}
		if err := r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}); err != nil {
			t.Error(err)
		}
	}
}

// TestDefectLostPacketFailsAConnection checks lost packets during a connection. The kernel requests
// the peer's link address once and waits a second. If the packet is lost, the step is retried a
// limited number of times, and then the error is that of the device.
func TestDefectLostPacketFailsAConnection(t *testing.T) {
	for _, lost := range []int{1, 3, 4} {
		l, r := opened(t)
		l.unresolved = lost
		err := rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{GIDIndex: 1})
		if failed := lost == 4; errors.Is(err, unix.ETIMEDOUT) != failed || !failed && (err != nil || len(l.modified) != 3) {
			t.Errorf("%d packets lost: %v, %d steps", lost, err, len(l.modified))
		}
		if err := r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}); err != nil {
			t.Error(err)
		}
	}
}

package soft_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestUnsignaledRequestsFillTheQueue checks that a queue without signaled requests frees no places.
func TestUnsignaledRequestsFillTheQueue(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	w := r.write(1, 0, 4096, 8)
	w.Flags = 0
	for range rigDepth {
		post(t, r.qp, w)
	}
	time.Sleep(5 * time.Millisecond)
	if n, err := r.qp.PostSend([]rdma.SendWR{w}); n != 0 || !errors.Is(err, errdefs.ErrBusy) {
		t.Fatalf("posted %d on a full queue: %v", n, err)
	}
	check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}))
	check(t, rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{}))
	w.Flags = rdma.SendSignaled
	post(t, r.qp, w)
	good(t, r.cq, 1)
}

// TestPlacesAreFreeWhenPolled checks that a place becomes free when its completion is polled, not
// when the request is done.
func TestPlacesAreFreeWhenPolled(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	w := r.write(1, 0, 4096, 8)
	for i := range rigDepth {
		w.Flags = 0
		if i == 3 || i == rigDepth-1 {
			w.Flags = rdma.SendSignaled
		}
		post(t, r.qp, w)
	}
	time.Sleep(5 * time.Millisecond)
	for _, free := range []int{0, 4, rigDepth - 4} {
		if free > 0 {
			good(t, r.cq, 1)
		}
		w.Flags = 0
		wrs := make([]rdma.SendWR, free+1)
		for i := range wrs {
			wrs[i] = w
		}
		n, err := r.qp.PostSend(wrs)
		if n != free || !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("posted %d where %d places are free: %v", n, free, err)
		}
	}
}

func TestLongMessages(t *testing.T) {
	r := newRig(t, soft.Options{Devices: []soft.DeviceOptions{{Ports: []soft.PortOptions{{MaxMessageBytes: 4096}}}}}, rdma.ConnectOptions{})
	post(t, r.qp, r.write(1, 0, 8192, 4096))
	good(t, r.cq, 1)
	w := r.write(2, 0, 8192, 4096)
	w.SGEs = append(w.SGEs, r.info.SGE(0, 1))
	post(t, r.qp, w)
	if wc := await(t, r.cq, 1)[0]; wc.Status != rdma.WCLocLenErr || !errors.Is(wc.Err(), errdefs.ErrInvalid) {
		t.Errorf("a message that is too long: %+v", wc)
	}
}

// TestVeryLongMessage checks that lengths above 32 bits are too long, not short.
func TestVeryLongMessage(t *testing.T) {
	r := newRig(t, soft.Options{Mover: rdmatest.NullMover{}}, rdma.ConnectOptions{})
	w := r.write(1, 0, 0, 1<<31)
	w.SGEs = append(w.SGEs, r.info.SGE(0, 1<<31), r.info.SGE(0, 8))
	post(t, r.qp, w)
	if wc := await(t, r.cq, 1)[0]; wc.Status != rdma.WCLocLenErr {
		t.Errorf("%+v", wc)
	}
}

// TestNoBytesNoKey checks that the key of an empty request is ignored (InfiniBand specification,
// C9-88).
func TestNoBytesNoKey(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	for _, op := range []rdma.WROpcode{rdma.WRRDMAWrite, rdma.WRRDMARead} {
		post(t, r.qp, rdma.SendWR{Opcode: op, Flags: rdma.SendSignaled, RKey: 0xdead, SGEs: []rdma.SGE{{LKey: 0xdead}}})
	}
	good(t, r.cq, 2)
}

// TestKeysChange checks that newly registered memory does not get the keys of deregistered memory.
func TestKeysChange(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	seen := make(map[uint32]bool)
	for range 100 {
		m, err := r.pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: access})
		check(t, err)
		i := m.Info()
		if seen[i.LKey] || seen[i.RKey] || i.LKey == i.RKey {
			t.Fatalf("keys %#x and %#x", i.LKey, i.RKey)
		}
		seen[i.LKey], seen[i.RKey] = true, true
		check(t, m.Close())
	}
	m, err := r.pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: rdma.AccessLocalWrite})
	check(t, err)
	if m.Info().RKey != 0 {
		t.Errorf("memory without remote access has remote key %#x", m.Info().RKey)
	}
	check(t, m.Close())
}

// TestLostQueue checks that an overflowed completion queue returns its completions and then an
// error, and that its queue pairs fail.
func TestLostQueue(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	small, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 2})
	check(t, err)
	closing(t, small)
	q, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: small, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendWR: 8, MaxSendSGE: 1}})
	check(t, err)
	closing(t, q)
	check(t, rdmatest.Loopback(r.dev, q, rdma.ConnectOptions{}))
	post(t, q, r.write(1, 0, 4096, 8), r.write(2, 0, 4096, 8), r.write(3, 0, 4096, 8), r.write(4, 0, 4096, 8))
	want := map[rdma.EventType]bool{rdma.EventCQErr: true, rdma.EventQPFatal: true}
	for len(want) > 0 {
		e, err := r.dev.WaitEvent(within(t, 10*time.Second))
		check(t, err)
		delete(want, e.Type)
	}
	if s := state(t, q); s != rdma.QPSErr {
		t.Errorf("the queue pair is in %s", s)
	}
	var wcs [8]rdma.WC
	if n, err := small.Poll(wcs[:]); n != 2 || err != nil {
		t.Errorf("%d completions, %v", n, err)
	}
	if n, err := small.Poll(wcs[:]); n != 0 || !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("%d completions of a lost queue, %v", n, err)
	}
}

// TestResetDropsCompletions checks that a reset drops completions that are not polled, on both
// queues, and frees their places, but keeps those of other queue pairs.
func TestResetDropsCompletions(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	recvs, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 64})
	check(t, err)
	closing(t, recvs)
	q, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: recvs, Caps: rdma.QPCaps{MaxSendWR: rigDepth, MaxRecvWR: rigDepth, MaxSendSGE: 1}})
	check(t, err)
	closing(t, q)
	for range 3 {
		check(t, rdmatest.Loopback(r.dev, q, rdma.ConnectOptions{}))
		if n, err := q.PostRecv(make([]rdma.RecvWR, rigDepth)); n != rigDepth || err != nil {
			t.Fatalf("posted %d receives: %v", n, err)
		}
		for i := range rigDepth {
			w := r.write(uint64(i), 0, 4096, 8)
			w.Opcode = rdma.WRRDMAWriteWithImm
			post(t, q, w)
			if i%4 == 0 {
				post(t, r.qp, r.write(100, 8192, 4096, 8))
			}
		}
		time.Sleep(5 * time.Millisecond)
		check(t, q.Modify(rdma.QPAttr{State: rdma.QPSReset}))
		for _, wc := range good(t, r.cq, rigDepth/4) {
			if wc.WRID != 100 {
				t.Errorf("completion of request %d", wc.WRID)
			}
		}
		idle(t, r.cq)
		idle(t, recvs)
	}
}

// TestRefusedRequestFailsThePeer checks that a request that a peer's memory does not permit moves
// the peer to the error state, with an event (InfiniBand specification, 9.9.3.1).
func TestRefusedRequestFailsThePeer(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	a, b := r.newQP(t, rdma.ConnectOptions{}), r.newQP(t, rdma.ConnectOptions{})
	join(t, r, a, b, rdma.ConnectOptions{})
	if n, err := b.PostRecv([]rdma.RecvWR{{WRID: 9}}); n != 1 || err != nil {
		t.Fatal(err)
	}
	w := r.write(1, 0, 4096, 8)
	w.RKey++
	post(t, a, w)
	for _, wc := range await(t, r.cq, 2) {
		if want := map[uint64]rdma.WCStatus{1: rdma.WCRemAccessErr, 9: rdma.WCWRFlushErr}[wc.WRID]; wc.Status != want {
			t.Errorf("%+v, want %s", wc, want)
		}
	}
	if s := state(t, b); s != rdma.QPSErr {
		t.Errorf("the peer is in %s", s)
	}
	if e, err := r.dev.WaitEvent(within(t, 10*time.Second)); err != nil || e.Type != rdma.EventQPAccessErr || e.QPNum != b.Num() {
		t.Errorf("event %+v, %v", e, err)
	}
}

// join resets two queue pairs and connects them.
func join(t *testing.T, r *rig, a, b rdma.QP, o rdma.ConnectOptions) {
	t.Helper()
	for _, q := range [][2]rdma.QP{{a, b}, {b, a}} {
		check(t, q[0].Modify(rdma.QPAttr{State: rdma.QPSReset}))
		to, err := rdma.LocalEndpoint(r.dev, q[1], o)
		check(t, err)
		check(t, rdma.Connect(r.dev, q[0], o, to))
	}
}

// TestRetryTimes checks that a request fails after the configured number of retries times the
// timer.
func TestRetryTimes(t *testing.T) {
	connect := rdma.ConnectOptions{AckTimeout: rdma.AckTimeout(14), RetryCount: 3, RNRRetry: 5, RNRTimer: rdma.RNRTimer(20)}
	run := func(name string, post func(t *testing.T, r *rig), status rdma.WCStatus, want time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, soft.Options{}, connect)
				start := time.Now()
				post(t, r)
				wc := await(t, r.cq, 1)[0]
				if d := time.Since(start); wc.Status != status || d < want || d > want+time.Millisecond {
					t.Errorf("%s after %v, want %s after %v", wc.Status, d, status, want)
				}
			})
		})
	}
	run("receiver not ready", func(t *testing.T, r *rig) {
		post(t, r.qp, rdma.SendWR{Opcode: rdma.WRSend})
	}, rdma.WCRNRRetryExcErr, 6*rdma.RNRTimer(20))
	run("no answer", func(t *testing.T, r *rig) {
		check(t, r.dev.SetPort(1, false))
		post(t, r.qp, r.write(1, 0, 4096, 8))
	}, rdma.WCRetryExcErr, 4*rdma.AckTimeout(14))
}

// TestPortComesBack checks that retries succeed after a port was inactive for a while, and that
// events report the changes.
func TestPortComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
		check(t, r.dev.SetPort(1, false))
		check(t, r.dev.SetPort(1, false))
		if p, err := r.dev.QueryPort(1); err != nil || p.State != rdma.PortDown {
			t.Errorf("port %+v, %v", p, err)
		}
		if _, err := rdma.LocalEndpoint(r.dev, r.qp, rdma.ConnectOptions{}); !errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("endpoint of a port that is down: %v", err)
		}
		post(t, r.qp, r.write(1, 0, 4096, 8))
		time.Sleep(rdma.AckTimeout(14) * 3)
		idle(t, r.cq)
		check(t, r.dev.SetPort(1, true))
		good(t, r.cq, 1)
		for _, want := range []rdma.EventType{rdma.EventPortErr, rdma.EventPortActive} {
			if e, err := r.dev.WaitEvent(t.Context()); err != nil || e.Type != want || e.Port != 1 {
				t.Errorf("event %+v, %v", e, err)
			}
		}
		if err := r.dev.SetPort(2, true); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("set a port that does not exist: %v", err)
		}
	})
}

// TestWrongSequence checks that queue pairs with wrong packet sequence numbers do not reach each
// other. The same holds for a peer that was reconnected.
func TestWrongSequence(t *testing.T) {
	connect := rdma.ConnectOptions{AckTimeout: rdma.AckTimeout(5), RetryCount: 1, PSN: 7}
	r := newRig(t, soft.Options{}, connect)
	a, b := r.newQP(t, connect), r.newQP(t, connect)
	end := func(q rdma.QP) rdma.Endpoint {
		t.Helper()
		e, err := rdma.LocalEndpoint(r.dev, q, connect)
		check(t, err)
		return e
	}
	reset := func(q rdma.QP, to rdma.Endpoint) {
		t.Helper()
		check(t, q.Modify(rdma.QPAttr{State: rdma.QPSReset}))
		check(t, rdma.Connect(r.dev, q, connect, to))
	}
	reset(a, end(b))
	reset(b, end(a))
	post(t, a, r.write(1, 0, 4096, 8))
	good(t, r.cq, 1)
	reset(b, end(a))
	post(t, a, r.write(2, 0, 4096, 8))
	if wc := await(t, r.cq, 1)[0]; wc.Status != rdma.WCRetryExcErr {
		t.Errorf("a peer that was connected anew: %+v", wc)
	}
	reset(a, end(b))
	off := end(a)
	off.PSN++
	reset(b, off)
	post(t, a, r.write(3, 0, 4096, 8))
	if wc := await(t, r.cq, 1)[0]; wc.Status != rdma.WCRetryExcErr {
		t.Errorf("a peer with another sequence number: %+v", wc)
	}
}

// TestReadsNeedDepth checks that a MaxRDAtomic of zero on either side permits no reads.
func TestReadsNeedDepth(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	for name, tt := range map[string]struct {
		change func(a *rdma.QPAttr)
		want   rdma.WCStatus
	}{
		"requester": {func(a *rdma.QPAttr) { a.MaxRDAtomic = 0 }, rdma.WCLocQPOpErr},
		"responder": {func(a *rdma.QPAttr) { a.MaxDestRDAtomic = 0 }, rdma.WCRemInvReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			q := r.newQP(t, rdma.ConnectOptions{})
			info, err := q.Query()
			check(t, err)
			a := info.Attr
			tt.change(&a)
			for _, a.State = range []rdma.QPState{rdma.QPSReset, rdma.QPSInit, rdma.QPSRTR, rdma.QPSRTS} {
				check(t, q.Modify(a))
			}
			post(t, q, r.move(rdma.WRRDMARead, 1, 0, 4096, 8))
			if wc := await(t, r.cq, 1)[0]; wc.Status != tt.want {
				t.Errorf("%+v, want %s", wc, tt.want)
			}
		})
	}
}

// TestLimits checks that the number of objects of a device is limited.
func TestLimits(t *testing.T) {
	r := newRig(t, soft.Options{Devices: []soft.DeviceOptions{{Limits: rdma.DeviceInfo{MaxQP: 1, MaxMR: 1, MaxCQ: 1, MaxPD: 1, MaxSRQ: 1}}}}, rdma.ConnectOptions{})
	s, err := r.pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1})
	check(t, err)
	closing(t, s)
	for what, call := range map[string]func() error{
		"queue pair":           func() error { _, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq}); return err },
		"memory region":        func() error { _, err := r.pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: access}); return err },
		"completion queue":     func() error { _, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 1}); return err },
		"protection domain":    func() error { _, err := r.dev.AllocPD(); return err },
		"shared receive queue": func() error { _, err := r.pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1}); return err },
	} {
		if err := call(); !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("a second %s: %v", what, err)
		}
	}
	check(t, r.mr.Close())
	m, err := r.pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: access})
	check(t, err)
	check(t, m.Close())
}

// TestDeviceMemory checks the ways of registering device memory, which depend on the machine's
// abilities.
func TestDeviceMemory(t *testing.T) {
	gpu, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: 0, Len: 1 << 20, Dev: 1 << 40})
	check(t, err)
	file, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	check(t, err)
	defer func() { check(t, unix.Close(file)) }()
	check(t, unix.Ftruncate(file, 1<<20))
	reg := func(o soft.Options, dmabuf bool, off int64) error {
		r := newRig(t, o, rdma.ConnectOptions{})
		var m rdma.MR
		var err error
		if dmabuf {
			m, err = r.pd.RegDMABufMR(mem.All(gpu), file, off, rdma.MROptions{Access: access})
		} else {
			m, err = r.pd.RegMR(mem.All(gpu), rdma.MROptions{Access: access})
		}
		if err != nil {
			return err
		}
		if m.Info().Addr != 1<<40 {
			t.Errorf("address %#x", m.Info().Addr)
		}
		return m.Close()
	}
	for _, tt := range []struct {
		name   string
		d      soft.DeviceOptions
		m      soft.Mover
		dmabuf bool
		off    int64
		want   error
	}{
		{"peer memory", soft.DeviceOptions{}, rdmatest.NullMover{}, false, 0, nil},
		{"dma-buf", soft.DeviceOptions{NoDeviceMemory: true}, rdmatest.NullMover{}, true, 0, nil},
		{"dma-buf too short", soft.DeviceOptions{}, rdmatest.NullMover{}, true, 1, errdefs.ErrInvalid},
		{"no peer memory", soft.DeviceOptions{NoDeviceMemory: true}, rdmatest.NullMover{}, false, 0, errdefs.ErrNotSupported},
		{"not support dma-bufs", soft.DeviceOptions{NoDMABuf: true}, rdmatest.NullMover{}, true, 0, errdefs.ErrNotSupported},
		{"a mover that does not reach it", soft.DeviceOptions{}, soft.CPUMover{}, false, 0, errdefs.ErrNotSupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := reg(soft.Options{Mover: tt.m, Devices: []soft.DeviceOptions{tt.d}}, tt.dmabuf, tt.off); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// TestDeviceOpenTwice checks that two users of a device have different numbers and keys and reach
// each other.
func TestDeviceOpenTwice(t *testing.T) {
	r := newRig(t, soft.Options{}, rdma.ConnectOptions{})
	before := bytes.Clone(r.mem.Bytes()[4096:8192])
	d, err := r.p.Open("soft0")
	check(t, err)
	closing(t, d)
	pd, err := d.AllocPD()
	check(t, err)
	closing(t, pd)
	cq, err := d.CreateCQ(rdma.CQOptions{Entries: 4})
	check(t, err)
	closing(t, cq)
	q, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: 4, MaxSendSGE: 1}})
	check(t, err)
	closing(t, q)
	if q.Num() == r.qp.Num() {
		t.Errorf("two queue pairs have number %d", q.Num())
	}
	here, err := rdma.LocalEndpoint(r.dev, r.qp, rdma.ConnectOptions{})
	check(t, err)
	there, err := rdma.LocalEndpoint(d, q, rdma.ConnectOptions{})
	check(t, err)
	check(t, r.qp.Modify(rdma.QPAttr{State: rdma.QPSReset}))
	check(t, rdma.Connect(r.dev, r.qp, rdma.ConnectOptions{}, there))
	check(t, rdma.Connect(d, q, rdma.ConnectOptions{}, here))
	m, err := pd.RegMR(mem.All(r.mem), rdma.MROptions{Access: access})
	check(t, err)
	closing(t, m)
	w := rdma.SendWR{Opcode: rdma.WRRDMAWrite, Flags: rdma.SendSignaled, RKey: r.info.RKey, RemoteAddr: r.info.Addr, SGEs: []rdma.SGE{{Addr: m.Info().Addr + 4096, Length: 4096, LKey: m.Info().LKey}}}
	post(t, q, w)
	good(t, cq, 1)
	if !bytes.Equal(r.mem.Bytes()[:4096], before) {
		t.Error("the write did not reach its destination")
	}
}

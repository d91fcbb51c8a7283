package ibv

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/ibverbs"
)

// library is a fake libibverbs in Go with one device. It tracks open objects and reports an error
// if one is freed before its children. Events are bytes in pipes.
type library struct {
	tb testing.TB

	mu      sync.Mutex
	next    uintptr
	parents map[uintptr][]uintptr // parents of each open object
	calls   int
	failAt  int // index of the call that fails with errInjected; negative: none
	failed  string

	devices  []string
	openErr  syscall.Errno
	regErr   syscall.Errno
	port     ibverbs.PortAttr
	gids     []ibverbs.GIDEntry
	pipes    map[uintptr][2]int // reading and writing end of each context's or channel's pipe
	async    []ibverbs.AsyncEvent
	events   []ibverbs.CQ
	unacked  int
	modified []int32 // masks
	// unresolved is the number of steps to RTR during which the peer's link address is not resolved
	// in time.
	unresolved int
	attr       ibverbs.QPAttr
	wcs        []ibverbs.WC
	access     uint32
	addr, iova uint64
}

// errInjected is an errno that nothing else returns here.
const errInjected = unix.EXFULL

func newLibrary(tb testing.TB) (*library, *ibverbs.API) {
	tb.Helper()
	l := &library{
		tb: tb, next: 1, parents: make(map[uintptr][]uintptr), failAt: -1, devices: []string{"fake0"}, pipes: make(map[uintptr][2]int),
		port: ibverbs.PortAttr{State: 4, MaxMTU: 5, ActiveMTU: 3, GIDTableLen: 4, PKeyTableLen: 1, ActiveWidth: 2, ActiveSpeed: 32, LinkLayer: 2},
		gids: []ibverbs.GIDEntry{{GID: [16]byte{0: 0xfe, 1: 0x80, 15: 1}, Type: 1}, {GID: [16]byte{10: 0xff, 11: 0xff, 12: 10}, Type: 2}, {}},
	}
	tb.Cleanup(func() {
		if len(l.parents) > 0 || len(l.pipes) > 0 {
			tb.Errorf("objects left open in the library: %v", l.parents)
		}
		if l.unacked != 0 {
			tb.Errorf("%d events were not acknowledged", l.unacked)
		}
	})
	a := new(ibverbs.API)
	l.bindDevices(a)
	l.bindObjects(a)
	l.bindQueues(a)
	return l, a
}

// fails counts a call and reports whether it should fail.
func (l *library) fails(name string) bool {
	l.calls++
	if l.calls-1 != l.failAt {
		return false
	}
	l.failed = name
	return true
}

// make creates an object with parents.
func (l *library) make(name string, parents ...uintptr) (uintptr, syscall.Errno) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails(name) {
		return 0, errInjected
	}
	l.next++
	for _, p := range parents {
		if _, ok := l.parents[p]; !ok && p != 0 {
			l.tb.Errorf("%s of object %d, which is not open", name, p)
		}
	}
	l.parents[l.next] = parents
	return l.next, 0
}

func (l *library) free(name string, object uintptr) syscall.Errno {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails(name) {
		return errInjected
	}
	if _, ok := l.parents[object]; !ok {
		l.tb.Errorf("%s of object %d, which is not open", name, object)
	}
	for child, parents := range l.parents {
		if slices.Contains(parents, object) {
			l.tb.Errorf("%s of object %d while %d hangs on it", name, object, child)
		}
	}
	delete(l.parents, object)
	return 0
}

// call counts a call that neither creates nor frees an object.
func (l *library) call(name string) syscall.Errno {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails(name) {
		return errInjected
	}
	return 0
}

func (l *library) pipe(object uintptr) int {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		l.tb.Fatal(err)
	}
	l.pipes[object] = fds
	return fds[0]
}

func (l *library) closePipe(object uintptr) {
	for _, fd := range l.pipes[object] {
		if err := unix.Close(fd); err != nil {
			l.tb.Error(err)
		}
	}
	delete(l.pipes, object)
}

// signal makes the descriptor of a context or a channel readable.
func (l *library) signal(object uintptr) {
	if _, err := unix.Write(l.pipes[object][1], []byte{1}); err != nil {
		l.tb.Error(err)
	}
}

// drain reads the byte of one event. It returns false if there is none.
func (l *library) drain(object uintptr) bool {
	var b [1]byte
	n, err := unix.Read(l.pipes[object][0], b[:])
	return n == 1 && err == nil
}

func (l *library) bindDevices(a *ibverbs.API) {
	a.GetDeviceList = func() (ibverbs.DeviceList, syscall.Errno) {
		if l.openErr != 0 {
			return ibverbs.DeviceList{}, l.openErr
		}
		var list ibverbs.DeviceList
		for i := range l.devices {
			list.Devices = append(list.Devices, ibverbs.Device(i))
		}
		return list, l.call("get_device_list")
	}
	a.FreeDeviceList = func(ibverbs.DeviceList) {}
	a.GetDeviceName = func(d ibverbs.Device) string { return l.devices[d] }
	a.OpenDevice = func(ibverbs.Device) (ibverbs.Context, syscall.Errno) {
		c, errno := l.make("open_device")
		if errno == 0 {
			l.pipe(c)
		}
		return ibverbs.Context(c), errno
	}
	a.CloseDevice = func(c ibverbs.Context) syscall.Errno {
		errno := l.free("close_device", uintptr(c))
		if errno == 0 {
			l.closePipe(uintptr(c))
		}
		return errno
	}
	a.QueryDevice = func(_ ibverbs.Context, attr *ibverbs.DeviceAttr) syscall.Errno {
		*attr = ibverbs.DeviceAttr{
			NodeGUID: 0x0807060504030201, PhysicalPortCount: 1, MaxQPWR: 64, MaxSGE: 4, MaxSGERead: 2, MaxCQE: 256, MaxSRQWR: 64, MaxSRQSGE: 4,
		}
		copy(attr.Firmware[:], "1.2.3")
		return l.call("query_device")
	}
	a.QueryPort = func(_ ibverbs.Context, _ uint8, attr *ibverbs.PortAttr) syscall.Errno {
		*attr = l.port
		return l.call("query_port")
	}
	a.QueryGIDEx = func(_ ibverbs.Context, _, index uint32, e *ibverbs.GIDEntry) syscall.Errno {
		if int(index) >= len(l.gids) {
			return unix.ENODATA
		}
		*e = l.gids[index]
		return l.call("query_gid")
	}
	a.CompVectors = func(ibverbs.Context) int { return 2 }
	a.AsyncFD = func(c ibverbs.Context) int { return l.pipes[uintptr(c)][0] }
	a.GetAsyncEvent = func(c ibverbs.Context) (ibverbs.AsyncEvent, syscall.Errno) {
		if !l.drain(uintptr(c)) {
			return ibverbs.AsyncEvent{}, unix.EAGAIN
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unacked++
		e := l.async[0]
		l.async = l.async[1:]
		return e, 0
	}
	a.AckAsyncEvent = func(ibverbs.AsyncEvent) { l.ack(1) }
	a.QPNum = func(q ibverbs.QP) uint32 { return uint32(q) }
}

func (l *library) ack(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unacked -= n
}

func (l *library) bindObjects(a *ibverbs.API) {
	a.AllocPD = func(c ibverbs.Context) (ibverbs.PD, syscall.Errno) {
		p, errno := l.make("alloc_pd", uintptr(c))
		return ibverbs.PD(p), errno
	}
	a.DeallocPD = func(p ibverbs.PD) syscall.Errno { return l.free("dealloc_pd", uintptr(p)) }
	a.RegMR = func(p ibverbs.PD, addr, _, iova uint64, access uint32) (ibverbs.Registration, syscall.Errno) {
		if l.regErr != 0 {
			return ibverbs.Registration{}, l.regErr
		}
		l.access, l.addr, l.iova = access, addr, iova
		m, errno := l.make("reg_mr", uintptr(p))
		return ibverbs.Registration{MR: ibverbs.MR(m), LKey: 0x10, RKey: 0x20}, errno
	}
	a.RegDMABufMR = func(p ibverbs.PD, off, bytes, _ uint64, fd int, access uint32) (ibverbs.Registration, syscall.Errno) {
		if off != 4096 || bytes != 8192 || fd != 9 {
			l.tb.Errorf("registered %d bytes at %d of descriptor %d", bytes, off, fd)
		}
		return a.RegMR(p, 0, 0, 0, access)
	}
	a.DeregMR = func(m ibverbs.MR) syscall.Errno { return l.free("dereg_mr", uintptr(m)) }
	a.CreateCompChannel = func(c ibverbs.Context) (ibverbs.CompChannel, int, syscall.Errno) {
		ch, errno := l.make("create_comp_channel", uintptr(c))
		if errno != 0 {
			return 0, -1, errno
		}
		return ibverbs.CompChannel(ch), l.pipe(ch), 0
	}
	a.DestroyCompChannel = func(ch ibverbs.CompChannel) syscall.Errno {
		errno := l.free("destroy_comp_channel", uintptr(ch))
		if errno == 0 {
			l.closePipe(uintptr(ch))
		}
		return errno
	}
	a.CreateCQ = func(c ibverbs.Context, entries int, ch ibverbs.CompChannel, _ int) (ibverbs.CQ, int, syscall.Errno) {
		q, errno := l.make("create_cq", uintptr(c), uintptr(ch))
		return ibverbs.CQ(q), entries + 1, errno
	}
	a.DestroyCQ = func(q ibverbs.CQ) syscall.Errno { return l.free("destroy_cq", uintptr(q)) }
	a.GetCQEvent = func(ch ibverbs.CompChannel) (ibverbs.CQ, syscall.Errno) {
		if !l.drain(uintptr(ch)) {
			return 0, unix.EAGAIN
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unacked++
		q := l.events[0]
		l.events = l.events[1:]
		return q, 0
	}
	a.AckCQEvents = func(_ ibverbs.CQ, n uint32) { l.ack(int(n)) }
	a.ReqNotifyCQ = func(ibverbs.CQ, bool) syscall.Errno { return l.call("req_notify_cq") }
	a.PollCQ = func(_ ibverbs.CQ, w *ibverbs.WCArray, n int) int {
		if l.call("poll_cq") != 0 {
			return -2
		}
		n = copy(w.WCs()[:n], l.wcs)
		l.wcs = l.wcs[n:]
		return n
	}
}

func (l *library) bindQueues(a *ibverbs.API) {
	a.CreateQP = func(p ibverbs.PD, attr *ibverbs.QPInitAttr) (ibverbs.QP, uint32, syscall.Errno) {
		q, errno := l.make("create_qp", uintptr(p), uintptr(attr.SendCQ), uintptr(attr.RecvCQ), uintptr(attr.SRQ))
		attr.Cap.MaxSendWR += 2 // devices also round up
		return ibverbs.QP(q), uint32(q), errno
	}
	a.DestroyQP = func(q ibverbs.QP) syscall.Errno { return l.free("destroy_qp", uintptr(q)) }
	a.ModifyQP = func(_ ibverbs.QP, attr *ibverbs.QPAttr, mask int32) syscall.Errno {
		if l.call("modify_qp") != 0 {
			return errInjected
		}
		if mask == maskRTR && l.unresolved > 0 {
			l.unresolved--
			return unix.ETIMEDOUT
		}
		l.modified = append(l.modified, mask)
		l.attr = *attr
		return 0
	}
	a.QueryQP = func(_ ibverbs.QP, attr *ibverbs.QPAttr, _ int32, _ *ibverbs.QPInitAttr) syscall.Errno {
		attr.State = 6
		return l.call("query_qp")
	}
	a.CreateSRQ = func(p ibverbs.PD, _ *ibverbs.SRQAttr) (ibverbs.SRQ, syscall.Errno) {
		q, errno := l.make("create_srq", uintptr(p))
		return ibverbs.SRQ(q), errno
	}
	a.DestroySRQ = func(q ibverbs.SRQ) syscall.Errno { return l.free("destroy_srq", uintptr(q)) }
	a.PostSend = func(_ ibverbs.QP, c *ibverbs.SendChain) (int, syscall.Errno) { return l.post("post_send", c.Len()) }
	a.PostRecv = func(_ ibverbs.QP, c *ibverbs.RecvChain) (int, syscall.Errno) { return l.post("post_recv", c.Len()) }
	a.PostSRQRecv = func(_ ibverbs.SRQ, c *ibverbs.RecvChain) (int, syscall.Errno) {
		return l.post("post_srq_recv", c.Len())
	}
}

// post accepts a chain. If the call should fail, it accepts all but the last request.
func (l *library) post(name string, n int) (int, syscall.Errno) {
	if n == 0 {
		return 0, 0
	}
	if errno := l.call(name); errno != 0 {
		return n - 1, errno
	}
	return n, 0
}

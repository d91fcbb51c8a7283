package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// direct is a server and a client that place data directly. The server's handler calls handle.
type direct struct {
	*fabric
	nics   [2]*registry.Registry // of the server and of the client
	rdma   [2]*rpc.RDMA
	server *rpc.Server
	client *rpc.Client
	handle func(ctx context.Context, c *rpc.Call) error
}

func newDirect(t *testing.T, f *fabric, onDevice bool, change func(o *rpc.RDMAOptions)) *direct {
	t.Helper()
	d := &direct{fabric: f}
	for i := range d.nics {
		d.nics[i] = f.nic(t)
		d.rdma[i] = f.open(t, onDevice, func(o *rpc.RDMAOptions) {
			o.NIC, o.HelloVersion, o.Direct = d.nics[i], 3, true
			if change != nil {
				change(o)
			}
		})
	}
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{
		"Echo": func(ctx context.Context, m proto.Message) (proto.Message, error) {
			request, ok := m.(*echo.EchoRequest)
			if !ok {
				return nil, rpc.Errorf(rpc.BadRequest, "%T", m)
			}
			r := &echo.EchoResponse{Message: request.Message}
			if r.GetMessage() == "small" {
				return r, nil
			}
			return r, d.handle(ctx, rpc.FromContext(ctx))
		},
	})
	must(t, err)
	var addr string
	d.server, addr = serve(t, rpc.ServerOptions{RDMA: d.rdma[0]}, v)
	d.client = newClient(t, addr, rpc.ClientOptions{RDMA: d.rdma[1]})
	return d
}

// pinned returns pinned memory that is registered with a NIC.
func (f *fabric) pinned(t *testing.T, nic *registry.Registry, b []byte) *mem.Region {
	t.Helper()
	r, err := f.dev.AllocHost(int64(len(b)))
	must(t, err)
	copy(r.Bytes(), b)
	must(t, nic.Register(rdmaOptions, r))
	t.Cleanup(func() {
		must(t, nic.Unregister(context.Background(), r))
		must(t, f.dev.Free(r))
	})
	return r
}

var rdmaOptions = rdma.MROptions{Access: rpc.PlacementAccess}

func all(r *mem.Region) []mem.Extent { return []mem.Extent{mem.All(r)} }

// A server reads the source of a call, and writes its destination, between device memory and pinned
// memory, in extents and in pages. No copy happens within the device, and only messages are copied
// to the host.
func TestDirectPlacement(t *testing.T) { testDirect(t, newFabric(t), 5<<20+1000) }

func testDirect(t *testing.T, f *fabric, n int) {
	t.Helper()
	d := newDirect(t, f, true, nil)
	want := random(1, n)
	source := d.alloc(t, d.nics[1], want)
	middle := d.alloc(t, d.nics[0], make([]byte, n))
	destination := d.alloc(t, d.nics[1], make([]byte, n))
	host := d.pinned(t, d.nics[1], make([]byte, n))
	d.handle = func(ctx context.Context, c *rpc.Call) error {
		if c.SourceBytes() != c.DestinationBytes() {
			t.Errorf("a source of %d and a destination of %d bytes", c.SourceBytes(), c.DestinationBytes())
		}
		x := []mem.Extent{{Region: middle, Len: c.SourceBytes()}}
		if err := c.ReadSource(ctx, x); err != nil {
			return err
		}
		return c.WriteDestination(ctx, x)
	}
	call := func(from, to rpc.Memory) {
		t.Helper()
		again := 0
		if os.Getenv(rdmatest.LossEnv) != "" {
			again = 5 // soft-RoCE gives up a long message after a few losses in a row
		}
		toHost := f.dev.toHost.Load()
		for {
			_, err := echoCall(t.Context(), d.client, "place", rpc.WithSource(from), rpc.WithDestination(to))
			if err == nil {
				break
			}
			if again == 0 {
				t.Fatal(err)
			}
			again--
			t.Logf("again: %v", err)
			toHost = f.dev.toHost.Load()
		}
		if n := f.dev.toHost.Load() - toHost; n != 2 { // request and response
			t.Errorf("%d copies to the host", n)
		}
	}
	call(rpc.Memory{Extents: all(source)}, rpc.Memory{Extents: all(destination)})
	if !bytes.Equal(d.read(t, mem.All(destination)), want) {
		t.Error("extents: the bytes differ")
	}
	call(rpc.Memory{Extents: []mem.Extent{mem.All(source).Sub(100, 50), mem.All(source).Sub(0, 7)}}, rpc.Memory{Extents: []mem.Extent{mem.All(host).Sub(0, 57)}})
	if got := host.Bytes()[:57]; !bytes.Equal(got, append(bytes.Clone(want[100:150]), want[:7]...)) {
		t.Error("short extents: the bytes differ")
	}
	// Pages 5 and 2 of two planes, to pages 0 and 1 of a plane with both.
	planes := []mem.Plane{{Region: source, Base: 64, Stride: 4096, Bytes: 1000}, {Region: source, Base: 1 << 20, Stride: 2048, Bytes: 24}}
	call(rpc.Memory{Planes: planes, Pages: []uint32{5, 2}}, rpc.Memory{Planes: []mem.Plane{{Region: host, Base: 8, Stride: 2000, Bytes: 1024}}, Pages: []uint32{0, 1}})
	for i, page := range []int{5, 2} {
		got := host.Bytes()[8+2000*i:][:1024]
		if !bytes.Equal(got[:1000], want[64+4096*page:][:1000]) || !bytes.Equal(got[1000:], want[1<<20+2048*page:][:24]) {
			t.Errorf("page %d: the bytes differ", page)
		}
	}
	if n := f.dev.within.Load() + f.dev.toDevice.Load(); n != 0 {
		t.Errorf("%d copies within or to the device", n)
	}
}

// Calls that cannot be placed fail with a code, and the connection stays.
func TestDirectPlacementRefused(t *testing.T) {
	f := newFabric(t)
	d := newDirect(t, f, false, nil)
	memory, foreign := d.pinned(t, d.nics[1], make([]byte, 100)), d.pinned(t, f.nic(t), make([]byte, 100))
	onServer := d.pinned(t, d.nics[0], make([]byte, 100))
	onGPU := d.alloc(t, d.nics[1], make([]byte, 100))
	offer := rpc.WithDestination(rpc.Memory{Extents: all(memory)})
	var local []mem.Extent
	d.handle = func(ctx context.Context, c *rpc.Call) error { return c.WriteDestination(ctx, local) }
	for name, x := range map[string]struct {
		option rpc.CallOption
		local  []mem.Extent
		code   rpc.Code
	}{
		"not registered":              {rpc.WithSource(rpc.Memory{Extents: all(foreign)}), all(onServer), rpc.BadRequest},
		"outside of its region":       {rpc.WithSource(rpc.Memory{Extents: []mem.Extent{{Region: memory, Len: 101}}}), all(onServer), rpc.BadRequest},
		"pages outside":               {rpc.WithSource(rpc.Memory{Planes: []mem.Plane{{Region: memory, Stride: 50, Bytes: 50}}, Pages: []uint32{2}}), all(onServer), rpc.BadRequest},
		"no destination":              {rpc.WithSource(rpc.Memory{Extents: all(memory)}), all(onServer), rpc.BadRequest},
		"nothing offered":             {rpc.WithLogID(1), all(onServer), rpc.BadRequest},
		"another length":              {offer, []mem.Extent{{Region: onServer, Len: 99}}, rpc.Internal},
		"memory of the server":        {offer, all(foreign), rpc.Internal},
		"a device that has no flush":  {rpc.WithDestination(rpc.Memory{Extents: all(onGPU)}), all(onServer), rpc.FailedSocket},
		"everything in order, at end": {offer, all(onServer), rpc.OK},
	} {
		local = x.local
		if _, err := echoCall(t.Context(), d.client, "place", x.option); rpc.CodeOf(err) != x.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := d.rdma[1].Stats(); s.Connected != 1 {
		t.Errorf("%+v", s)
	}
	for _, version := range []int{2, 3} { // peers that do not offer placement
		cr := f.open(t, false, func(o *rpc.RDMAOptions) { o.HelloVersion, o.Direct = version, version == 2 })
		_, addr := serve(t, rpc.ServerOptions{RDMA: d.rdma[0]}, echoAttachments(t, nil))
		client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
		if _, err := echoCall(t.Context(), client, "place", offer); !errors.Is(err, errdefs.ErrNotSupported) || !errors.Is(err, rpc.ErrNotSent) {
			t.Errorf("version %d: %v", version, err)
		}
		if m, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes([]byte("x")))); err != nil || m != "hello" {
			t.Errorf("version %d, with an attachment: %v", version, err)
		}
	}
}

// longMover holds transfers of more than a limit back, until proceed is closed.
type longMover struct {
	soft.CPUMover
	began   chan struct{}
	proceed chan struct{}
	moved   atomic.Int64 // long transfers that were moved
}

const longBytes = 1 << 20

func (m *longMover) Move(t *soft.Transfer) {
	var n int64
	for dst := range t.Batch.Extents() {
		n += dst.Len
	}
	if n < longBytes {
		m.CPUMover.Move(t)
		return
	}
	go func() {
		m.began <- struct{}{}
		<-m.proceed
		m.moved.Add(1)
		m.CPUMover.Move(t)
	}()
}

// A cancelled call returns only when its transfers have ended. Meanwhile small calls of the same
// connection go on.
func TestDefectCancelledCallLeavesTransfers(t *testing.T) {
	m := &longMover{began: make(chan struct{}, 100), proceed: make(chan struct{})}
	f := newFabricWith(t, m)
	d := newDirect(t, f, false, nil)
	memory, local := d.pinned(t, d.nics[1], make([]byte, 2*longBytes)), d.pinned(t, d.nics[0], random(1, 2*longBytes))
	ended := make(chan error, 1)
	d.handle = func(ctx context.Context, c *rpc.Call) error {
		err := c.WriteDestination(ctx, all(local))
		ended <- err
		if again := c.WriteDestination(ctx, all(local)); rpc.CodeOf(again) != rpc.Canceled {
			t.Errorf("a transfer after the end: %v", again)
		}
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := echoCall(ctx, d.client, "place", rpc.WithDestination(rpc.Memory{Extents: all(memory)}))
		done <- err
	}()
	<-m.began
	for range 20 {
		if _, err := echoCall(t.Context(), d.client, "small"); err != nil {
			t.Errorf("a small call: %v", err)
		}
	}
	cancel()
	select {
	case err := <-done:
		t.Errorf("the call returned during a transfer: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(m.proceed)
	if err := <-done; rpc.CodeOf(err) != rpc.Canceled {
		t.Errorf("the call: %v", err)
	}
	moved := m.moved.Load()
	clear(memory.Bytes())
	if err := <-ended; err != nil {
		t.Logf("the handler: %v", err)
	}
	time.Sleep(20 * time.Millisecond)
	if m.moved.Load() != moved || !bytes.Equal(memory.Bytes(), make([]byte, 2*longBytes)) {
		t.Error("the memory was written after the call had returned")
	}
	if _, err := echoCall(t.Context(), d.client, "small"); err != nil || d.rdma[1].Stats().Connected != 1 {
		t.Errorf("afterwards: %v", err)
	}
}

// place starts a call with a destination, and returns when its transfer has begun. It calls again if
// the call ends before that, as it does if a busy machine needs more than the stall time for the
// handshake.
func (d *direct) place(ctx context.Context, t *testing.T, m *longMover, to *mem.Region) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	for end := time.Now().Add(testkit.Patience()); ; {
		go func() {
			_, err := echoCall(ctx, d.client, "place", rpc.WithDestination(rpc.Memory{Extents: all(to)}))
			done <- err
		}()
		select {
		case <-m.began:
			return done
		case err := <-done:
			if err == nil || time.Now().After(end) {
				t.Fatalf("the call ended before its transfer: %v", err)
			}
			t.Logf("again: %v", err)
		}
	}
}

// A server that ends during a transfer, or does not answer the fence, ends the call after the queue
// pair was closed.
func TestFenceWithoutAnAnswer(t *testing.T) {
	for _, name := range []string{"end", "no answer"} {
		m := &longMover{began: make(chan struct{}, 100), proceed: make(chan struct{})}
		f := newFabricWith(t, m)
		stall := min(testkit.Patience(), 20*time.Second)
		if name == "no answer" {
			stall = 300 * time.Millisecond
		}
		d := newDirect(t, f, false, func(o *rpc.RDMAOptions) { o.Stall = stall })
		memory, local := d.pinned(t, d.nics[1], make([]byte, longBytes)), d.pinned(t, d.nics[0], random(1, longBytes))
		d.handle = func(ctx context.Context, c *rpc.Call) error { return c.WriteDestination(ctx, all(local)) }
		ctx, cancel := context.WithCancel(t.Context())
		done := d.place(ctx, t, m, memory)
		closed := make(chan error, 1)
		if name == "end" {
			go func() { closed <- d.server.Close() }()
		} else {
			closed <- nil
		}
		cancel()
		select {
		case err := <-done:
			t.Errorf("%s: the call returned while the NIC writes: %v", name, err)
		case <-time.After(600 * time.Millisecond):
		}
		close(m.proceed)
		if err := <-done; err == nil {
			t.Errorf("%s: the call succeeded", name)
		}
		must(t, <-closed)
	}
}

// A transfer that hangs ends its connection at the stall time after its call's deadline. It returns
// when the NIC no longer accesses the memory. Calls go on by the next connection.
func TestHangingTransferEndsItsConnection(t *testing.T) {
	m := &longMover{began: make(chan struct{}, 100), proceed: make(chan struct{})}
	f := newFabricWith(t, m)
	stalls := []time.Duration{300 * time.Millisecond, min(testkit.Patience(), 20*time.Second)} // of the server and of the client
	d := newDirect(t, f, false, func(o *rpc.RDMAOptions) { o.Stall, stalls = stalls[0], stalls[1:] })
	memory, local := d.pinned(t, d.nics[1], make([]byte, longBytes)), d.pinned(t, d.nics[0], random(1, longBytes))
	deadline, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d.handle = func(ctx context.Context, c *rpc.Call) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(deadline, cancel)()
		err := c.WriteDestination(ctx, all(local))
		ended <- err
		return err
	}
	done := d.place(t.Context(), t, m, memory)
	end()
	waitFor(t, func() bool {
		_, err := echoCall(t.Context(), d.client, "small")
		return err == nil && d.rdma[1].Stats().Connected == 2
	})
	select {
	case err := <-ended:
		t.Errorf("the transfer returned while the NIC reads its memory: %v", err)
	case err := <-done:
		t.Errorf("the call returned while the NIC writes its memory: %v", err)
	default:
	}
	close(m.proceed)
	if err := <-ended; !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("the transfer: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the call succeeded")
	}
}

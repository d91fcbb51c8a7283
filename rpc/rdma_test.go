package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	handshake "github.com/kvlane/kvlane/rpc/internal/hello"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// echoCase is a pair of sides of a connection by RDMA.
type echoCase struct {
	client, server bool // receives into device memory
	version        int
	polling        bool
}

// Echoes by RDMA with attachments of all lengths, up to the maximum of a body, in both versions of
// the handshake, between host and device memory. One byte more is refused.
func TestEchoByRDMA(t *testing.T) {
	for _, c := range []echoCase{{version: 2}, {version: 3}, {server: true, version: 2}, {client: true, server: true, version: 3}, {version: 2, polling: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			testEcho(t, newFabric(t), c, 300<<10, 0, 1, 400, 4096, 4097, 8192, 8193, 65536, 200_000)
		})
	}
}

// testEcho echoes attachments of the lengths, and that which makes a body of maxBody bytes.
func testEcho(t *testing.T, f *fabric, c echoCase, maxBody int, lengths ...int) {
	t.Helper()
	change := func(o *rpc.RDMAOptions) {
		o.HelloVersion, o.Polling, o.RegionBytes = c.version, c.polling, max(1<<20, int64(maxBody)/4)
	}
	sr, cr := f.open(t, c.server, change), f.open(t, c.client, change)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr, MaxBodyBytes: int64(maxBody)}, echoAttachments(t, nil))
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr, MaxBodyBytes: 2 * int64(maxBody)}) // the server refuses, not the client
	longest := maxBody - otherBytes(t, client, maxBody)
	for _, n := range append(lengths, longest) {
		want := random(uint64(n), n)
		var got chain.Chain
		m, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(bytes.Clone(want))), rpc.ReceiveAttachment(&got))
		if err != nil || m != "hello" || got.OnDevice() != (c.client && n > 0) {
			t.Fatalf("%d bytes: %q, %v", n, m, err)
		}
		if b := f.bytes(t, &got); !bytes.Equal(b, want) {
			t.Errorf("%d bytes: they differ", n)
		}
		got.Release()
	}
	_, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, longest+1))))
	if code := rpc.CodeOf(err); code != rpc.EndOfFile && code != rpc.FailedSocket {
		t.Errorf("a body of one byte too many: %v", err)
	}
	if s, k := sr.Stats(), cr.Stats(); s.Connected == 0 || k.Connected == 0 || s.Refused+k.Refused > 0 || c.server != (s.Device.HighWater > 0) {
		t.Errorf("server %+v, client %+v", s, k)
	}
}

// otherBytes returns the number of bytes that a body of maxBody bytes has besides its attachment.
func otherBytes(t *testing.T, c *rpc.Client, maxBody int) int {
	t.Helper()
	for range 130 { // later calls have identifiers of equal length
		_, err := echoCall(t.Context(), c, "hello")
		must(t, err)
	}
	meta := &pb.Meta{
		Request:      &pb.Request{ServiceName: proto.String("example.EchoService"), MethodName: proto.String("Echo")},
		CompressType: proto.Int32(0), CorrelationId: proto.Int64(200), ContentType: proto.Int32(0), AttachmentSize: proto.Int32(int32(maxBody)),
	}
	return proto.Size(meta) + proto.Size(&echo.EchoRequest{Message: proto.String("hello")})
}

// bytes returns the bytes of a chain in any memory.
func (f *fabric) bytes(t *testing.T, c *chain.Chain) []byte {
	t.Helper()
	if !c.OnDevice() {
		b, err := c.Bytes()
		must(t, err)
		return b
	}
	dst, err := f.dev.AllocHost(c.Len())
	must(t, err)
	defer func() { must(t, f.dev.Free(dst)) }()
	n, err := c.CopyFromGPU(t.Context(), mem.All(dst), c.Len(), 0)
	if err != nil || n != c.Len() {
		t.Fatalf("copied %d of %d bytes: %v", n, c.Len(), err)
	}
	return bytes.Clone(dst.Bytes())
}

// Many calls at a time, of different lengths, by one connection and by several.
func TestConcurrentCallsByRDMA(t *testing.T) {
	for _, mode := range []rpc.Connections{rpc.Single, rpc.Pooled, rpc.Short} {
		f := newFabric(t)
		sr, cr := f.open(t, true, nil), f.open(t, false, nil)
		_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
		client := newClient(t, addr, rpc.ClientOptions{RDMA: cr, Connections: mode})
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				for k := range 12 {
					n := (i*12 + k) * (i*12 + k) * 20
					want, text := random(uint64(n), n), strings.Repeat("m", n/50)
					var got chain.Chain
					m, err := echoCall(t.Context(), client, text, rpc.WithAttachment(chain.OfBytes(bytes.Clone(want))), rpc.ReceiveAttachment(&got))
					if err != nil || m != text {
						t.Errorf("%d bytes: %v", n, err)
						return
					}
					if b, err := got.Bytes(); err != nil || !bytes.Equal(b, want) {
						t.Errorf("%d bytes differ: %v", n, err)
					}
					got.Release()
				}
			})
		}
		group.Wait()
	}
}

// Both sides can be without RDMA, or without memory for it, and the client can refuse after the
// server has offered it: calls then use TCP, on the same connection.
func TestRDMAFallsBack(t *testing.T) {
	for _, version := range []int{2, 3} {
		testFallback(t, newFabric(t), version)
	}
}

func testFallback(t *testing.T, f *fabric, version int) {
	t.Helper()
	change := func(o *rpc.RDMAOptions) { o.HelloVersion = version }
	short := func(o *rpc.RDMAOptions) { o.HelloVersion, o.MaxRegions, o.RegionBytes = version, 1, 64<<10 } // 8 blocks for 16 receives
	sr, cr := f.open(t, false, change), f.open(t, false, change)
	for name, x := range map[string]struct{ server, client *rpc.RDMA }{
		"a server without RDMA": {nil, cr}, "a server without memory": {f.open(t, false, short), cr},
		"a client without RDMA": {sr, nil}, "a client without memory": {sr, f.open(t, false, short)},
	} {
		before := cr.Stats()
		s, addr := serve(t, rpc.ServerOptions{RDMA: x.server}, echoAttachments(t, nil))
		client := newClient(t, addr, rpc.ClientOptions{RDMA: x.client})
		for range 3 {
			if m, err := echoCall(t.Context(), client, "hello"); err != nil || m != "hello" {
				t.Errorf("%s: %q, %v", name, m, err)
			}
		}
		if n := s.Stats().Connections; n != 1 {
			t.Errorf("%s: %d connections", name, n)
		}
		if after := cr.Stats(); x.client == cr && (after.Connected != before.Connected || after.Refused != before.Refused+1) {
			t.Errorf("%s: %+v", name, after)
		}
		r := f.alloc(t, nil, random(1, 100))
		b, err := chain.NewRegistered(mem.All(r), nil)
		must(t, err)
		c := new(chain.Chain)
		c.AppendBlock(b, 100)
		if _, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(c)); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("%s: device memory over TCP: %v", name, err)
		}
		must(t, client.Close())
	}
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	conn, _ := f.rawHello(t, addr, handshake.Version(version))
	_, err := conn.Write(handshake.Ack(false))
	must(t, err)
	request, _ := rawRequest(t, 200, []byte("attachment"))
	time.Sleep(20 * time.Millisecond) // a server of brpc would close if the request were there with the acknowledgement
	_, err = conn.Write(request)
	must(t, err)
	h, _, err := frame.NewReader(conn, frame.Limits{Body: 1 << 20, Meta: 1 << 20, Stall: testkit.Patience()}).Next()
	if err != nil || h.Kind != frame.Message || sr.Stats().Refused != 1 {
		t.Errorf("a client that refuses: %+v, %v, %+v", h, err, sr.Stats())
	}
}

// rawHello connects, sends a hello and returns the valid answer.
func (f *fabric) rawHello(t *testing.T, addr string, v handshake.Version) (net.Conn, handshake.Hello) {
	t.Helper()
	port, err := rdma.FindPort(f.nic(t).Device(), rdma.PortOptions{})
	must(t, err)
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	h := handshake.Hello{Version: v, BlockBytes: 8192, SendQueue: 16, RecvQueue: 16, GID: port.GID.GID, QPNum: 1}
	b, err := h.Append(nil)
	must(t, err)
	_, err = conn.Write(b)
	must(t, err)
	h, err = handshake.Read(conn)
	must(t, err)
	return conn, h
}

// User-owned device memory is sent without a copy, alone or with host memory, and is not released
// before it was sent. Memory that is not registered is refused, and the connection stays.
func TestSendFromDeviceMemory(t *testing.T) {
	f := newFabric(t)
	sr, nic := f.open(t, true, nil), f.nic(t)
	want := random(1, 200_000)
	r, foreign := f.alloc(t, nic, want), f.alloc(t, nil, want[:64])
	cr := f.open(t, false, func(o *rpc.RDMAOptions) { o.NIC = nic })
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
	released := make(chan struct{})
	block, err := chain.NewRegistered(mem.All(r), func() { close(released) })
	must(t, err)
	c := chain.OfBytes([]byte("host"))
	c.AppendBlock(block, r.Len())
	c.Append(chain.OfBytes([]byte("more")))
	before := f.dev.within.Load() + f.dev.toHost.Load()
	var got chain.Chain
	_, err = echoCall(t.Context(), client, "hello", rpc.WithAttachment(c), rpc.ReceiveAttachment(&got))
	must(t, err)
	if b, err := got.Bytes(); err != nil || string(b) != "host"+string(want)+"more" {
		t.Errorf("the bytes differ: %v", err)
	}
	got.Release()
	select {
	case <-released:
	case <-time.After(testkit.Patience()):
		t.Error("the memory is not released")
	}
	if n := f.dev.within.Load() + f.dev.toHost.Load() - before; n != 1 { // the message, at the server
		t.Errorf("%d copies", n)
	}
	block, err = chain.NewRegistered(mem.All(foreign), nil)
	must(t, err)
	c = new(chain.Chain)
	c.AppendBlock(block, 64)
	if _, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(c)); rpc.CodeOf(err) != rpc.BadRequest || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("memory that is not registered: %v", err)
	}
	if _, err := echoCall(t.Context(), client, "hello"); err != nil || cr.Stats().Connected != 1 {
		t.Errorf("afterwards: %v", err)
	}
}

// A server that ends in the middle of a message fails the calls in progress. The client connects
// again, and nothing is left.
func TestPeerEndsInMidMessage(t *testing.T) {
	f := newFabric(t)
	sr, cr := f.open(t, true, nil), f.open(t, false, nil)
	began := make(chan struct{}, 100)
	v := echoAttachments(t, func(*rpc.Call) error {
		began <- struct{}{}
		return nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	run := func(l net.Listener) (*rpc.Server, chan error) {
		s, err := rpc.NewServer(rpc.ServerOptions{RDMA: sr})
		must(t, err)
		must(t, s.Register(v))
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		return s, served
	}
	s, served := run(l)
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
	failed := make(chan error, 4)
	for range 4 {
		go func() {
			var err error
			for err == nil {
				_, err = echoCall(context.Background(), client, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, 2<<20))))
			}
			failed <- err
		}()
	}
	for range 5 {
		<-began
	}
	must(t, s.Close())
	must(t, <-served)
	for range 4 {
		if err := <-failed; rpc.CodeOf(err) != rpc.EndOfFile && rpc.CodeOf(err) != rpc.FailedSocket {
			t.Errorf("a call in progress: %v", err)
		}
	}
	s, served = run(listenAgain(t, addr))
	waitFor(t, func() bool {
		m, err := echoCall(t.Context(), client, "hello")
		return err == nil && m == "hello"
	})
	must(t, client.Close())
	must(t, s.Close())
	must(t, <-served)
	returned(t, sr, cr)
}

// returned checks that no memory of closed connections is lent.
func returned(t *testing.T, sides ...*rpc.RDMA) {
	t.Helper()
	for _, r := range sides {
		waitFor(t, func() bool {
			s := r.Stats()
			return s.Receive.Lent+s.Send.Lent == 0 && s.Device.Lent <= 1 // one keeps a region
		})
	}
}

// While no memory is left, calls fail with a code or wait, and later ones succeed on the same
// connection. A server without memory for a connection refuses RDMA.
func TestDefectAbortWithoutMemory(t *testing.T) {
	f := newFabric(t)
	errStep := fmt.Errorf("no more: %w", errdefs.ErrNoMemory)
	var fail bool
	var mu sync.Mutex
	sr := f.open(t, true, func(o *rpc.RDMAOptions) {
		alloc := o.Memory.Alloc
		o.Memory.Alloc = func(n int64) (*mem.Region, error) {
			mu.Lock()
			defer mu.Unlock()
			if fail {
				return nil, errStep
			}
			return alloc(n)
		}
	})
	set := func(to bool) {
		mu.Lock()
		defer mu.Unlock()
		fail = to
	}
	cr := f.open(t, false, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
	long := strings.Repeat("m", 2<<20) // longer than the regions that exist
	_, err := echoCall(t.Context(), client, "hello")
	must(t, err)
	set(true)
	if _, err := echoCall(t.Context(), client, long); rpc.CodeOf(err) != rpc.RDMAMemory {
		t.Errorf("without memory: %v", err)
	}
	if m, err := echoCall(t.Context(), client, "small"); err != nil || m != "small" {
		t.Errorf("a small call: %v", err)
	}
	set(false)
	if m, err := echoCall(t.Context(), client, long); err != nil || m != long || cr.Stats().Connected != 1 {
		t.Errorf("with memory again: %v", err)
	}
}

func TestOpenRDMARefuses(t *testing.T) {
	f := newFabric(t)
	for name, change := range map[string]func(o *rpc.RDMAOptions){
		"no NIC":       func(o *rpc.RDMAOptions) { o.NIC = nil },
		"no memory":    func(o *rpc.RDMAOptions) { o.Memory = mem.ArenaHooks{} },
		"short queue":  func(o *rpc.RDMAOptions) { o.Queue = 15 },
		"short blocks": func(o *rpc.RDMAOptions) { o.BlockBytes = 1023 },
		"version":      func(o *rpc.RDMAOptions) { o.HelloVersion = 4 },
		"no device":    func(o *rpc.RDMAOptions) { o.GPU = new(rpc.GPUOptions) },
	} {
		o := rpc.RDMAOptions{NIC: f.nic(t), Memory: f.memory()}
		change(&o)
		if _, err := rpc.OpenRDMA(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

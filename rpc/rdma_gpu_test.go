package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
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
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	handshake "github.com/kvlane/kvlane/rpc/internal/hello"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// peer is a client of a server with device memory that sends arbitrary bytes.
type peer struct {
	conn net.Conn
	e    *endpoint.Endpoint
	in   *endpoint.Reader
}

// dial connects a peer that receives into host memory.
func (f *fabric) dial(t *testing.T, addr string) *peer {
	t.Helper()
	nic := f.nic(t)
	port, err := rdma.FindPort(nic.Device(), rdma.PortOptions{})
	must(t, err)
	hooks := f.memory()
	hooks.Register = func(r *mem.Region) (uint32, error) {
		if err := nic.Register(rdma.MROptions{Access: rdma.AccessLocalWrite}, r); err != nil {
			return 0, err
		}
		m, err := nic.Acquire(mem.All(r), rdma.AccessLocalWrite)
		if err != nil {
			return 0, err
		}
		defer m.Release()
		return m.Info().LKey, nil
	}
	hooks.Deregister = func(ctx context.Context, r *mem.Region) error { return nic.Unregister(ctx, r) }
	a, err := mem.NewArena(mem.ArenaOptions{BlockBytes: 8 << 10, RegionBytes: 1 << 20, Hooks: hooks})
	must(t, err)
	t.Cleanup(func() { must(t, a.Close(context.Background())) })
	p := new(peer)
	p.conn, err = net.Dial("tcp", addr)
	must(t, err)
	e, refusal, err := endpoint.Dial(t.Context(), p.conn, handshake.V2, &endpoint.Options{
		NIC: nic, Port: port, Receive: a, Send: a, Wrap: chain.NewRegistered, Queue: 16, Stall: testkit.Patience(),
	})
	must(t, errors.Join(refusal, err))
	p.e, p.in = e, endpoint.NewReader(e, frame.Limits{Body: 1 << 20, Meta: 1 << 20, Stall: testkit.Patience()})
	t.Cleanup(func() {
		p.e.Close(io.EOF)
		p.in.Close()
	})
	return p
}

// rawRequest returns an encoded request of exactly n bytes besides its attachment, and its meta's
// length.
func rawRequest(t *testing.T, n int, attachment []byte) (b []byte, meta int) {
	t.Helper()
	m := &pb.Meta{
		Request:       &pb.Request{ServiceName: proto.String("example.EchoService"), MethodName: proto.String("Echo")},
		CorrelationId: proto.Int64(7), AttachmentSize: proto.Int32(int32(len(attachment))),
	}
	head, err := proto.Marshal(m)
	must(t, err)
	for text := n; text >= 0; text-- {
		message, err := proto.Marshal(&echo.EchoRequest{Message: proto.String(string(bytes.Repeat([]byte("m"), text)))})
		must(t, err)
		if frame.HeaderBytes+len(head)+len(message) != n {
			continue
		}
		b = make([]byte, frame.HeaderBytes)
		must(t, frame.Header{Kind: frame.Message, Body: int64(len(head) + len(message) + len(attachment)), Meta: int64(len(head))}.Put(b))
		return append(append(append(b, head...), message...), attachment...), len(head)
	}
	t.Fatalf("no request has %d bytes", n)
	return nil, 0
}

// response reads a response and returns its code and the lengths of its message and attachment.
func (p *peer) response(t *testing.T) (code, message, attachment int) {
	t.Helper()
	_, b, err := p.in.Next()
	must(t, err)
	m := new(pb.Meta)
	must(t, proto.Unmarshal(b, m))
	return int(m.GetResponse().GetErrorCode()), int(p.in.Left()) - int(m.GetAttachmentSize()), int(m.GetAttachmentSize())
}

func (p *peer) send(t *testing.T, b []byte) {
	t.Helper()
	must(t, p.e.Send([]endpoint.Piece{{Bytes: b}}))
}

// Messages around the length of the prefetch make the promised number of copies: one if header,
// meta and message fit, and one more for a longer message, and for a longer meta.
func TestCopiesOfAMessageInDeviceMemory(t *testing.T) { testCopies(t, newFabric(t)) }

func testCopies(t *testing.T, f *fabric) {
	t.Helper()
	sr := f.open(t, true, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	p := f.dial(t, addr)
	for _, c := range []struct{ bytes, attachment, copies int }{
		{200, 0, 1}, {511, 0, 1}, {512, 0, 1}, {513, 0, 2}, {4096, 0, 2}, {511, 100_000, 1}, {512, 100_000, 1}, {513, 100_000, 2}, {100_000, 5, 2},
	} {
		b, _ := rawRequest(t, c.bytes, random(1, c.attachment))
		before := f.dev.toHost.Load()
		flushes := f.dev.flushes.Load()
		p.send(t, b)
		code, _, attachment := p.response(t)
		if n := int(f.dev.toHost.Load() - before); n != c.copies || code != 0 || attachment != c.attachment || f.dev.flushes.Load() == flushes {
			t.Errorf("%+v: %d copies, code %d, attachment of %d", c, n, code, attachment)
		}
	}
	if n := f.dev.within.Load() + f.dev.toDevice.Load(); n != 0 {
		t.Errorf("%d copies within or to the device", n)
	}
}

// A message whose header arrives in pieces is prefetched once, in all blocks that have arrived. A
// partial message is not prefetched again.
func TestDefectPartialMessagePrefetchedAgain(t *testing.T) { testSplitHeaders(t, newFabric(t)) }

func testSplitHeaders(t *testing.T, f *fabric) {
	t.Helper()
	sr := f.open(t, true, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	p := f.dial(t, addr)
	b, meta := rawRequest(t, 400, random(1, 1000))
	for _, split := range []struct {
		at     []int // lengths of the pieces; the rest follows
		copies int64
	}{
		{[]int{frame.HeaderBytes}, 3},                         // header, meta, message
		{[]int{frame.HeaderBytes + meta}, 2},                  // header with meta, message
		{[]int{frame.HeaderBytes + meta, 10, 10, 10, 10}, 2},  // likewise
		{[]int{frame.HeaderBytes + 1, 1, 1, 1, meta + 40}, 3}, // header, meta, message
		{[]int{450}, 1},     // all that is needed
		{[]int{5, 4, 3}, 3}, // the header of three blocks by one call
	} {
		before := f.dev.toHost.Load()
		at := 0
		for i, n := range split.at {
			p.send(t, b[at:at+n])
			at += n
			if at >= frame.HeaderBytes && i == len(split.at)-1 || at >= frame.HeaderBytes && at-n < frame.HeaderBytes {
				waitFor(t, func() bool { return f.dev.toHost.Load() > before })
			}
		}
		time.Sleep(20 * time.Millisecond)
		p.send(t, b[at:])
		if code, _, attachment := p.response(t); code != 0 || attachment != 1000 {
			t.Errorf("%v: code %d", split.at, code)
		}
		if n := f.dev.toHost.Load() - before; n != split.copies {
			t.Errorf("%v: %d copies, not %d", split.at, n, split.copies)
		}
	}
}

// Other frames than messages end a connection with device memory: no other parser gets its bytes.
func TestDefectOtherParsersOnDeviceMemory(t *testing.T) {
	f := newFabric(t)
	sr := f.open(t, true, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	for _, magic := range []string{"STRM", "HTTP", "RDMA"} {
		p := f.dial(t, addr)
		p.send(t, []byte(magic+"\x00\x00\x00\x04\x00\x00\x00\x00data"))
		if _, _, err := p.in.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", magic, err)
		}
	}
}

// A wrong attachment_size fails the call and ends its processing. The next one succeeds.
func TestDefectContinuesAfterAttachmentTooLarge(t *testing.T) {
	f := newFabric(t)
	sr := f.open(t, true, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, func(c *rpc.Call) error {
		if c.Attachment.Len() == 5 {
			t.Error("the handler ran for a request with a wrong length")
		}
		return nil
	}))
	p := f.dial(t, addr)
	good, meta := rawRequest(t, 100, random(1, 20))
	m := new(pb.Meta)
	must(t, proto.Unmarshal(good[frame.HeaderBytes:frame.HeaderBytes+meta], m))
	m.AttachmentSize = proto.Int32(200)
	head, err := proto.Marshal(m)
	must(t, err)
	rest := good[frame.HeaderBytes+meta:]
	bad := make([]byte, frame.HeaderBytes)
	must(t, frame.Header{Kind: frame.Message, Body: int64(len(head) + len(rest)), Meta: int64(len(head))}.Put(bad))
	p.send(t, append(append(bad, head...), rest...))
	if code, _, _ := p.response(t); code != int(rpc.BadRequest) {
		t.Errorf("code %d", code)
	}
	p.send(t, good)
	if code, _, attachment := p.response(t); code != 0 || attachment != 20 {
		t.Errorf("the next request: code %d", code)
	}
}

// CopyFromGPU copies any range to pinned and device memory, and reports short copies as short.
func TestDefectShortCopiesReportedFull(t *testing.T) {
	f := newFabric(t)
	sr, cr := f.open(t, true, nil), f.open(t, false, nil)
	want := random(1, 300_000)
	pinned, err := f.dev.AllocHost(200_000)
	must(t, err)
	defer func() { must(t, f.dev.Free(pinned)) }()
	onGPU := f.alloc(t, nil, make([]byte, 200_000))
	look := func(c *rpc.Call) error {
		a := c.Attachment
		if !a.OnDevice() {
			t.Error("the attachment is not on the device")
		}
		before := f.dev.toHost.Load()
		for _, x := range []struct{ dst, n, pos, copied int64 }{
			{200_000, 100, 0, 100}, {200_000, 200_000, 65_000, 200_000}, {50, 100, 1, 50}, {200_000, 200_000, 299_999, 1}, {10, 5, 300_000, 0}, {0, 5, 0, 0},
		} {
			for _, r := range []*mem.Region{pinned, onGPU} {
				dst := mem.Extent{Region: r, Len: x.dst}
				n, err := a.CopyFromGPU(t.Context(), dst, x.n, x.pos)
				if err != nil || n != x.copied {
					t.Errorf("%+v to %s: %d, %v", x, r.Kind(), n, err)
				}
				got := dst.Bytes()
				if got == nil && n > 0 {
					got = f.read(t, dst)
				}
				if !bytes.Equal(got[:n], want[x.pos:x.pos+n]) {
					t.Errorf("%+v to %s: the bytes differ", x, r.Kind())
				}
			}
		}
		if n := f.dev.toHost.Load() - before; n != 4 {
			t.Errorf("%d copies to the host", n)
		}
		for _, x := range [][2]int64{{1, -1}, {-1, 0}, {1, 300_001}} {
			if _, err := a.CopyFromGPU(t.Context(), mem.All(pinned), x[0], x[1]); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%v: %v", x, err)
			}
		}
		if _, err := a.CopyFromGPU(t.Context(), mem.Extent{Region: pinned, Off: 1, Len: pinned.Len()}, 1, 0); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("outside of the memory: %v", err)
		}
		if a.Len() != 300_000 {
			t.Errorf("%d bytes are left", a.Len())
		}
		return nil
	}
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, look))
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
	if _, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(bytes.Clone(want)))); err != nil {
		t.Error(err)
	}
}

// A hello has the length of the device's blocks on a connection that receives into them.
func TestDefectHostBlockSizeForDeviceBlocks(t *testing.T) {
	f := newFabric(t)
	sr := f.open(t, true, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	for _, v := range []handshake.Version{handshake.V2, handshake.V3} {
		if _, h := f.rawHello(t, addr, v); h.BlockBytes != 64<<10 {
			t.Errorf("version %d: blocks of %d", v, h.BlockBytes)
		}
	}
}

package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

const echoMethod = "example.EchoService/Echo"

// newClient returns a client and closes it when the test ends. A connection may take more than the
// default of DialTimeout where NICs are emulated.
func newClient(t *testing.T, addr string, o rpc.ClientOptions) *rpc.Client {
	t.Helper()
	if o.DialTimeout == 0 {
		o.DialTimeout = testkit.Patience()
	}
	c, err := rpc.NewClient(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// echoCall calls Echo and returns the response.
func echoCall(ctx context.Context, c *rpc.Client, message string, options ...rpc.CallOption) (string, error) {
	out := new(echo.EchoResponse)
	err := c.Call(ctx, echoMethod, &echo.EchoRequest{Message: proto.String(message)}, out, options...)
	return out.GetMessage(), err
}

// startHolding starts a server whose calls with the message HOLD last until release is called, or
// their context ends.
func startHolding(t *testing.T, o rpc.ServerOptions) (s *rpc.Server, addr string, release func()) {
	t.Helper()
	released := make(chan struct{})
	o.Interceptors = append(o.Interceptors, func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
		if m, ok := in.(*echo.EchoRequest); ok && m.GetMessage() == "HOLD" {
			select {
			case <-released:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return next(ctx, in)
	})
	s, addr = startServer(t, o)
	return s, addr, func() { close(released) }
}

// whileHeld makes a call that is held in the server, and runs f after the server has received it.
func whileHeld(t *testing.T, s *rpc.Server, c *rpc.Client, release, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := echoCall(t.Context(), c, "HOLD")
		done <- err
	}()
	waitFor(t, func() bool { return s.Stats().Calls == 1 })
	f()
	release()
	if err := <-done; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition was not met in time")
		}
	}
}

func TestConcurrencyLimits(t *testing.T) {
	for _, c := range []struct {
		o    rpc.ServerOptions
		text string
	}{
		{rpc.ServerOptions{MaxConcurrency: 1}, "Reached server's max_concurrency=1"},
		{rpc.ServerOptions{MethodConcurrency: map[string]int{echoMethod: 1}}, "Rejected by example.EchoService.Echo's ConcurrencyLimiter, concurrency=2"},
	} {
		s, addr, release := startHolding(t, c.o)
		client := newClient(t, addr, rpc.ClientOptions{})
		whileHeld(t, s, client, release, func() {
			_, err := echoCall(t.Context(), client, "hello")
			if rpc.CodeOf(err) != rpc.LimitReached || !strings.HasSuffix(err.Error(), "[E2004]"+c.text) {
				t.Errorf("a second call: %v", err)
			}
		})
		if _, err := echoCall(t.Context(), client, "hello"); err != nil {
			t.Errorf("after the first call: %v", err)
		}
		if got := s.Stats(); got.Requests != 3 || got.Failed != 1 || got.Rejected != 1 || got.Broken != 0 {
			t.Errorf("%+v", got)
		}
	}
}

// TestShutdown is the captured case raw-logoff: the server starts to shut down during a call. A
// second request on the same connection is refused, the call ends normally, and then the connection
// is closed.
func TestShutdown(t *testing.T) {
	s, addr, release := startHolding(t, rpc.ServerOptions{})
	client := newClient(t, addr, rpc.ClientOptions{})
	stopped := make(chan error, 1)
	whileHeld(t, s, client, release, func() {
		go func() { stopped <- s.Shutdown(t.Context()) }()
		waitFor(t, func() bool {
			_, err := echoCall(t.Context(), client, "hello")
			return rpc.CodeOf(err) == rpc.LogOff && strings.HasSuffix(err.Error(), "[E2003]Server is stopping")
		})
	})
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := echoCall(t.Context(), client, "hello"); err == nil {
		t.Error("a call of a server that has stopped succeeded")
	}
	if err := s.Shutdown(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("a second shutdown: %v", err)
	}
}

func TestShutdownIsBounded(t *testing.T) {
	s, addr, _ := startHolding(t, rpc.ServerOptions{})
	client := newClient(t, addr, rpc.ClientOptions{})
	done := make(chan error, 1)
	go func() {
		_, err := echoCall(t.Context(), client, "HOLD")
		done <- err
	}()
	waitFor(t, func() bool { return s.Stats().Calls == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown during a call: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("a call succeeded after the server was closed")
	}
}

// request returns a hand-made frame with the service and correlation id 7.
func request(message []byte, meta ...byte) []byte {
	head := append([]byte("\x0a\x1b\x0a\x13example.EchoService\x12\x04Echo\x20\x07"), meta...)
	b := append([]byte("PRPC"), make([]byte, 8)...)
	binary.BigEndian.PutUint32(b[4:], uint32(len(head)+len(message)))
	binary.BigEndian.PutUint32(b[8:], uint32(len(head)))
	return append(append(b, head...), message...)
}

var hello = []byte("\x0a\x05hello")

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	return conn
}

// TestOvercrowded is the captured case raw-overcrowded: requests are refused while a client does
// not read. When it reads again, all replies arrive.
func TestOvercrowded(t *testing.T) {
	s, addr := startServer(t, rpc.ServerOptions{MaxUnsentBytes: 1 << 20})
	conn := dial(t, addr)
	const requests = 24
	big := request(append(bytes.Clone(hello), make([]byte, 1<<20)...), append([]byte{0x28}, binary.AppendUvarint(nil, 1<<20)...)...)
	for i := range requests {
		if _, err := conn.Write(big); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return s.Stats().Requests > int64(i) })
		time.Sleep(5 * time.Millisecond) // so that calls do not overtake each other
	}
	refused := 0
	for range requests {
		switch r := nextReply(t, conn); rpc.Code(r.meta.GetResponse().GetErrorCode()) {
		case rpc.OK:
			if len(r.data) != len(hello)+1<<20 {
				t.Fatalf("%d bytes", len(r.data))
			}
		case rpc.Overcrowded:
			refused++
		default:
			t.Fatal(r.meta)
		}
	}
	if refused == 0 || refused == requests {
		t.Errorf("%d of %d requests were refused", refused, requests)
	}
	if _, err := conn.Write(request(hello)); err != nil || nextReply(t, conn).meta.GetResponse().GetErrorCode() != 0 {
		t.Errorf("after all was read: %v", err)
	}
}

func TestSlowRequestEndsTheConnection(t *testing.T) {
	s, addr := startServer(t, rpc.ServerOptions{Stall: 100 * time.Millisecond})
	conn := dial(t, addr)
	frame := request(append(bytes.Clone(hello), make([]byte, 100<<10)...))
	began := time.Now()
	for i := range frame { // one byte at a time: within the limit for a single byte, but below the minimum rate
		if _, err := conn.Write(frame[i : i+1]); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("open for %v", d)
	}
	waitFor(t, func() bool { return s.Stats().Connections == 0 && s.Stats().Broken == 1 })
	// An idle connection has no limit.
	idle := dial(t, addr)
	time.Sleep(300 * time.Millisecond)
	if _, err := idle.Write(request(hello)); err != nil || nextReply(t, idle).meta.GetResponse().GetErrorCode() != 0 {
		t.Errorf("after a pause between requests: %v", err)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	_, addr := startServer(t, rpc.ServerOptions{MaxBodyBytes: 1 << 20})
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	message := append([]byte{0x0a}, binary.AppendUvarint(nil, 2<<20)...)
	if _, err := w.Write(append(message, make([]byte, 2<<20)...)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, addr)
	for _, r := range [][]byte{
		request(bomb.Bytes(), 0x18, 2),
		request([]byte("\xff\xff\xff\x07\x00"), 0x18, 1), // snappy that declares 16 MiB
		request([]byte("\x80\x80\x10\x00"), 0x18, 1),     // snappy of 4 bytes that declares 256 KiB
	} {
		if _, err := conn.Write(r); err != nil {
			t.Fatal(err)
		}
		if got := nextReply(t, conn); rpc.Code(got.meta.GetResponse().GetErrorCode()) != rpc.BadRequest {
			t.Error(got.meta)
		}
	}
}

func TestLimitsOfFrames(t *testing.T) {
	s, addr := startServer(t, rpc.ServerOptions{MaxBodyBytes: 1000, MaxMetaBytes: 100})
	for _, c := range []struct {
		frame []byte
		open  bool
	}{
		{request(append([]byte("\x0a\x86\x07"), make([]byte, 902)...)), true},
		{request(make([]byte, 1000)), false},
		{request(hello, append([]byte{0x3a, 100}, make([]byte, 100)...)...), false},
	} {
		conn := dial(t, addr)
		if _, err := conn.Write(c.frame); err != nil {
			t.Fatal(err)
		}
		if c.open {
			if r := nextReply(t, conn); r.meta.GetResponse().GetErrorCode() != 0 {
				t.Error(r.meta)
			}
		} else if !isClosed(t, conn) {
			t.Errorf("open after a frame of %d bytes", len(c.frame))
		}
	}
	if got := s.Stats(); got.Broken != 2 {
		t.Errorf("%+v", got)
	}
}

func TestDeadlineOfTheRequest(t *testing.T) {
	_, addr, release := startHolding(t, rpc.ServerOptions{})
	client := newClient(t, addr, rpc.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := echoCall(ctx, client, "HOLD", rpc.SendTimeout()); rpc.CodeOf(err) != rpc.TimedOut && rpc.CodeOf(err) != rpc.Internal {
		t.Errorf("%v", err)
	}
	cancelled, stop := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, stop)
	if _, err := echoCall(cancelled, client, "HOLD"); rpc.CodeOf(err) != rpc.Canceled {
		t.Errorf("%v", err)
	}
	// The connection stays usable, and late responses are dropped.
	hello := func() {
		t.Helper()
		if got, err := echoCall(t.Context(), client, "hello"); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	hello()
	release()
	hello()
}

func TestInterceptors(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(name string) rpc.Interceptor {
		return func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
			mu.Lock()
			order = append(order, name+" "+rpc.FromContext(ctx).Method)
			mu.Unlock()
			if r, ok := in.(*echo.EchoRequest); ok && r.GetMessage() == "refused" {
				return nil, rpc.Errorf(42, "refused")
			}
			return next(ctx, in)
		}
	}
	_, addr := startServer(t, rpc.ServerOptions{Interceptors: []rpc.Interceptor{note("a"), note("b")}})
	client := newClient(t, addr, rpc.ClientOptions{})
	if _, err := echoCall(t.Context(), client, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := echoCall(t.Context(), client, "refused"); rpc.CodeOf(err) != 42 {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(order, ", "); got != "a Echo, b Echo, a Echo" {
		t.Error(got)
	}
}

func TestAttachments(t *testing.T) {
	_, addr := startServer(t, rpc.ServerOptions{})
	for _, kind := range []rpc.Connections{rpc.Single, rpc.Pooled, rpc.Short} {
		client := newClient(t, addr, rpc.ClientOptions{Connections: kind})
		var group sync.WaitGroup
		for g := range 8 {
			group.Go(func() {
				for i := range 10 {
					want := bytes.Repeat([]byte{byte(g), byte(i), 7}, (g+1)*i*5000/3)
					freed := make(chan struct{})
					sent, got := new(chain.Chain), new(chain.Chain)
					sent.AppendBlock(chain.NewHost(want, func() { close(freed) }), int64(len(want)))
					text, err := echoCall(t.Context(), client, "crcatt", rpc.WithAttachment(sent), rpc.ReceiveAttachment(got), rpc.WithChecksum(rpc.CRC32CAll))
					b, copyErr := got.Bytes()
					got.Release()
					if err != nil || copyErr != nil || text != "crcatt" || !bytes.Equal(b, want) {
						t.Errorf("%d bytes of %d, %v, %v", len(b), len(want), err, copyErr)
					}
					<-freed
				}
			})
		}
		group.Wait()
	}
}

func TestWrongOptions(t *testing.T) {
	for _, o := range []rpc.ServerOptions{{MaxConcurrency: -1}, {MaxBodyBytes: 2 << 30, MemoryBytes: 1 << 30}, {Stall: -1}} {
		if _, err := rpc.NewServer(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, addr := range []string{"", "localhost", "a:b:c"} {
		if _, err := rpc.NewClient(addr, rpc.ClientOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := echo.File_rpc_echo_echo_proto.Services().Get(0)
	for _, handlers := range []map[string]rpc.Handler{nil, {"Echo": capturedEcho, "Other": capturedEcho}} {
		if _, err := rpc.NewService(d, handlers); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	v, err := rpc.NewService(d, map[string]rpc.Handler{"Echo": capturedEcho})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Register(v); err != nil {
		t.Fatal(err)
	}
	if err := s.Register(v); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("a second registration: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// listenAgain listens at the address of an earlier listener. A connection of another process may
// have its port meanwhile.
func listenAgain(t *testing.T, addr string) (l net.Listener) {
	t.Helper()
	waitFor(t, func() (ok bool) {
		var err error
		if l, err = net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
			must(t, err)
		}
		return err == nil
	})
	return l
}

func TestReconnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close() // no server listens now
	client := newClient(t, addr, rpc.ClientOptions{MinBackoff: 20 * time.Millisecond})
	if _, err := echoCall(t.Context(), client, "hello"); rpc.CodeOf(err) != rpc.FailedSocket {
		t.Fatal(err)
	}
	waitFor(t, func() bool { // until a call during the delay
		_, err := echoCall(t.Context(), client, "hello")
		if rpc.CodeOf(err) != rpc.FailedSocket {
			t.Fatal(err)
		}
		return strings.Contains(err.Error(), "next attempt in")
	})
	for range 3 { // the server starts and stops
		l := listenAgain(t, addr)
		s, err := rpc.NewServer(rpc.ServerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{"Echo": capturedEcho})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Register(v); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		waitFor(t, func() bool { _, err := echoCall(t.Context(), client, "hello"); return err == nil })
		if err := errors.Join(s.Close(), <-done); err != nil {
			t.Error(err)
		}
	}
}

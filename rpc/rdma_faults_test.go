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

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
)

// newFaultyFabric returns a fabric of a simulated device, and the plan of the device's faults.
func newFaultyFabric(t *testing.T) (*fabric, *fault.Plan) {
	t.Helper()
	f := newFabric(t)
	f.dev.plan = fault.New(1)
	return f, f.dev.plan
}

// isRDMAFailure reports whether a call failed because of RDMA: with a code of its own, or with the
// end of the connection.
func isRDMAFailure(err error) bool {
	switch rpc.CodeOf(err) {
	case rpc.RDMAFailed, rpc.RDMAMemory, rpc.EndOfFile, rpc.FailedSocket, rpc.Overcrowded:
		return true
	default:
		return false
	}
}

// The failure of any operation of the device, and of the registration of any region, fails calls
// with a code. Later calls succeed, and nothing is left.
func TestDeviceOperationNFails(t *testing.T) {
	long, attached := strings.Repeat("m", 30_000), random(1, 5<<20) // more than a region of the device
	every := 1
	if testkit.Race {
		every = 5
	}
	for _, op := range []string{opOpenQueue, opCallCopy, opRecord, opCopies, opRegister} {
		t.Run(op, func(t *testing.T) {
			for n := 0; n < 40; n += every {
				f, plan := newFaultyFabric(t)
				dst, err := f.dev.AllocHost(int64(len(attached)))
				must(t, err)
				sr, cr := f.open(t, true, nil), f.open(t, true, nil)
				s, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
				client := newClient(t, addr, rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
				plan.Add(fault.Nth(op, int(plan.Seen(op))+n))
				failed := 0
				for range 4 {
					if err := echoOnDevice(t.Context(), client, long, attached, dst); err != nil {
						failed++
						time.Sleep(5 * time.Millisecond) // longer than the client's backoff
						if !isRDMAFailure(err) {
							t.Errorf("operation %d: %v", n, err)
						}
					}
				}
				if failed > 1 {
					t.Errorf("operation %d: %d calls failed", n, failed)
				}
				must(t, client.Close())
				must(t, s.Close())
				returned(t, sr, cr)
				must(t, f.dev.Free(dst))
				if plan.Injected() == 0 {
					if n == 0 {
						t.Error("nothing was injected")
					}
					return
				}
			}
			t.Error("a fault was injected in each run")
		})
	}
}

// echoOnDevice echoes a message and an attachment, and compares both. The attachment that comes
// back is copied to dst if it is in device memory.
func echoOnDevice(ctx context.Context, c *rpc.Client, message string, attached []byte, dst *mem.Region) error {
	var got chain.Chain
	defer got.Release()
	m, err := echoCall(ctx, c, message, rpc.WithAttachment(chain.OfBytes(attached)), rpc.ReceiveAttachment(&got))
	if err != nil {
		return err
	}
	b := dst.Bytes()
	if got.OnDevice() {
		_, err = got.CopyFromGPU(ctx, mem.All(dst), got.Len(), 0)
	} else {
		b, err = got.Bytes()
	}
	if err == nil && (m != message || !bytes.Equal(b, attached)) {
		err = errors.New("the bytes differ")
	}
	return err
}

// While a device is lost, its connections end and new ones use TCP. Calls of a connection with host
// memory go on. RDMA is used again when the device works.
func TestDeviceLost(t *testing.T) {
	f, plan := newFaultyFabric(t)
	sr, hr, cr := f.open(t, true, nil), f.open(t, false, nil), f.open(t, false, nil)
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
	_, hostAddr := serve(t, rpc.ServerOptions{RDMA: hr}, echoAttachments(t, nil))
	o := rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}
	client, host := newClient(t, addr, o), newClient(t, hostAddr, o)
	calls := func(c *rpc.Client) {
		t.Helper()
		if m, err := echoCall(t.Context(), c, "small", rpc.WithAttachment(chain.OfBytes([]byte("x")))); err != nil || m != "small" {
			t.Errorf("%q, %v", m, err)
		}
	}
	calls(client)
	calls(host)
	plan.Add(fault.After(opCopies, int(plan.Seen(opCopies))))
	if _, err := echoCall(t.Context(), client, "small"); !isRDMAFailure(err) {
		t.Errorf("without the device: %v", err)
	}
	time.Sleep(5 * time.Millisecond) // longer than the client's backoff
	for range 5 {
		calls(client) // by TCP
		calls(host)
	}
	if s, h := sr.Stats(), hr.Stats(); s.Connected != 1 || s.Refused != 1 || h.Connected != 1 {
		t.Errorf("%+v, %+v", s, h)
	}
	plan.Clear()
	again := newClient(t, addr, o)
	calls(again)
	if s := sr.Stats(); s.Connected != 2 {
		t.Errorf("with the device again: %+v", s)
	}
}

// answersSmall waits until a small call succeeds. A busy machine may need more than a short stall
// time for a handshake.
func answersSmall(t *testing.T, client *rpc.Client) {
	t.Helper()
	waitFor(t, func() bool {
		m, err := echoCall(t.Context(), client, "small", rpc.WithAttachment(chain.OfBytes([]byte("x"))))
		return err == nil && m == "small"
	})
}

// While all device memory is in use, the calls of its connections wait, and fail after the stall
// time. Calls of other memory go on. With memory again, calls of a new connection succeed.
func TestDeviceMemoryExhausted(t *testing.T) {
	for _, wait := range []bool{true, false} {
		f := newFabric(t)
		small := func(o *rpc.RDMAOptions) {
			if o.GPU != nil {
				o.GPU.RegionBytes, o.GPU.MaxRegions = 32*64<<10, 1 // 31 blocks or 32, of which a connection posts 16
			}
			if !wait {
				o.Stall = 300 * time.Millisecond
			}
		}
		sr, hr := f.open(t, true, small), f.open(t, false, nil)
		cr, hcr := f.open(t, false, small), f.open(t, false, nil)
		var mu sync.Mutex
		var kept []*chain.Chain
		v := echoAttachments(t, func(c *rpc.Call) error {
			if a := c.Attachment; a.Len() > 1 {
				held, err := a.Slice(0, a.Len())
				must(t, err)
				mu.Lock()
				defer mu.Unlock()
				kept = append(kept, held)
			}
			return nil
		})
		_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, v)
		_, hostAddr := serve(t, rpc.ServerOptions{RDMA: hr}, echoAttachments(t, nil))
		client := newClient(t, addr, rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		host := newClient(t, hostAddr, rpc.ClientOptions{RDMA: hcr})
		answersSmall(t, client)
		done := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 10 && err == nil; i++ { // more than all memory
				_, err = echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, 300_000))))
			}
			done <- err
		}()
		// On a busy machine the stall time may pass between two looks at the statistics.
		waitFor(t, func() bool { return sr.Stats().Device.Waiting > 0 || len(done) > 0 })
		for range 20 {
			if m, err := echoCall(t.Context(), host, "small"); err != nil || m != "small" {
				t.Errorf("a call of host memory: %v", err)
			}
		}
		release := func() {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range kept {
				c.Release()
			}
			kept = nil
		}
		for ended := false; !ended; {
			if wait {
				release()
			}
			select {
			case err := <-done:
				if ended = true; (err == nil) != wait || err != nil && !isRDMAFailure(err) {
					t.Errorf("wait=%t: %v", wait, err)
				}
			case <-time.After(10 * time.Millisecond):
			}
		}
		release()
		answersSmall(t, client)
		must(t, client.Close())
		waitFor(t, func() bool { return sr.Stats().Device.Lent == 1 })
		release()
	}
}

// Copies that hang end with the context of their caller, or with the stall time of a connection.
// Their memory stays in use until they end, and then returns.
func TestDefectMemoryOfHangingCopies(t *testing.T) {
	f, plan := newFaultyFabric(t)
	sr, cr := f.open(t, true, func(o *rpc.RDMAOptions) { o.GPU.Queues = 2 }), f.open(t, false, nil)
	dst, err := f.dev.AllocHost(100_000)
	must(t, err)
	defer func() { must(t, f.dev.Free(dst)) }()
	var pending *chain.PendingError
	hang := func() { plan.Add(fault.Nth(opCopies, int(plan.Seen(opCopies))).Stall()) }
	v := echoAttachments(t, func(c *rpc.Call) error {
		if c.Attachment.Len() <= 1 {
			return nil
		}
		before := plan.Injected()
		hang()
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			waitFor(t, func() bool { return plan.Injected() > before })
			cancel(context.DeadlineExceeded)
		}()
		_, err := c.Attachment.CopyFromGPU(ctx, mem.All(dst), c.Attachment.Len(), 0)
		if !errors.As(err, &pending) || !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a copy that hangs: %v", err)
		}
		return err
	})
	s, addr := serve(t, rpc.ServerOptions{RDMA: sr, Stall: 500 * time.Millisecond}, v)
	o := rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}
	client := newClient(t, addr, o)
	answersSmall(t, client)
	if _, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(random(1, 100_000)))); rpc.CodeOf(err) != rpc.RDMAFailed {
		t.Errorf("the call: %v", err)
	}
	if m, err := echoCall(t.Context(), client, "small"); err != nil || m != "small" {
		t.Errorf("by the other queue: %v", err)
	}
	hang() // the start of the next request
	began := time.Now()
	if _, err := echoCall(t.Context(), client, "hello"); !isRDMAFailure(err) {
		t.Errorf("a request whose copy hangs: %v", err)
	}
	if took := time.Since(began); took > testkit.Patience()/2 {
		t.Errorf("it took %v", took)
	}
	answersSmall(t, client) // by TCP, without queues
	must(t, client.Close())
	must(t, s.Close())
	waitFor(t, func() bool { return sr.Stats().Receive.Lent == 0 })
	// The attachment has two or three blocks of 64 KiB, the request one, and one keeps a region.
	time.Sleep(50 * time.Millisecond)
	if n := sr.Stats().Device.Lent; n < 4 || n > 5 {
		t.Errorf("%d blocks of the device are in use, not those of two copies", n)
	}
	select {
	case <-pending.Done:
		t.Error("the copy is reported as ended while it hangs")
	default:
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := sr.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close during the copies: %v", err)
	}
	plan.Release()
	<-pending.Done
	waitFor(t, func() bool { return sr.Close(t.Context()) == nil })
}

// A copy that the end of its connection interrupts is no failure of the device: the call returns
// FailedSocket. The memory returns when the copy has ended.
func TestDefectEndDuringACopyIsADeviceFailure(t *testing.T) {
	for copies := range 2 { // of the response, before the one that is interrupted
		for name, end := range map[string]func(client *rpc.Client, conn net.Conn) error{
			"close": func(client *rpc.Client, _ net.Conn) error { return client.Close() },
			"failure": func(_ *rpc.Client, conn net.Conn) error {
				_, err := conn.Write([]byte("x")) // no bytes are expected
				return err
			},
		} {
			t.Run(fmt.Sprintf("%s after %d copies", name, copies), func(t *testing.T) {
				f, plan := newFaultyFabric(t)
				sr, cr := f.open(t, false, nil), f.open(t, true, nil)
				l := &recordingListener{listen(t, "tcp", "127.0.0.1:0"), make(chan net.Conn, 10)}
				s, addr := serveOn(t, l, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
				client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
				must(t, client.Connect(t.Context()))
				plan.Add(fault.Nth(opCopies, int(plan.Seen(opCopies))+copies).Stall())
				failed := make(chan error, 1)
				go func() {
					_, err := echoCall(t.Context(), client, strings.Repeat("m", 30_000)) // needs two copies
					failed <- err
				}()
				must(t, plan.Await(t.Context(), 1))
				must(t, end(client, <-l.conns))
				if err := <-failed; rpc.CodeOf(err) != rpc.FailedSocket {
					t.Errorf("the call: %v", err)
				}
				plan.Release()
				must(t, client.Close())
				must(t, s.Close())
				returned(t, sr, cr)
				waitFor(t, func() bool { return cr.Close(t.Context()) == nil }) // the copy's memory on the host returns after its queue
			})
		}
	}
}

// A response that has arrived is delivered after the server has shut down, although its copy to the
// host ends later.
func TestDefectResponseIsLostInAShutdown(t *testing.T) {
	long := strings.Repeat("m", 30_000) // needs two copies
	for copies := range 2 {             // of the response, before the one that is slow
		f, plan := newFaultyFabric(t)
		sr, cr := f.open(t, false, nil), f.open(t, true, nil)
		s, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, nil))
		client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
		must(t, client.Connect(t.Context()))
		plan.Add(fault.Nth(opCopies, int(plan.Seen(opCopies))+copies).Stall())
		done := make(chan error, 1)
		go func() {
			m, err := echoCall(t.Context(), client, long)
			if err == nil && m != long {
				err = errors.New("the bytes differ")
			}
			done <- err
		}()
		must(t, plan.Await(t.Context(), 1))
		must(t, s.Shutdown(t.Context()))
		time.Sleep(20 * time.Millisecond) // until the client notices
		plan.Release()
		if err := <-done; err != nil {
			t.Errorf("after %d copies: %v", copies, err)
		}
		must(t, client.Close())
		returned(t, sr, cr)
	}
}

// recordingListener sends accepted connections to conns.
type recordingListener struct {
	net.Listener
	conns chan net.Conn
}

func (l *recordingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c
	}
	return c, err
}

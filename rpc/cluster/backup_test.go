package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/cluster"
)

// A backup request answers for a server that hangs. The hanging attempt is cancelled, and the
// server is ejected.
func TestBackupRequest(t *testing.T) {
	list := nodes(t, 2)
	list[0].set(hangs)
	c := newClient(t, of(list...), cluster.Options{Idempotent: anyMethod, BackupAfter: 10 * time.Millisecond, RetryShare: 1, MinEject: time.Hour})
	for i := range 20 {
		freed := make(chan struct{})
		want := bytes.Repeat([]byte{byte(i)}, 100_000)
		sent, got := new(chain.Chain), new(chain.Chain)
		sent.AppendBlock(chain.NewHost(want, func() { close(freed) }), int64(len(want)))
		at, err := ask(t.Context(), c, rpc.WithAttachment(sent), rpc.ReceiveAttachment(got), rpc.WithChecksum(rpc.CRC32CAll))
		b, copyErr := got.Bytes()
		got.Release()
		if err != nil || copyErr != nil || at != list[1].address || !bytes.Equal(b, want) || sent.Len() != 0 {
			t.Fatalf("%q, %d bytes, %v, %v", at, len(b), err, copyErr)
		}
		select {
		case <-freed: // by the cancelled attempt too
		case <-time.After(testkit.Patience()):
			t.Fatal("the attachment is not released")
		}
	}
	waitFor(t, func() bool { return statsOf(c, list[0]).InFlight == 0 })
	s := c.Stats()
	if slow := statsOf(c, list[0]); s.Backups < 3 || s.BackupWins != 3 || s.Retries != 0 || !slow.Ejected || slow.Failures != 3 ||
		!strings.Contains(slow.Why.Error(), "before a backup request") {
		t.Errorf("%+v", s)
	}
}

// A call gets no backup request if its method is not idempotent, if it is answered in time, if
// there is no other server, or if the budget is used up.
func TestNoBackupRequest(t *testing.T) {
	list := nodes(t, 2)
	c := newClient(t, of(list...), cluster.Options{Idempotent: func(m string) bool { return m != method }, BackupAfter: time.Millisecond})
	alone := newClient(t, of(list[0]), cluster.Options{Idempotent: anyMethod, BackupAfter: time.Millisecond})
	timely := newClient(t, of(list...), cluster.Options{Idempotent: anyMethod, BackupAfter: time.Hour})
	for _, n := range list {
		n.set(func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil })
	}
	for _, c := range []*cluster.Client{c, alone, timely} {
		if _, err := ask(t.Context(), c); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.Backups != 0 {
			t.Errorf("%+v", s)
		}
	}
	bounded := newClient(t, of(list...), cluster.Options{Idempotent: anyMethod, BackupAfter: time.Millisecond, RetryShare: 0.001, Failures: 100})
	for range 15 {
		if _, err := ask(t.Context(), bounded); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, func() bool { s := bounded.Stats().Servers; return s[0].InFlight+s[1].InFlight == 0 })
	if s := bounded.Stats(); s.Backups != 10 || s.Refused < 1 {
		t.Errorf("%+v", s)
	}
}

// A server that is ejected for overload gets no backup requests, although it gets calls if there is
// no other server.
func TestNoBackupRequestToAnOverloadedServer(t *testing.T) {
	list := nodes(t, 2)
	list[0].set(fails(rpc.LimitReached))
	c := newClient(t, of(list...), cluster.Options{Idempotent: anyMethod, BackupAfter: 50 * time.Millisecond, Failures: 1, MinEject: time.Hour})
	for !statsOf(c, list[0]).Ejected {
		if _, err := ask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	before, runs := c.Stats().Backups, list[0].runs.Load()
	list[1].set(func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })
	if at, err := ask(t.Context(), c); err != nil || at != list[1].address {
		t.Errorf("answered by %q, %v", at, err)
	}
	if s := c.Stats(); s.Backups != before || list[0].runs.Load() != runs {
		t.Errorf("%+v", s)
	}
}

// The first attempt fails while its backup request is in progress, which answers the call.
func TestBackupAfterAFailure(t *testing.T) {
	list := nodes(t, 2)
	started := make(chan struct{})
	list[0].set(func(context.Context) error {
		<-started
		return rpc.Errorf(rpc.LimitReached, "too late")
	})
	list[1].set(func(context.Context) error {
		close(started)
		time.Sleep(50 * time.Millisecond)
		return nil
	})
	g := new(group)
	g.set(member(list[0], 1<<16), member(list[1], 1)) // the first call goes to the first server
	c := newClient(t, g, cluster.Options{Idempotent: anyMethod, BackupAfter: 5 * time.Millisecond})
	if at, err := ask(t.Context(), c); err != nil || at != list[1].address {
		t.Errorf("answered by %q, %v", at, err)
	}
	if s := c.Stats(); s.Backups != 1 || s.BackupWins != 1 || s.Retries != 0 || statsOf(c, list[0]).Failures != 1 {
		t.Errorf("%+v", s)
	}
}

// cutter forwards connections to a server, and cuts each one after a number of bytes.
type cutter struct {
	net.Listener
	to    string
	limit int // of both directions together
	group sync.WaitGroup
}

func newCutter(t *testing.T, to string, limit int) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &cutter{Listener: l, to: to, limit: limit}
	c.group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.group.Go(func() { c.forward(conn) })
		}
	})
	return c
}

func (c *cutter) close() {
	_ = c.Close() // Accept returns
	c.group.Wait()
}

// forward copies the bytes of one exchange: the request first, then the response.
func (c *cutter) forward(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer out.Close()
	var group sync.WaitGroup
	var mu sync.Mutex
	left := c.limit
	for _, d := range [][2]net.Conn{{in, out}, {out, in}} {
		group.Go(func() {
			b := make([]byte, 1)
			for {
				if _, err := io.ReadFull(d[0], b); err != nil {
					break
				}
				mu.Lock()
				left--
				cut := left < 0
				mu.Unlock()
				if cut {
					break
				}
				if _, err := d[1].Write(b); err != nil {
					break
				}
			}
			_ = in.Close()
			_ = out.Close()
		})
	}
	group.Wait()
}

// The connection fails after each number of bytes of the exchange. A call that is not idempotent
// never runs twice, and an idempotent one succeeds at the other server.
func TestConnectionFailsAtEachByte(t *testing.T) {
	list := nodes(t, 2)
	runs := func() int64 { return list[0].runs.Load() + list[1].runs.Load() }
	for _, idempotent := range []bool{false, true} {
		first := 0 // the least number of bytes with which a call succeeds at the first server
		for limit := 0; first == 0; limit++ {
			cut := newCutter(t, list[0].address, limit)
			bad := member(list[0], 1<<16) // the first call goes there
			bad.Address = cut.Addr().String()
			g := new(group)
			g.set(bad, member(list[1], 1))
			o := cluster.Options{MinEject: time.Hour, RetryShare: 1}
			if idempotent {
				o.Idempotent = anyMethod
			}
			c, err := cluster.New(g, o)
			must(t, err)
			before := runs()
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
			at, err := ask(ctx, c)
			cancel()
			switch {
			case err == nil && at == list[0].address:
				first = limit
			case err == nil && !idempotent && runs() != before+1:
				t.Errorf("cut after %d bytes: %d executions", limit, runs()-before)
			case err != nil && idempotent:
				t.Errorf("cut after %d bytes: %v", limit, err)
			case err != nil && (runs() > before+1 || errors.Is(err, rpc.ErrNotSent)):
				t.Errorf("cut after %d bytes: %d executions, %v", limit, runs()-before, err)
			}
			if limit > 10_000 {
				t.Fatal("no call succeeds")
			}
			must(t, c.Close())
			cut.close()
		}
		t.Logf("idempotent=%t: the exchange has %d bytes", idempotent, first)
	}
}

// The error of a call that a server has received is not ErrNotSent, although the last attempt was
// not sent.
func TestErrorAfterAnExecution(t *testing.T) {
	list := nodes(t, 2)
	list[0].set(func(ctx context.Context) error { rpc.FromContext(ctx).CloseConnection(); return nil })
	list[1].stop()
	g := new(group)
	g.set(member(list[0], 1<<16), member(list[1], 1)) // the first call goes to the first server
	c := newClient(t, g, cluster.Options{Idempotent: anyMethod, MaxAttempts: 2, MinEject: time.Hour})
	_, err := ask(t.Context(), c)
	if runs := list[0].runs.Load(); runs != 1 || rpc.CodeOf(err) != rpc.FailedSocket || errors.Is(err, rpc.ErrNotSent) || !strings.Contains(err.Error(), list[1].address) {
		t.Errorf("%d executions, %v", runs, err)
	}
}

// A server refuses the first n requests, for n = 0, 1, 2, ... The call succeeds as long as it has
// attempts.
func TestFirstAttemptsAreRefused(t *testing.T) {
	for _, code := range []rpc.Code{rpc.LogOff, rpc.LimitReached, rpc.Overcrowded, rpc.Internal, 42} {
		for n := range 5 {
			list := nodes(t, 1)
			list[0].set(func(context.Context) error {
				if list[0].runs.Load() <= int64(n) {
					return rpc.Errorf(code, "refused")
				}
				return nil
			})
			c := newClient(t, of(list...), cluster.Options{MinEject: time.Hour, MaxAttempts: 4, Failures: 100})
			_, err := ask(t.Context(), c)
			allowed := 4 // attempts
			if code != rpc.LimitReached && code != rpc.Overcrowded {
				allowed = 1 // other codes are answers, and a server that shuts down is not tried again
			}
			if n < allowed && err != nil || n >= allowed && rpc.CodeOf(err) != code {
				t.Errorf("code %d, %d refused: %v", code, n, err)
			}
			if runs, want := list[0].runs.Load(), int64(min(n+1, allowed)); runs != want {
				t.Errorf("code %d, %d refused: %d requests, want %d", code, n, runs, want)
			}
		}
	}
}

package mooncake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// A Remote and a Server move small and large blocks in both directions, in both versions, over one
// lane and over several.
func TestBothEnds(t *testing.T) {
	const n = 24 << 20
	for _, version := range []int{1, 2} {
		for _, lanes := range []int{1, 3} {
			t.Run(fmt.Sprintf("version %d, %d lanes", version, lanes), func(t *testing.T) {
				s, there := serve(t, n, func(o *mooncake.ServerOptions) { o.Version = version })
				r, here := open(t, s.Segment().Name, n, func(o *mooncake.Options) { o.Lanes = lanes })
				pattern(here.Bytes(), byte(version))
				var writes, reads []mooncake.Task
				at := uint64(0)
				for i := 0; at < n; i++ {
					length := min([]uint64{1, 24, 4096, 65536, 40000, 9 << 20}[i%6], n-at)
					writes = append(writes, mooncake.Task{Op: transfer.Write, Local: addr(here) + at, Remote: addr(there) + at, Length: length})
					reads = append(reads, mooncake.Task{Op: transfer.Read, Local: addr(here) + at, Remote: addr(there) + at, Length: length})
					at += length
				}
				must(t, do(t, r, writes...))
				if !bytes.Equal(here.Bytes(), there.Bytes()) {
					t.Fatal("the written bytes differ")
				}
				pattern(there.Bytes(), 99)
				must(t, do(t, r, reads...))
				if !bytes.Equal(here.Bytes(), there.Bytes()) {
					t.Fatal("the bytes read differ")
				}
				if st := s.Stats(); st.WrittenBytes != n || st.Rejected+st.Failed+st.Malformed != 0 {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}

// Concurrent batches share lanes without mixing bytes.
func TestManyBatchesAtOnce(t *testing.T) {
	const users, block, rounds = 8, 10000, 20
	s, there := serve(t, users*block, nil)
	r, here := open(t, s.Segment().Name, 2*users*block, nil)
	errs := make(chan error)
	for u := range users {
		go func() {
			out, in := here.Bytes()[2*u*block:][:block], here.Bytes()[(2*u+1)*block:][:block]
			local, remote := addr(here)+uint64(2*u*block), addr(there)+uint64(u*block)
			for round := range rounds {
				pattern(out, byte(u*31+round))
				for _, task := range []mooncake.Task{
					{Op: transfer.Write, Local: local, Remote: remote, Length: block},
					{Op: transfer.Read, Local: local + block, Remote: remote, Length: block},
				} {
					b, err := r.Submit(t.Context(), []mooncake.Task{task})
					if err == nil {
						err = b.Wait(t.Context())
					}
					if err != nil {
						errs <- err
						return
					}
				}
				if !bytes.Equal(out, in) {
					errs <- fmt.Errorf("goroutine %d read wrong bytes in round %d", u, round)
					return
				}
			}
			errs <- nil
		}()
	}
	for range users {
		must(t, <-errs)
	}
}

// An invalid task is refused at once. A refusal by the target affects only its task.
func TestWrongTasks(t *testing.T) {
	const n = 1 << 16
	s, there := serve(t, n, nil)
	r, here := open(t, s.Segment().Name, n, nil)
	good := mooncake.Task{Op: transfer.Write, Local: addr(here), Remote: addr(there), Length: 4096}
	for _, fail := range []struct {
		name   string
		change func(*mooncake.Task)
	}{
		{"no length", func(t *mooncake.Task) { t.Length = 0 }},
		{"operation", func(t *mooncake.Task) { t.Op = 7 }},
		{"local address", func(t *mooncake.Task) { t.Local-- }},
		{"remote address", func(t *mooncake.Task) { t.Remote += n }},
		{"remote end", func(t *mooncake.Task) { t.Remote += n - 4095 }},
		{"remote unset", func(t *mooncake.Task) { t.Remote = 0 }},
		{"remote too large", func(t *mooncake.Task) { t.Remote = ^uint64(0) - 100 }},
		// This case is last: if such a length were accepted, splitting it would exhaust memory.
		{"length overflow", func(t *mooncake.Task) { t.Length = ^uint64(0) }},
	} {
		task := good
		fail.change(&task)
		if _, err := r.Submit(t.Context(), []mooncake.Task{good, task}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Fatalf("%s: %v, want ErrInvalid", fail.name, err)
		}
	}
	if _, err := r.Submit(t.Context(), nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no task: %v", err)
	}
	if st := s.Stats(); st.Rejected+st.Reads+st.Writes != 0 {
		t.Errorf("something was sent: %+v", st)
	}
}

// A target refuses requests for a buffer that it has removed, and serves the rest of the batch.
func TestRejectionIsOfOneTask(t *testing.T) {
	const n = 16 << 20
	m, kept := registered(t, n)
	gone := hostRegion(t, n)
	must(t, m.Add("cpu:1", gone))
	s, err := mooncake.Serve(within(t), mooncake.ServerOptions{Name: "127.0.0.1:0", Memory: m})
	must(t, err)
	defer s.Close(within(t))
	for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
		r, here := open(t, s.Segment().Name, n, func(o *mooncake.Options) { o.Lanes = 1 })
		pattern(here.Bytes(), 3)
		pattern(kept.Bytes(), 3)
		clear(gone.Bytes())
		must(t, m.Remove(within(t), gone))
		var tasks []mooncake.Task
		for i := range uint64(16) {
			to := addr(kept)
			if i == 5 {
				to = addr(gone)
			}
			tasks = append(tasks, mooncake.Task{Op: op, Local: addr(here) + i<<20, Remote: to + i<<20, Length: 1 << 20})
		}
		b, err := r.Submit(within(t), tasks)
		must(t, err)
		if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", op, err)
		}
		for i := range b.Len() {
			want := transfer.StatusCompleted
			if i == 5 {
				want = transfer.StatusFailed
			}
			if got := b.Status(i); got != want {
				t.Errorf("%s: task %d is %s, want %s", op, i, got, want)
			}
		}
		if !bytes.Equal(gone.Bytes(), make([]byte, n)) {
			t.Error("memory that was withdrawn is written")
		}
		must(t, m.Add("cpu:1", gone))
	}
	if st := s.Stats(); st.Rejected != 2 {
		t.Errorf("%+v", st)
	}
}

// silent starts a target that accepts connections and sends nothing.
func silent(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	conns, done := make(chan net.Conn, 100), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		close(conns)
		for c := range conns {
			c.Close()
		}
	})
	return l.Addr().String()
}

// fixed is a directory with one segment.
func fixed(t *testing.T, dataAddr string, version int, buffers ...mooncake.Buffer) mooncake.Directory {
	t.Helper()
	host, port, err := net.SplitHostPort(dataAddr)
	must(t, err)
	text := fmt.Sprintf(`{"name":"x","protocol":"tcp","tcp_data_host":%q,"tcp_data_port":%s,"tcp_proto_version":%d,"buffers":[`, host, port, version)
	for i, b := range buffers {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(`{"name":%q,"addr":%d,"length":%d}`, b.Name, b.Addr, b.Length)
	}
	return directory(t, map[string]string{"mooncake/ram/x": text + "]}"})
}

// If the target is silent, every task ends at the batch's deadline, and its memory may be reused.
func TestDeadlineEndsABatch(t *testing.T) {
	address := silent(t)
	d := fixed(t, address, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 64 << 20})
	for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
		r, here := open(t, "x", 64<<20, func(o *mooncake.Options) { o.Directory = d })
		var b *mooncake.Batch
		var err error
		testkit.Grow(t, 500*time.Millisecond, func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			b, err = r.Submit(ctx, []mooncake.Task{{Op: op, Local: addr(here), Remote: 4096, Length: 64 << 20}, {Op: op, Local: addr(here), Remote: 4096, Length: 1}})
			return err
		})
		if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrCanceled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", op, err)
		}
		for i := range b.Len() {
			if b.Status(i) != transfer.StatusTimeout {
				t.Errorf("%s: task %d is %s", op, i, b.Status(i))
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		b, err = r.Submit(ctx, []mooncake.Task{{Op: op, Local: addr(here), Remote: 4096, Length: 1}})
		must(t, err)
		stop()
		if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrCanceled) || b.Status(0) != transfer.StatusCanceled {
			t.Errorf("%s: %v, %s", op, err, b.Status(0))
		}
	}
}

// Without a deadline, a batch on a stalled target fails after StallTime.
func TestStallEndsABatch(t *testing.T) {
	address := silent(t)
	d := fixed(t, address, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 64 << 20})
	r, here := open(t, "x", 64<<20, func(o *mooncake.Options) { o.Directory, o.StallTime = d, 100*time.Millisecond })
	for _, length := range []uint64{1, 64 << 20} {
		if err := do(t, r, mooncake.Task{Op: transfer.Write, Local: addr(here), Remote: 4096, Length: length}); !errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("%d bytes: %v, want ErrBroken", length, err)
		}
	}
}

// Batches fail while the target is stopped. When a new target with the same name runs, they succeed
// with the same Remote.
func TestTargetRestarts(t *testing.T) {
	m, there := registered(t, 1<<16)
	s, err := mooncake.Serve(within(t), mooncake.ServerOptions{Name: "127.0.0.1:0", Memory: m})
	must(t, err)
	r, here := open(t, s.Segment().Name, 1<<16, nil)
	task := mooncake.Task{Op: transfer.Write, Local: addr(here), Remote: addr(there), Length: 1 << 16}
	must(t, do(t, r, task))
	for range 3 {
		name := s.Segment().Name
		must(t, s.Close(within(t)))
		if err := do(t, r, task); !errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("without a target: %v, want ErrBroken", err)
		}
		// Another process may be using the port for an outgoing connection.
		eventually(t, "its address is free", func() bool {
			s, err = mooncake.Serve(within(t), mooncake.ServerOptions{Name: name, Memory: m})
			return err == nil
		})
		eventually(t, "a batch goes again", func() bool { return do(t, r, task) == nil })
	}
	must(t, s.Close(within(t)))
	must(t, r.Close())
	must(t, r.Close())
	if _, err := r.Submit(t.Context(), []mooncake.Task{task}); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Close fails running batches, whose memory may then be reused.
func TestCloseFailsBatches(t *testing.T) {
	address := silent(t)
	d := fixed(t, address, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 64 << 20})
	r, here := open(t, "x", 64<<20, func(o *mooncake.Options) { o.Directory = d })
	b, err := r.Submit(t.Context(), []mooncake.Task{{Op: transfer.Write, Local: addr(here), Remote: 4096, Length: 64 << 20}})
	must(t, err)
	must(t, r.Close())
	if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrClosed) || b.Status(0) != transfer.StatusFailed {
		t.Errorf("%v, %s", err, b.Status(0))
	}
}

// Remove waits until a peer has finished reading the memory.
func TestRemoveWaitsForTransfers(t *testing.T) {
	const n = 64 << 20 // more than the kernel buffers
	m, there := registered(t, n)
	s, err := mooncake.Serve(within(t), mooncake.ServerOptions{Name: "127.0.0.1:0", Memory: m})
	must(t, err)
	defer s.Close(within(t))
	c := talk(t, dataAddr(s))
	_, err = c.Write(request(n, addr(there), 0x80))
	must(t, err)
	take(t, c, 8)
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Remove(now, there); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("remove memory that is being read: %v, want ErrBusy", err)
	}
	if err := m.Check(addr(there), 1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("check of removed memory: %v", err)
	}
	take(t, c, n)
	must(t, m.Remove(within(t), there))
	if err := m.Remove(within(t), there); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("remove the memory again: %v", err)
	}
}

package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

// rdmaPair returns a pair with NICs on both sides, and local and remote memory of n bytes.
func rdmaPair(t *testing.T, nics *rail.NICs, o Options, n int64) (p *pair, here, there *mem.Region) {
	t.Helper()
	here, there = host(t, n), host(t, n)
	o.NICs = nics
	p = newPair(t, o, o, there)
	p.local(t, here)
	pattern(here.Bytes(), 1)
	return p, here, there
}

func write(local *mem.Region) Task { return Task{Op: Write, Local: mem.All(local)} }

// wantPath checks that a batch used only the given path, and whether it reports a fallback.
func wantPath(t *testing.T, b *Batch, path Path, fellBack bool) {
	t.Helper()
	c := b.Completion()
	for other, n := range c.Bytes {
		if (n > 0) != (Path(other) == path) {
			t.Errorf("%d bytes used path %s, want %s: %v", n, Path(other), path, c.Fallback)
		}
	}
	if (c.Fallback != nil) != fellBack {
		t.Errorf("fallback reason: %v", c.Fallback)
	}
}

// queues returns the number of queue pairs of the segment for each pair of NICs.
func (p *pair) queues() map[nicPair]int {
	by := make(map[nicPair]int)
	peer := p.remote.p
	peer.mu.Lock()
	defer peer.mu.Unlock()
	for _, l := range peer.conns {
		if l.to == p.remote {
			by[l.nics]++
		}
	}
	return by
}

// TestRDMANICs checks that queue pairs use all NICs of both sides, even if queues hold few requests
// and requests few pieces.
func TestRDMANICs(t *testing.T) {
	const n = 1 << 20
	one := faultyNICs(t, fault.New(1), 3, 2, "soft0", "soft1", "soft2")
	p, here, there := rdmaPair(t, one, Options{PartBytes: 16 << 10, Lanes: 5}, n)
	var tasks []Task
	for i := range int64(n / 1024) { // adjacent at the target only
		tasks = append(tasks, Task{Op: Write, Local: mem.Extent{Region: here, Off: (i*37%1024)*1024 + 7, Len: 1000}, Offset: i * 1000})
	}
	b := p.do(t, tasks...)
	wantPath(t, b, PathRDMA, false)
	for i := range tasks {
		same(t, "written", there.Bytes()[tasks[i].Offset:][:1000], tasks[i].Local.Bytes())
	}
	if by := p.queues(); len(by) != 3 || by[nicPair{0, 0}] != 2 || by[nicPair{2, 2}] != 1 {
		t.Errorf("queue pairs by NICs: %v", by)
	}
	if d := p.remote.Describe(); len(d.NICs) != 3 || len(d.Buffers[0].Keys) != 3 {
		t.Errorf("described as %+v", d)
	}
	must(t, p.remote.RDMA(0))
}

// TestRDMALocalMemory checks that unregistered local memory is sent over sockets and reported as a
// fallback. If one side has no NICs, sockets are not a fallback.
func TestRDMALocalMemory(t *testing.T) {
	const n = 1 << 16
	nics := softNICs(t, nil, 1)
	p, here, there := rdmaPair(t, nics, Options{}, n)
	b := p.do(t, write(here))
	wantPath(t, b, PathRDMA, false)
	must(t, p.initiator.local.Unregister(t.Context(), here))
	pattern(here.Bytes(), 2)
	b = p.do(t, write(here))
	wantPath(t, b, PathTCP, true)
	same(t, "written by sockets", there.Bytes(), here.Bytes())
	wantErr(t, "why", b.Completion().Fallback, errdefs.ErrNotFound)
	b = p.submit(t, SubmitOptions{Path: PathRDMA}, write(here))
	wantErr(t, "by rdma alone", wait(t, b), errdefs.ErrNotFound)
	p.local(t, here)
	b = p.do(t, write(here))
	wantPath(t, b, PathRDMA, false)
	if s := p.initiator.Stats(); s.Fallbacks != 1 {
		t.Errorf("stats %+v", s)
	}

	bare := newPair(t, Options{}, Options{NICs: nics}, there)
	b = bare.do(t, write(here))
	wantPath(t, b, PathTCP, false)
	wantErr(t, "a target without NICs", bare.remote.RDMA(0), errdefs.ErrNotSupported)
	b = bare.submit(t, SubmitOptions{Path: PathRDMA}, write(here))
	wantErr(t, "by rdma alone", wait(t, b), errdefs.ErrNotSupported)
}

// TestRDMAImportedMemory checks that NICs do not pin memory of another process, because its owner
// may withdraw it. This holds for local memory and for memory of a segment.
func TestRDMAImportedMemory(t *testing.T) {
	p, here, there := rdmaPair(t, softNICs(t, nil, 1), Options{}, 1<<16)
	live := mem.NewOrigin(func() error { return nil })
	theirs := func(r *mem.Region) *mem.Region {
		x, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: r.Len(), CPU: r.CPU(), Bytes: r.Bytes(), Origin: live})
		must(t, err)
		return x
	}
	wantErr(t, "imported memory", p.initiator.RegisterLocal(theirs(here)), errdefs.ErrNotSupported)
	off, err := p.segment.Register(t.Context(), theirs(there), RegisterOptions{})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	wantErr(t, "imported memory", p.remote.RDMA(off), errdefs.ErrNotSupported)
	b := p.do(t, Task{Op: Write, Local: mem.All(here), Offset: off})
	wantPath(t, b, PathTCP, false)
	same(t, "written", there.Bytes(), here.Bytes())
}

// TestRDMAKeysOfAnotherSegment checks that a queue pair of one segment cannot access another
// segment of the same engine, even with valid keys.
func TestRDMAKeysOfAnotherSegment(t *testing.T) { keysOfAnotherSegment(t, softNICs(t, nil, 1)) }

func keysOfAnotherSegment(t *testing.T, nics *rail.NICs) {
	const n = 1 << 16
	p, here, there := rdmaPair(t, nics, Options{Lanes: 1}, n)
	secret := host(t, n)
	other, err := p.target.Publish(t.Context(), "other")
	must(t, err)
	_, err = other.Register(t.Context(), secret, RegisterOptions{})
	must(t, err)
	pattern(secret.Bytes(), 9)
	before := append([]byte(nil), secret.Bytes()...)
	beside := host(t, n)
	_, err = p.segment.Register(t.Context(), beside, RegisterOptions{})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	own := p.remote.buffers[0].Keys
	p.remote.buffers[0].Keys = other.Describe().Buffers[0].Keys
	for _, op := range []Op{Write, Read} {
		b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathRDMA}, Task{Op: op, Local: mem.All(here)})
		err = wait(t, b)
		wantErr(t, "keys of another segment", err, errdefs.ErrInvalid)
		t.Logf("%s: %v", op, err)
		same(t, "the other segment", secret.Bytes(), before)
	}
	if here.Bytes()[0] == secret.Bytes()[0] {
		t.Error("a queue pair read another segment")
	}
	// A concurrent task succeeds.
	b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathRDMA}, write(here), Task{Op: Write, Local: mem.All(here), Offset: n})
	wantErr(t, "keys of another segment", wait(t, b), errdefs.ErrInvalid)
	if r := b.Task(1); r.Status != StatusCompleted || r.Path != PathRDMA {
		t.Errorf("the task beside it: %+v", r)
	}
	same(t, "written beside it", beside.Bytes(), here.Bytes())
	// A batch that may use other paths succeeds over sockets.
	b = p.do(t, write(here))
	wantPath(t, b, PathTCP, true)
	same(t, "written", there.Bytes(), here.Bytes())
	same(t, "the other segment", secret.Bytes(), before)
	p.remote.buffers[0].Keys = own
	b = p.do(t, write(here))
	wantPath(t, b, PathRDMA, false)
	must(t, other.Close(t.Context()))
}

// TestRDMAUnregister checks that unregistered memory is no longer accessible, and that a segment
// with open queue pairs can be closed.
func TestRDMAUnregister(t *testing.T) {
	const n = 1 << 16
	p, here, there := rdmaPair(t, softNICs(t, nil, 1), Options{}, n)
	p.do(t, write(here))
	must(t, p.segment.Unregister(t.Context(), 0))
	pattern(there.Bytes(), 9)
	before := append([]byte(nil), there.Bytes()...)
	b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathRDMA}, write(here))
	wantErr(t, "by rdma alone", wait(t, b), errdefs.ErrInvalid)
	b = p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	wantErr(t, "by any path", wait(t, b), errdefs.ErrNotFound)
	same(t, "what was unregistered", there.Bytes(), before)
	off, err := p.segment.Register(t.Context(), there, RegisterOptions{})
	must(t, err)
	_, err = p.segment.Register(t.Context(), there, RegisterOptions{})
	wantErr(t, "registered twice", err, errdefs.ErrExists)
	must(t, p.remote.Refresh(t.Context()))
	b = p.do(t, Task{Op: Write, Local: mem.All(here), Offset: off})
	wantPath(t, b, PathRDMA, false)
	must(t, p.segment.Close(t.Context()))
	until(t, "queue pairs are left", func() bool { return p.target.Stats().Connections <= 2 })
}

// TestRDMABreaks checks that queue pairs that break during a batch are fenced and that their parts
// use sockets. After the backoff of their NICs, batches use new queue pairs without a restart. If
// only NICs are allowed, the parts are retried.
func TestRDMABreaks(t *testing.T) {
	for _, op := range []Op{Write, Read} {
		for _, path := range []Path{PathNone, PathRDMA} {
			t.Run(fmt.Sprintf("%s by %s", op, path), func(t *testing.T) {
				const n, part = 1 << 20, 32 << 10
				plan := fault.New(1)
				p, here, there := rdmaPair(t, faultyNICs(t, plan, 16, 4, "soft0"), Options{PartBytes: part, Lanes: 2}, n)
				p.do(t, write(here))
				pattern(there.Bytes(), 3)
				pattern(here.Bytes(), 2)
				name := soft.OpWrite
				if op == Read {
					name = soft.OpRead
				}
				seen := int(plan.Seen(name))
				plan.Add(fault.Nth(name, seen+5).Fail(nil))
				plan.Add(fault.Nth(name, seen+9).Partial(nil))
				b := p.submit(t, SubmitOptions{Timeout: patience, Path: path}, Task{Op: op, Local: mem.All(here)})
				must(t, wait(t, b))
				same(t, op.String(), here.Bytes(), there.Bytes())
				c, s := b.Completion(), p.initiator.Stats()
				if plan.Injected() == 0 || c.Retries == 0 || op == Write && s.Fences == 0 || path == PathRDMA != (c.Bytes[PathRDMA] == n) {
					t.Errorf("completion %+v, stats %+v", c, s)
				}
				if path == PathNone && (c.Bytes[PathTCP] == 0 || c.Bytes[PathRDMA] == 0 || c.Fallback == nil || s.Fallbacks == 0) {
					t.Errorf("completion %+v, stats %+v", c, s)
				}
				until(t, "it never goes by rdma again", func() bool { return p.do(t, write(here)).Completion().Bytes[PathRDMA] == n })
			})
		}
	}
}

// TestRDMAFenceBeforeAnotherTry checks the fence of a queue pair that only the initiator has given
// up. The target keeps its end until the fence. When a part is sent over sockets, that end must be
// closed.
func TestRDMAFenceBeforeAnotherTry(t *testing.T) {
	const n = 1 << 20
	plan := fault.New(1)
	nics := faultyNICs(t, plan, 16, 4, "soft0")
	here, there := host(t, n), host(t, n)
	p := &pair{target: engine(t, Options{NICs: nics}), initiator: engine(t, Options{NICs: nics, Lanes: 1})}
	x := newProxy(t, p.target.Address())
	p.publish(t, there)
	p.open(t, x.addr())
	p.local(t, here)
	p.do(t, write(here))
	queues := func() (k int) {
		s := &p.target.served
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.all {
			if c.segment != nil {
				k++
			}
		}
		return k
	}
	if queues() != 1 {
		t.Fatalf("%d queue pairs", queues())
	}
	pattern(here.Bytes(), 1)
	plan.Add(fault.After(soft.OpWrite, int(plan.Seen(soft.OpWrite))).Stall())
	b := p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	must(t, plan.Await(t.Context(), 1))
	x.set(func() { x.hideEnd = true })
	x.cut(func(l *link) bool { return l.queue }, false)
	must(t, wait(t, b))
	if k := queues(); k != 0 || p.initiator.Stats().Fences != 1 {
		t.Errorf("%d queue pairs are left at the target, %+v", k, p.initiator.Stats())
	}
	wantPath(t, b, PathTCP, true)
	pattern(there.Bytes(), 9)
	want := append([]byte(nil), there.Bytes()...)
	plan.Release()
	plan.Clear()
	time.Sleep(50 * time.Millisecond)
	same(t, "after late bytes", there.Bytes(), want)
	must(t, p.segment.Close(short(t))) // Close would wait for an open queue pair
}

// TestRDMASilence checks that a batch on a silent queue pair ends within its timeout, and that the
// queue pair is closed after Options.Stall.
func TestRDMASilence(t *testing.T) {
	const n = 1 << 20
	plan := fault.New(1)
	p, here, there := rdmaPair(t, faultyNICs(t, plan, 16, 4, "soft0"), Options{Stall: 300 * time.Millisecond, Lanes: 1}, n)
	p.do(t, write(here))
	plan.Add(fault.After(soft.OpWrite, int(plan.Seen(soft.OpWrite))).Stall())
	// The timeout of the batch is shorter than the stall limit.
	b := p.submit(t, SubmitOptions{Timeout: 100 * time.Millisecond, Path: PathRDMA}, write(here))
	wantErr(t, "a batch that stands still", wait(t, b), context.DeadlineExceeded)
	b = p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	must(t, wait(t, b))
	wantPath(t, b, PathTCP, true)
	same(t, "written", there.Bytes(), here.Bytes())
	// After a canceled read the caller may reuse the local memory.
	plan.Add(fault.After(soft.OpRead, int(plan.Seen(soft.OpRead))).Stall())
	b = p.submit(t, SubmitOptions{Timeout: 300 * time.Millisecond, Path: PathRDMA}, Task{Op: Read, Local: mem.All(here)})
	wantErr(t, "a read that stands still", wait(t, b), context.DeadlineExceeded)
	pattern(here.Bytes(), 9)
	before := append([]byte(nil), here.Bytes()...)
	plan.Release()
	time.Sleep(50 * time.Millisecond)
	same(t, "after late bytes", here.Bytes(), before)
	plan.Clear()
}

// TestRDMAWritesAreReadBack checks that a write completes only after a read from the target
// confirms it.
func TestRDMAWritesAreReadBack(t *testing.T) {
	plan := fault.New(1)
	p, here, _ := rdmaPair(t, faultyNICs(t, plan, 16, 4, "soft0"), Options{Lanes: 1}, 1<<16)
	plan.Add(fault.Nth(soft.OpRead, 0).Stall())
	b := p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	must(t, plan.Await(t.Context(), 1))
	time.Sleep(20 * time.Millisecond)
	if s := b.Task(0).Status; s != StatusPending {
		t.Errorf("the task's status is %s", s)
	}
	plan.Release()
	must(t, wait(t, b))
	wantPath(t, b, PathRDMA, false)
}

// FuzzQueue checks that no input of a peer leaves a queue pair open after the end of its
// connection.
func FuzzQueue(f *testing.F) {
	good := connectRequest{Segment: 1, From: rail.Endpoint{QP: 17, GID: make([]byte, 16), MTU: 5}}
	for _, q := range []connectRequest{{}, {Segment: 1, NIC: -1}, {Segment: 1, NIC: 1 << 40, From: good.From}, good} {
		b, err := json.Marshal(q)
		must(f, err)
		f.Add(byte(callConnect), b)
	}
	f.Add(byte(callProbe), []byte("{}"))
	nics := softNICs(f, nil, 1)
	there := host(f, 4096)
	e := engine(f, Options{NICs: nics})
	s, err := e.Publish(f.Context(), "kv")
	must(f, err)
	_, err = s.Register(f.Context(), there, RegisterOptions{})
	must(f, err)
	f.Fuzz(func(t *testing.T, c byte, payload []byte) {
		h := hello{purpose: forQueue, from: e.Identity(), to: e.Identity(), conn: 1}
		in := append(h.encode(), binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))...)
		in = append(append(in, c, 0, 0, 0), payload...)
		x := newServedConn(e, &script{in: bytes.NewReader(in)})
		if err := e.serve(x); err == nil && e.counters.refused.Load() == 0 {
			t.Error("serve ended without an error")
		}
		x.end()
		if len(e.served.conns) != 0 {
			t.Errorf("%d lanes are left", len(e.served.conns))
		}
	})
}

// TestRDMAFaults fails operation N of each verb. Either the failure is reported or the batch
// succeeds, and everything can be closed.
func TestRDMAFaults(t *testing.T) {
	for _, op := range append(rdmatest.Verbs(), soft.OpWrite, soft.OpRead) {
		t.Run(op, func(t *testing.T) {
			for i := 0; ; i++ {
				plan := fault.New(1, fault.Nth(op, i).Fail(nil))
				nics := faultyNICs(t, plan, 8, 2, "soft0")
				withFault(t, nics, plan)
				if plan.Injected() == 0 {
					return
				}
				if i > 200 {
					t.Fatal("a fault is injected in every run")
				}
			}
		})
	}
}

// withFault opens engines, moves a batch and closes everything.
func withFault(t *testing.T, nics *rail.NICs, plan *fault.Plan) {
	t.Helper()
	const n = 64 << 10
	here, there := host(t, n), host(t, n)
	var closes []func(context.Context) error
	defer func() {
		for i := len(closes) - 1; i >= 0; i-- {
			err := closes[i](context.Background())
			if err != nil {
				err = closes[i](context.Background()) // the fault may fail one close
			}
			must(t, err)
		}
	}()
	reported := func(err error) bool {
		t.Helper()
		var f *fault.Error
		if err != nil && !errors.As(err, &f) && plan.Injected() == 0 {
			t.Fatal(err)
		}
		return err != nil
	}
	var engines [2]*Engine
	for i := range engines {
		e, err := Open(Options{NICs: nics, PartBytes: 8 << 10, Lanes: 2})
		if reported(err) {
			return
		}
		engines[i] = e
		closes = append(closes, e.Close)
	}
	s, err := engines[0].Publish(t.Context(), "kv")
	must(t, err)
	if _, err := s.Register(t.Context(), there, RegisterOptions{}); reported(err) || reported(engines[1].RegisterLocal(here)) {
		return
	}
	r, err := engines[1].OpenSegment(t.Context(), engines[0].Address()+"/kv")
	must(t, err)
	for _, op := range []Op{Write, Read} {
		pattern(here.Bytes(), byte(op))
		pattern(there.Bytes(), byte(op)+1)
		b, err := engines[1].Submit(t.Context(), []Task{{Op: op, Segment: r, Local: mem.All(here)}}, SubmitOptions{Timeout: patience})
		must(t, err)
		must(t, wait(t, b))
		same(t, op.String(), here.Bytes(), there.Bytes())
		if c := b.Completion(); plan.Injected() == 0 && c.Bytes[PathRDMA] != n {
			t.Errorf("completion %+v", c)
		}
	}
}

// TestRDMAComesAndGoes checks that opening, writing and closing segments leaves no queue pair,
// descriptor or goroutine open.
func TestRDMAComesAndGoes(t *testing.T) {
	const n = 1 << 16
	nics := softNICs(t, nil, 2)
	here, there := host(t, n), host(t, n)
	target, initiator := engine(t, Options{NICs: nics}), engine(t, Options{NICs: nics})
	must(t, initiator.RegisterLocal(here))
	before := currentUsage(t)
	for i := range 100 {
		name := fmt.Sprintf("kv-%d", i)
		s, err := target.Publish(t.Context(), name)
		must(t, err)
		_, err = s.Register(t.Context(), there, RegisterOptions{})
		must(t, err)
		r, err := initiator.OpenSegment(t.Context(), target.Address()+"/"+name)
		must(t, err)
		b, err := initiator.Submit(t.Context(), []Task{{Op: Write, Segment: r, Local: mem.All(here)}}, SubmitOptions{Path: PathRDMA})
		must(t, err)
		must(t, wait(t, b))
		if i%2 == 0 {
			must(t, r.Close())
			must(t, s.Close(t.Context()))
		} else {
			must(t, s.Close(t.Context()))
			must(t, r.Close())
		}
	}
	until(t, "lanes are left", func() bool { return initiator.Stats().Lanes == 0 })
	noMore(t, before)
}

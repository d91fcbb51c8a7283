package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// TestFenceBeforeAnotherTry checks that bytes of a dead connection never arrive after its part was
// sent over another path. The target may reuse its memory when the batch is done.
func TestFenceBeforeAnotherTry(t *testing.T) {
	const n = 4 << 20
	for name, after := range map[string]int64{"before the request": 0, "within the request": 20, "within the bytes": 300_000} {
		t.Run(name, func(t *testing.T) {
			there, here := host(t, n), host(t, n)
			p := &pair{target: engine(t, Options{}), initiator: engine(t, Options{Lanes: 2, PartBytes: 1 << 20})}
			x := newProxy(t, p.target.Address())
			p.publish(t, there)
			p.open(t, x.addr())
			x.set(func() { x.holdAfter = after })
			pattern(here.Bytes(), 1)
			b := p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Write, Local: mem.All(here)})
			until(t, "nothing is held", func() bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.heldBytes > 100_000
			})
			x.set(func() { x.holdAfter = -1 })
			x.cut(func(l *link) bool { return l.data }, false)
			must(t, wait(t, b))
			same(t, "written", there.Bytes(), here.Bytes())
			if c := b.Completion(); c.Retries == 0 || p.initiator.Stats().Fences == 0 {
				t.Errorf("completion %+v, stats %+v", c, p.initiator.Stats())
			}
			// Reuse the memory, and then release the late bytes.
			pattern(there.Bytes(), 9)
			want := append([]byte(nil), there.Bytes()...)
			x.set(func() { x.released = true })
			until(t, "the old connections stay", func() bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.holding == 0 && p.target.Stats().Connections == len(x.links)
			})
			same(t, "after late bytes", there.Bytes(), want)
		})
	}
}

// TestDefectStallIsAFailureOfMemory checks that a part is retried if its connection stalls within
// its bytes, and the rest of them arrives later. The side that receives the bytes has a short stall time.
func TestDefectStallIsAFailureOfMemory(t *testing.T) {
	const n, stall = 1 << 20, 200 * time.Millisecond
	for _, op := range []Op{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			initiator, target := Options{Stall: stall}, Options{}
			if op == Write {
				initiator, target = target, initiator
			}
			there, here := host(t, n), host(t, n)
			p := &pair{target: engine(t, target), initiator: engine(t, initiator)}
			x := newProxy(t, p.target.Address())
			p.publish(t, there)
			until(t, "the segment cannot be opened", func() (ok bool) { // a dial may take longer than Stall on a busy machine
				var err error
				p.remote, err = p.initiator.OpenSegment(t.Context(), x.addr()+"/kv")
				return err == nil
			})
			pattern(there.Bytes(), 1)
			pattern(here.Bytes(), 2)
			x.set(func() {
				x.pause, x.pauseAfter, x.pauseUp = func() { time.Sleep(stall * 3 / 2) }, n/4, op == Write
			})
			b := p.do(t, Task{Op: op, Local: mem.All(here)})
			same(t, "after the stall", here.Bytes(), there.Bytes())
			t.Logf("%d retries", b.Completion().Retries)
		})
	}
}

// TestCutAndRestored checks that batches end within their timeout while the network is cut, and
// work again afterwards without a restart. A completed task stays completed.
func TestCutAndRestored(t *testing.T) {
	for _, how := range []string{"cut", "silent"} {
		t.Run(how, func(t *testing.T) {
			const n, tasks = 2 << 20, 64
			there, here := host(t, n), host(t, n)
			p := &pair{target: engine(t, Options{}), initiator: engine(t, Options{Lanes: 2, PartBytes: 32 << 10, Stall: 500 * time.Millisecond})}
			x := newProxy(t, p.target.Address())
			p.publish(t, there)
			p.open(t, x.addr())
			pattern(here.Bytes(), 1)
			var all []Task
			for i := range int64(tasks) {
				all = append(all, Task{Op: Write, Local: mem.Extent{Region: here, Off: i * n / tasks, Len: n / tasks}, Offset: i * n / tasks})
			}
			p.do(t, all...)
			set := func(on bool) {
				x.set(func() {
					if how == "cut" {
						x.down = on
					} else {
						x.silent = on
					}
				})
				if on && how == "cut" {
					x.cut(func(*link) bool { return true }, true)
				}
			}
			set(true)
			b := p.submit(t, SubmitOptions{Timeout: 1200 * time.Millisecond}, all...)
			err := wait(t, b)
			wantErr(t, "a batch while nothing gets through", err, context.DeadlineExceeded)
			for i := range all {
				if r := b.Task(i); r.Status != StatusTimeout && r.Status != StatusCompleted {
					t.Errorf("task %d: %+v", i, r)
				}
			}
			_, perr := p.remote.Probe(short(t))
			if perr == nil {
				t.Error("a probe succeeded")
			}
			// A running batch continues when the network is restored.
			b = p.submit(t, SubmitOptions{Timeout: patience}, all...)
			time.Sleep(600 * time.Millisecond)
			set(false)
			must(t, wait(t, b))
			clear(there.Bytes())
			p.do(t, all...)
			same(t, "written", there.Bytes(), here.Bytes())
			// Cut the network several times during a batch.
			b = p.submit(t, SubmitOptions{Timeout: patience}, all...)
			done := make([]bool, tasks)
			for range 5 {
				x.cut(func(*link) bool { return true }, true)
				for i := range done {
					s := b.Task(i).Status
					if done[i] && s != StatusCompleted {
						t.Errorf("task %d was completed, and is %s", i, s)
					}
					done[i] = s == StatusCompleted
				}
				time.Sleep(5 * time.Millisecond)
			}
			must(t, wait(t, b))
		})
	}
}

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestSilentConnectionsDelayNoOthers checks that connections that send no request, or a part of
// one, do not delay others.
func TestSilentConnectionsDelayNoOthers(t *testing.T) {
	there, here := host(t, 1<<16), host(t, 1<<16)
	p := newPair(t, Options{Stall: time.Second}, Options{}, there)
	for i := range 20 {
		c := dialRaw(t, p.target.Address())
		h := hello{purpose: forData, from: p.initiator.Identity(), to: p.target.Identity(), conn: uint64(1000 + i)}
		_, err := c.Write(h.encode()[:i*2])
		must(t, err)
	}
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	until(t, "they are kept", func() bool { return p.target.Stats().Connections <= 2 })
}

// TestImportedMemoryIsWithdrawn checks that a batch falls back to sockets and succeeds if the owner
// withdraws imported memory.
func TestImportedMemoryIsWithdrawn(t *testing.T) {
	const n = 1 << 20
	faults := fault.New(1)
	near, far := newGPU(t, sim.Options{Faults: faults}), newGPU(t, sim.Options{Index: 1})
	there := far.alloc(t, n)
	to, from := far.options(), near.options()
	to.Share, from.Importer = shareServer(t), importer(t, near.Device)
	p := newPair(t, to, from)
	_, err := p.segment.Register(t.Context(), there, RegisterOptions{Source: far.sharer()})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	must(t, p.remote.Shared(0))
	here := near.alloc(t, n)
	data := make([]byte, n)
	pattern(data, 1)
	near.store(t, here, data)
	p.segment.mu.Lock()
	export := p.segment.buffers[0].export
	p.segment.mu.Unlock()
	faults.Add(fault.Nth(sim.OpWork, int(faults.Seen(sim.OpWork))).Stall()) // stalls the next copy
	b := p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Write, Local: mem.All(here)})
	must(t, faults.Await(t.Context(), 1))
	closed := make(chan error, 1)
	go func() { closed <- export.Close(t.Context()) }()
	until(t, "nobody tells that the memory is withdrawn", func() bool { return p.remote.Shared(0) != nil })
	faults.Release()
	must(t, <-closed)
	must(t, wait(t, b))
	same(t, "written", far.load(t, there), data)
	if c := b.Completion(); c.Bytes[PathTCP] != n || !errors.Is(c.Fallback, errdefs.ErrLost) || c.Retries != 1 {
		t.Errorf("completion %+v", c)
	}
	wantErr(t, "shared", p.remote.Shared(0), errdefs.ErrLost)
	clear(data)
	near.store(t, here, data)
	b = p.do(t, Task{Op: Write, Local: mem.All(here)})
	if c := b.Completion(); c.Bytes[PathTCP] != n || !errors.Is(c.Fallback, errdefs.ErrLost) {
		t.Errorf("completion %+v", c)
	}
	same(t, "written by sockets", far.load(t, there), data)
}

// TestDefectUnregisterLeavesCopiesUnderWay checks that Unregister waits for the copies of
// importers. Until they end, its error names the processes that may still write.
func TestDefectUnregisterLeavesCopiesUnderWay(t *testing.T) {
	const n = 1 << 20
	faults := fault.New(1)
	near, far := newGPU(t, sim.Options{Faults: faults}), newGPU(t, sim.Options{Index: 1})
	there, here := far.alloc(t, n), near.alloc(t, n)
	to, from := far.options(), near.options()
	to.Share, from.Importer = shareServer(t), importer(t, near.Device)
	p := newPair(t, to, from)
	_, err := p.segment.Register(t.Context(), there, RegisterOptions{Source: far.sharer()})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	faults.Add(fault.Nth(sim.OpWork, int(faults.Seen(sim.OpWork))).Stall()) // stalls the next copy
	b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathNVLink}, Task{Op: Write, Local: mem.All(here)})
	must(t, faults.Await(t.Context(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = p.segment.Unregister(ctx, 0)
	wantErr(t, "unregister memory that is copied to", err, errdefs.ErrBusy)
	wantErr(t, "unregister memory that is copied to", err, context.DeadlineExceeded)
	if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("process %d may still touch", os.Getpid())) {
		t.Errorf("the error names no process: %v", err)
	}
	faults.Release()
	must(t, p.segment.Unregister(t.Context(), 0))
	wantErr(t, "a copy that ended later", wait(t, b), errdefs.ErrLost)
}

// TestDefectForcedPathIsAnother checks that a batch with a forced path uses only that path, even if
// the memory is imported.
func TestDefectForcedPathIsAnother(t *testing.T) {
	near, far := newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1})
	there, here := far.alloc(t, 4096), near.alloc(t, 4096)
	to, from := far.options(), near.options()
	to.Share, from.Importer = shareServer(t), importer(t, near.Device)
	p := newPair(t, to, from)
	_, err := p.segment.Register(t.Context(), there, RegisterOptions{Source: far.sharer()})
	must(t, err)
	must(t, p.remote.Refresh(t.Context()))
	b := p.submit(t, SubmitOptions{Path: PathShm}, Task{Op: Write, Local: mem.All(here)})
	wantErr(t, "device memory by shm", wait(t, b), errdefs.ErrNotSupported)
	must(t, wait(t, p.submit(t, SubmitOptions{Path: PathNVLink}, Task{Op: Write, Local: mem.All(here)})))
}

// TestDeviceFails checks that a batch fails with the error of the device of either side, and that
// transfers of other memory still work over the same connection.
func TestDeviceFails(t *testing.T) {
	const n = 1 << 20
	for _, side := range []string{"near", "far"} {
		for _, op := range []Op{Read, Write} {
			t.Run(side+" "+op.String(), func(t *testing.T) {
				so := map[string]sim.Options{"near": {}, "far": {Index: 1}}
				o := so[side]
				o.Faults = fault.New(1, fault.After(sim.OpWork, 3).Fail(nil))
				so[side] = o
				near, far := newGPU(t, so["near"]), newGPU(t, so["far"])
				plain := host(t, n)
				p := newPair(t, far.options(), near.options(), far.alloc(t, n), plain)
				b := p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: op, Local: mem.All(near.alloc(t, n))})
				begun := time.Now()
				if err := wait(t, b); err == nil || errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > patience/2 {
					t.Errorf("%v after %v", err, time.Since(begun))
				}
				p.do(t, Task{Op: op, Local: mem.All(host(t, n)), Offset: n})
			})
		}
	}
}

package transfer

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

// ask requests n bytes at offset 0 over a data connection with the given number, and returns the
// connection.
func ask(t *testing.T, p *pair, number uint64, op Op, n int64) net.Conn {
	t.Helper()
	c := dialRaw(t, p.target.Address())
	h := hello{purpose: forData, from: p.initiator.Identity(), to: p.target.Identity(), conn: number}
	_, err := c.Write(h.encode())
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, welcomeBytes))
	must(t, err)
	q := request{op: op, id: 1, segment: p.remote.number, shape: shape{planes: []plane{{0, 0, n}}, pages: pageZero}}
	must(t, q.write(c))
	return c
}

// trickle begins a write of n bytes at 0. It sends k bytes at once and then one byte at a time, until the target closes the connection.
func trickle(t *testing.T, p *pair, number uint64, n, k int64) {
	t.Helper()
	c := ask(t, p, number, Write, n)
	_, err := c.Write(make([]byte, k))
	must(t, err)
	go drip(t.Context(), c, 1)
}

// drip writes n bytes to c every 100 ms until ctx ends or the write fails.
func drip(ctx context.Context, c net.Conn, n int) {
	for pause(ctx, 100*time.Millisecond) {
		if _, err := c.Write(make([]byte, n)); err != nil {
			return
		}
	}
}

// TestDefectTrickleTakesChunks starts more slow writers than there are staging chunks. Each sends
// one byte from time to time. Other transfers must still get chunks.
func TestDefectTrickleTakesChunks(t *testing.T) {
	for name, k := range map[string]int64{"from the start": 1, "after some": 200_000} {
		t.Run(name, func(t *testing.T) {
			near, far := newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1})
			to, from := far.options(), near.options()
			to.Stall, from.Stall = time.Hour, time.Hour // no peer is given up
			p := newPair(t, to, from, far.alloc(t, 1<<20))
			for i := range 2 * to.Chunks {
				trickle(t, p, uint64(1000+i), 1<<20, k)
			}
			here := near.alloc(t, 1<<20)
			for range 3 {
				must(t, wait(t, p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Write, Local: mem.All(here)})))
			}
		})
	}
}

// TestDefectSlowReaderTakesChunks starts more slow readers than there are staging chunks. Each
// reads a few bytes from time to time. Other transfers must still get chunks.
func TestDefectSlowReaderTakesChunks(t *testing.T) {
	const n = 16 << 20 // more than the socket buffers hold
	near, far := newGPU(t, sim.Options{}), newGPU(t, sim.Options{Index: 1})
	to, from := far.options(), near.options()
	to.Stall, from.Stall = time.Hour, time.Hour // no peer is given up
	p := newPair(t, to, from, far.alloc(t, n))
	for i := range 2 * to.Chunks {
		c := ask(t, p, uint64(1000+i), Read, n)
		defer c.Close() // before the other cleanups
		go func() {
			for pause(t.Context(), 100*time.Millisecond) {
				if _, err := c.Read(make([]byte, 1)); err != nil {
					return
				}
			}
		}()
	}
	until(t, "they are not served", func() bool { return p.target.Stats().Requests == int64(2*to.Chunks) })
	here := near.alloc(t, 1<<20)
	for range 3 {
		must(t, wait(t, p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Read, Local: mem.All(here)})))
	}
}

// TestDefectTrickleHoldsMemory checks that Unregister ends a long write of a slow peer that is
// still fast enough to keep its connection.
func TestDefectTrickleHoldsMemory(t *testing.T) {
	const n = 64 << 20 // more than the peer sends during the test
	there, here := host(t, n), host(t, 4096)
	p := newPair(t, Options{Stall: time.Second}, Options{}, there, host(t, 4096))
	p.do(t, Task{Op: Write, Local: mem.All(here), Offset: n})
	slow, ended := ask(t, p, 1000, Write, n), make(chan struct{})
	go func() {
		defer close(ended)
		drip(t.Context(), slow, 2*wire.PaceBytes)
	}()
	until(t, "the write has not begun", func() bool { return p.target.Stats().Requests == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	must(t, p.segment.Unregister(ctx, 0))
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the slow peer's connection is still open")
	}
	p.do(t, Task{Op: Write, Local: mem.All(here), Offset: n})
}

package mooncake_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/kvlane/kvlane/transfer/mooncake"
)

// BenchmarkLoopback moves a megabyte block by block between two registered regions of this host: by two plain sockets that only write and read, each
// block with one call, and by the protocol. What the second reaches of the first is its own cost.
func BenchmarkLoopback(b *testing.B) {
	for _, block := range []int64{64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("sockets/%dKiB", block>>10), func(b *testing.B) { benchSockets(b, block) })
		for _, op := range []mooncake.Op{mooncake.Read, mooncake.Write} {
			for _, lanes := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/%dKiB/%dlanes", op, block>>10, lanes), func(b *testing.B) { benchRemote(b, op, block, lanes) })
			}
		}
	}
}

// span is what a batch moves.
const span = 64 << 20

// benchSockets moves a span by two connections at a time, half by each.
func benchSockets(b *testing.B, block int64) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	from, to := hostRegion(b, span), hostRegion(b, span)
	const sockets = 2
	var out, in [sockets]net.Conn
	for i := range sockets {
		out[i] = talk(b, l.Addr().String())
		in[i], err = l.Accept()
		must(b, err)
		defer in[i].Close()
	}
	b.SetBytes(span)
	for b.Loop() {
		done := make(chan error, 2*sockets)
		for i := range int64(sockets) {
			go func() {
				var err error
				for at := i * span / sockets; at < (i+1)*span/sockets && err == nil; at += block {
					_, err = out[i].Write(from.Bytes()[at:][:block])
				}
				done <- err
			}()
			go func() {
				var err error
				for at := i * span / sockets; at < (i+1)*span/sockets && err == nil; at += block {
					_, err = io.ReadFull(in[i], to.Bytes()[at:][:block])
				}
				done <- err
			}()
		}
		for range 2 * sockets {
			must(b, <-done)
		}
	}
}

func benchRemote(b *testing.B, op mooncake.Op, block int64, lanes int) {
	b.Helper()
	s, there := serve(b, span, nil)
	r, here := open(b, s.Name(), span, func(o *mooncake.Options) { o.Lanes = lanes })
	var tasks []mooncake.Task
	for at := uint64(0); at < span; at += uint64(block) {
		tasks = append(tasks, mooncake.Task{Op: op, Local: addr(here) + at, Remote: addr(there) + at, Length: uint64(block)})
	}
	b.SetBytes(span)
	for b.Loop() {
		must(b, do(b, r, tasks...))
	}
}

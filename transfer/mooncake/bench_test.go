package mooncake_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// span is the number of bytes of a batch.
const span = 64 << 20

// BenchmarkLoopback moves a span block by block between two registered regions of this host with
// the protocol. In alternation it moves a span over two plain sockets, with one block for each
// write and read. of-sockets is the median ratio of the two rates in each round, so that other load
// affects both equally.
func BenchmarkLoopback(b *testing.B) {
	for _, block := range []int64{64 << 10, 1 << 20} {
		for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
			for _, lanes := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/%dKiB/%dlanes", op, block>>10, lanes), func(b *testing.B) {
					sockets, remote := bySockets(b, block), byRemote(b, op, block, lanes)
					remote()
					sockets()
					var share, ours []float64
					for b.Loop() {
						began := time.Now()
						sockets()
						middle := time.Now()
						remote()
						took := time.Since(middle)
						share = append(share, float64(middle.Sub(began))/float64(took))
						ours = append(ours, span/took.Seconds()/1e6)
					}
					b.ReportMetric(median(share), "of-sockets")
					b.ReportMetric(median(ours), "MB/s")
				})
			}
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// bySockets returns a function that moves a span over two connections, half over each.
func bySockets(b *testing.B, block int64) func() {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	b.Cleanup(func() { l.Close() })
	from, to := hostRegion(b, span), hostRegion(b, span)
	const sockets = 2
	var out, in [sockets]net.Conn
	for i := range sockets {
		out[i] = talk(b, l.Addr().String())
		in[i], err = l.Accept()
		must(b, err)
		b.Cleanup(func() { in[i].Close() })
	}
	return func() {
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

// byRemote returns a function that moves a span with the protocol, as one batch.
func byRemote(b *testing.B, op transfer.Op, block int64, lanes int) func() {
	b.Helper()
	s, there := serve(b, span, nil)
	r, here := open(b, s.Segment().Name, span, func(o *mooncake.Options) { o.Lanes = lanes })
	var tasks []mooncake.Task
	for at := uint64(0); at < span; at += uint64(block) {
		tasks = append(tasks, mooncake.Task{Op: op, Local: addr(here) + at, Remote: addr(there) + at, Length: uint64(block)})
	}
	return func() { must(b, do(b, r, tasks...)) }
}

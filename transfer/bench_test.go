package transfer

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/mem"
)

// benchBytes is the number of bytes moved in each direction at a time. It exceeds the CPU's caches.
const benchBytes = 256 << 20

// BenchmarkTCP measures the rate between two engines over loopback, with blocks that are not
// adjacent on either side. Each round also moves the bytes over two plain sockets with writes of 1
// MiB. MB/s is the rate of the engines: go test -run - -bench TCP ./transfer
func BenchmarkTCP(b *testing.B) {
	here, there := host(b, benchBytes), host(b, benchBytes)
	pattern(here.Bytes(), 1)
	p := newPair(b, Options{}, Options{Lanes: 2}, there)
	plain := newSockets(b)
	for _, block := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, op := range []Op{Write, Read} {
			b.Run(fmt.Sprintf("%s/%dKiB", op, block>>10), func(b *testing.B) {
				tasks := p.blocks(op, here, block)
				var ours, theirs time.Duration
				b.SetBytes(benchBytes)
				for b.Loop() {
					begun := time.Now()
					p.do(b, tasks...)
					ours += time.Since(begun)
					b.StopTimer()
					begun = time.Now()
					plain.send(b, here.Bytes(), there.Bytes())
					theirs += time.Since(begun)
					b.StartTimer()
				}
				b.ReportMetric(benchBytes*float64(b.N)/1e6/theirs.Seconds(), "MB/s-plain")
				b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of-plain")
			})
		}
	}
}

// blocks returns tasks for all even blocks and then all odd ones, so that few are adjacent.
func (p *pair) blocks(op Op, here *mem.Region, block int64) (tasks []Task) {
	for start := range int64(2) {
		for off := start * block; off < benchBytes; off += 2 * block {
			tasks = append(tasks, Task{Op: op, Segment: p.remote, Local: mem.Extent{Region: here, Off: off, Len: block}, Offset: off})
		}
	}
	return tasks
}

// sockets holds both ends of two loopback connections.
type sockets struct{ in, out [2]net.Conn }

func newSockets(b *testing.B) *sockets {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	s := new(sockets)
	for i := range s.out {
		s.out[i] = dialRaw(b, l.Addr().String())
		s.in[i], err = l.Accept()
		must(b, err)
		b.Cleanup(func() { _ = s.in[i].Close() })
	}
	return s
}

// send sends half of src to half of dst over each connection.
func (s *sockets) send(b *testing.B, src, dst []byte) {
	b.Helper()
	var both sync.WaitGroup
	for i := range s.out {
		half := len(src) / 2
		from, to := src[i*half:(i+1)*half], dst[i*half:(i+1)*half]
		both.Go(func() {
			for at := 0; at < len(from); at += 1 << 20 {
				if _, err := s.out[i].Write(from[at:min(at+1<<20, len(from))]); err != nil {
					b.Error(err)
					return
				}
			}
		})
		both.Go(func() {
			if _, err := io.ReadFull(s.in[i], to); err != nil {
				b.Error(err)
			}
		})
	}
	both.Wait()
}

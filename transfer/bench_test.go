package transfer

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/mem"
)

// benchBytes is what moves each way at a time: more than caches hold.
const benchBytes = 256 << 20

// BenchmarkTCP measures what goes over loopback between two engines, in blocks that are scattered on neither side, beside two plain
// sockets with writes of 1 MiB in the same run: go test -run - -bench TCP ./transfer
func BenchmarkTCP(b *testing.B) {
	here, there := host(b, benchBytes), host(b, benchBytes)
	pattern(here.Bytes(), 1)
	b.Run("plain sockets", func(b *testing.B) { benchPlain(b, here.Bytes(), there.Bytes()) })
	p := newPair(b, Options{}, Options{Lanes: 2}, there)
	for _, block := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, op := range []Op{Write, Read} {
			b.Run(fmt.Sprintf("%s/%dKiB", op, block>>10), func(b *testing.B) { p.bench(b, op, here, block) })
		}
	}
}

func (p *pair) bench(b *testing.B, op Op, here *mem.Region, block int64) {
	b.Helper()
	// Blocks are not neighbours, but for the last and the first: even ones, then odd ones.
	var tasks []Task
	for start := range int64(2) {
		for off := start * block; off < benchBytes; off += 2 * block {
			tasks = append(tasks, Task{Op: op, Segment: p.remote, Local: mem.Extent{Region: here, Off: off, Len: block}, Offset: off})
		}
	}
	b.SetBytes(benchBytes)
	for b.Loop() {
		p.do(b, tasks...)
	}
}

// benchPlain sends halves of src to halves of dst by two sockets.
func benchPlain(b *testing.B, src, dst []byte) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	var in, out [2]net.Conn
	for i := range out {
		out[i], err = net.Dial("tcp", l.Addr().String())
		must(b, err)
		defer out[i].Close()
		in[i], err = l.Accept()
		must(b, err)
		defer in[i].Close()
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		var both sync.WaitGroup
		for i := range out {
			half := len(src) / 2
			from, to := src[i*half:(i+1)*half], dst[i*half:(i+1)*half]
			both.Go(func() {
				for at := 0; at < len(from); at += 1 << 20 {
					if _, err := out[i].Write(from[at:min(at+1<<20, len(from))]); err != nil {
						b.Error(err)
						return
					}
				}
			})
			both.Go(func() {
				if _, err := io.ReadFull(in[i], to); err != nil {
					b.Error(err)
				}
			})
		}
		both.Wait()
	}
}

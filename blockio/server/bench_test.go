package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// BenchmarkRetrieve retrieves pieces over loopback TCP, one with each request, from as many
// goroutines as the depth. BenchmarkSockets is its baseline.
func BenchmarkRetrieve(b *testing.B) {
	for _, c := range []struct{ bytes, depth int }{{4096, 64}, {2 << 20, 4}} {
		b.Run(fmt.Sprintf("%d/depth%d", c.bytes, c.depth), func(b *testing.B) { benchmarkRetrieve(b, c.bytes, c.depth) })
	}
}

func benchmarkRetrieve(b *testing.B, bytes, depth int) {
	b.Helper()
	l, err := block.NewLayout([]int64{int64(bytes)})
	must(b, err)
	f := block.Format{Identity: block.Digest{1}, Layout: l}
	host, err := blockhost.New(blockhost.Options{CapacityBytes: 4 * l.ImageBytes()})
	must(b, err)
	a, err := auth.NewServer(auth.ServerOptions{})
	must(b, err)
	s, err := New(Options{Host: host, Auth: a})
	must(b, err)
	addr, err := s.Listen(b.Context(), "127.0.0.1:0")
	must(b, err)
	client, err := blockio.NewClient(blockio.ClientOptions{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		},
		Formats: []blockio.Format{{Identity: f.Identity, ShardBytes: l.ShardSizes()}},
	})
	must(b, err)
	memory := slots(b, depth, int(l.ImageBytes()))
	must(b, f.Seal(memory[0].Bytes(), key(1)))
	image := blockio.Split(nil, key(1), f.Identity, l, memory[0], 1<<20)
	errs := make([]error, len(image))
	client.Store(b.Context(), image, errs)
	must(b, errors.Join(errs...))
	b.SetBytes(int64(bytes))
	b.ResetTimer()
	parallel(b, depth, func(i, n int) {
		p := []blockio.Piece{{
			Key: key(1), Identity: blockio.IdentityHash(f.Identity), Offset: uint64(l.ShardOff(0)), EndShard: 1, Mem: memory[i].Sub(0, int64(bytes)),
		}}
		var err [1]error
		for range n {
			if client.Retrieve(b.Context(), p, err[:]); err[0] != nil {
				b.Error(err[0])
				return
			}
		}
	})
	b.StopTimer()
	must(b, errors.Join(client.Close(context.Background()), s.Close(context.Background()), host.Close(context.Background())))
}

// slots returns pieces of memory.
func slots(b *testing.B, n, bytes int) (all []mem.Extent) {
	b.Helper()
	m, err := hostmem.Alloc(int64(n * bytes))
	must(b, err)
	b.Cleanup(func() { must(b, hostmem.Free(m)) })
	r, err := hostmem.Region(m)
	must(b, err)
	for i := range n {
		all = append(all, mem.Extent{Region: r, Off: int64(i * bytes), Len: int64(bytes)})
	}
	return all
}

// parallel runs b.N operations by goroutines.
func parallel(b *testing.B, depth int, f func(i, n int)) {
	b.Helper()
	var all sync.WaitGroup
	for i := range depth {
		all.Go(func() { f(i, (b.N+i)/depth) })
	}
	all.Wait()
}

// BenchmarkSockets moves the same bytes over plain sockets: pipelined requests of 136 bytes, and
// results of 80 bytes with the data, which are received into the same slots and summed.
func BenchmarkSockets(b *testing.B) {
	for _, c := range []struct{ bytes, depth int }{{4096, 64}, {2 << 20, 4}} {
		b.Run(fmt.Sprintf("%d/depth%d", c.bytes, c.depth), func(b *testing.B) { benchmarkSockets(b, c.bytes, c.depth) })
	}
}

func benchmarkSockets(b *testing.B, bytes, depth int) {
	b.Helper()
	const request, result = 16 + 40 + 96, 16 + 40 + 24
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		in, out := make([]byte, depth*request), make([]byte, result+bytes)
		for {
			n, err := io.ReadAtLeast(nc, in, request)
			if err != nil {
				return
			}
			if rest := n % request; rest > 0 {
				m, err := io.ReadFull(nc, in[n:n+request-rest])
				if err != nil {
					return
				}
				n += m
			}
			var frames net.Buffers
			for range n / request {
				xxh3.Hash(out[result:])
				frames = append(frames, out)
			}
			if _, err := frames.WriteTo(nc); err != nil {
				return
			}
		}
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	must(b, err)
	memory := slots(b, depth, result+bytes)
	in, credits := make([]byte, depth*request), make(chan struct{}, depth)
	b.SetBytes(int64(bytes))
	b.ResetTimer()
	go func() {
		for sent := 0; sent < b.N; {
			credits <- struct{}{}
			n := 1
			for ; sent+n < b.N && n < depth; n++ {
				select {
				case credits <- struct{}{}:
					continue
				default:
				}
				break
			}
			if _, err := nc.Write(in[:n*request]); err != nil {
				return
			}
			sent += n
		}
	}()
	for i := range b.N {
		m := memory[i%depth].Bytes()
		if _, err := io.ReadFull(nc, m); err != nil {
			b.Fatal(err)
		}
		xxh3.Hash(m[result:])
		<-credits
	}
	b.StopTimer()
	must(b, errors.Join(nc.Close(), l.Close()))
	<-served
}

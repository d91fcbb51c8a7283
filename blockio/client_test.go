package blockio_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/blockiotest"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

func TestClientOverTCP(t *testing.T) { blockiotest.Run(t, tcp) }

// tcp serves connections over TCP until the test ends.
func tcp(tb testing.TB, s *blockiotest.Server, o *blockio.ClientOptions) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { s.Serve(tb, c) })
		}
	})
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
		served.Wait()
	})
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// The pieces of an image cover it completely, and name the shards that they overlap.
func TestSplitNamesTheShardsOfPieces(t *testing.T) {
	l, err := block.NewLayout([]int64{9000, 4096, 20000})
	if err != nil {
		t.Fatal(err)
	}
	b, err := hostmem.Alloc(l.ImageBytes())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	}()
	r, err := hostmem.Region(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, most := range []int64{512, 4096, 5000, 16384, 1 << 20} {
		at := int64(0)
		for i, p := range blockio.Split(nil, block.Key{1}, block.Digest{1}, l, mem.All(r).Sub(0, l.ImageBytes()), most) {
			var touched []uint32
			for s := range l.Shards() {
				end := l.ImageBytes()
				if s+1 < l.Shards() {
					end = l.ShardOff(s + 1)
				}
				if at < end && at+p.Mem.Len > l.ShardOff(s) {
					touched = append(touched, uint32(s))
				}
			}
			want := [2]uint32{}
			if len(touched) > 0 {
				want = [2]uint32{touched[0], touched[len(touched)-1] + 1}
			}
			if got := [2]uint32{p.FirstShard, p.EndShard}; got != want || p.Offset != uint64(at) || p.Mem.Len > most {
				t.Errorf("piece %d of %d bytes at %d has shards %v, want %v at %d", i, p.Mem.Len, p.Offset, got, want, at)
			}
			at += p.Mem.Len
		}
		if at != l.ImageBytes() {
			t.Errorf("pieces of %d bytes cover %d bytes of %d", most, at, l.ImageBytes())
		}
	}
}

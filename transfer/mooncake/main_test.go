package mooncake_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// within returns a context that ends after the test's patience.
func within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("the condition was never met: %s", what)
		}
	}
}

// hostRegion returns host memory that is freed when the test ends.
func hostRegion(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(bytes)
	must(tb, err)
	tb.Cleanup(func() { must(tb, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	must(tb, err)
	return r
}

// registered returns Regions with one region of host memory.
func registered(tb testing.TB, bytes int64) (*mooncake.Regions, *mem.Region) {
	tb.Helper()
	m, r := mooncake.NewRegions(nil), hostRegion(tb, bytes)
	must(tb, m.Add("cpu:0", r))
	return m, r
}

// serve starts a server with one region.
func serve(tb testing.TB, bytes int64, change func(*mooncake.ServerOptions)) (*mooncake.Server, *mem.Region) {
	tb.Helper()
	m, r := registered(tb, bytes)
	o := mooncake.ServerOptions{Name: "127.0.0.1:0", Memory: m}
	if change != nil {
		change(&o)
	}
	s, err := mooncake.Serve(within(tb), o)
	must(tb, err)
	tb.Cleanup(func() { must(tb, s.Close(within(tb))) })
	return s, r
}

// open opens a segment with separate local memory.
func open(tb testing.TB, segment string, bytes int64, change func(*mooncake.Options)) (*mooncake.Remote, *mem.Region) {
	tb.Helper()
	m, r := registered(tb, bytes)
	o := mooncake.Options{Memory: m}
	if change != nil {
		change(&o)
	}
	remote, err := mooncake.Open(within(tb), segment, o)
	must(tb, err)
	tb.Cleanup(func() { must(tb, remote.Close()) })
	return remote, r
}

func addr(r *mem.Region) uint64 { return uint64(r.CPU()) }

// do submits tasks and waits for them.
func do(tb testing.TB, r *mooncake.Remote, tasks ...mooncake.Task) error {
	tb.Helper()
	b, err := r.Submit(within(tb), tasks)
	must(tb, err)
	return b.Wait(within(tb))
}

// talk opens a TCP connection.
func talk(tb testing.TB, address string) *net.TCPConn {
	tb.Helper()
	c, err := net.Dial("tcp", address)
	must(tb, err)
	tb.Cleanup(func() { c.Close() })
	must(tb, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn) //nolint:errcheck // a tcp connection
}

// take reads n bytes.
func take(tb testing.TB, r io.Reader, n int) []byte {
	tb.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		tb.Fatalf("after some of %d bytes: %v", n, err)
	}
	return b
}

// pattern fills b with bytes that depend on the seed.
func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i)*7 + seed
	}
}

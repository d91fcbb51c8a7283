package soft_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// BenchmarkLoopback measures what a work request costs on one core when no bytes move: posting, execution and completion
// together, in chains of so many requests with one completion each. ns/op is per work request.
func BenchmarkLoopback(b *testing.B) {
	for _, chain := range []int{1, 32, 256} {
		for _, op := range []rdma.WROpcode{rdma.WRRDMAWrite, rdma.WRRDMARead} {
			b.Run(fmt.Sprintf("%s/chain=%d", op, chain), func(b *testing.B) { benchmarkLoopback(b, op, chain) })
		}
	}
}

func benchmarkLoopback(b *testing.B, op rdma.WROpcode, chain int) {
	b.Helper()
	const depth, piece = 1024, 4096
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p, err := soft.New(soft.Options{Mover: soft.NullMover{}})
	check(b, err)
	dev, err := p.Open("soft0")
	check(b, err)
	pd, err := dev.AllocPD()
	check(b, err)
	cq, err := dev.CreateCQ(rdma.CQOptions{Entries: depth})
	check(b, err)
	host, far := region(b, depth*piece), region(b, depth*piece)
	const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead
	hostMR, err := pd.RegMR(mem.All(host), access)
	check(b, err)
	farMR, err := pd.RegMR(mem.All(far), access)
	check(b, err)
	qp, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: depth, MaxSendSGE: 1}})
	check(b, err)
	check(b, rdma.Loopback(dev, qp, rdma.ConnectOptions{}))
	near, away := hostMR.Info(), farMR.Info()
	// Scattered pieces, as of a paged cache, none of which is posted again before it has completed.
	wrs := make([]rdma.SendWR, depth)
	for i := range wrs {
		at := int64(i*7919%depth) * piece
		wrs[i] = rdma.SendWR{Opcode: op, RKey: away.RKey, RemoteAddr: away.Addr + uint64(at), SGEs: []rdma.SGE{near.SGE(at, piece)}}
		if i%chain == chain-1 {
			wrs[i].Flags = rdma.SendSignaled
		}
	}
	wcs := make([]rdma.WC, 16)
	b.ReportAllocs()
	b.ResetTimer()
	posted, done, begun := 0, 0, cpuTime(b)
	for done < b.N {
		for posted < b.N+chain && posted-done+chain <= depth {
			at := posted % depth
			if _, err := qp.PostSend(wrs[at : at+chain]); err != nil {
				b.Fatal(err)
			}
			posted += chain
		}
		n, err := cq.Poll(wcs)
		if err != nil {
			b.Fatal(err)
		}
		for i := range n {
			if err := wcs[i].Err(); err != nil {
				b.Fatal(err)
			}
		}
		done += n * chain
		if n == 0 {
			runtime.Gosched()
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-begun)/float64(done), "cpu-ns/op")
	for _, c := range []interface{ Close() error }{qp, hostMR, farMR, cq, pd, dev, p} {
		check(b, c.Close())
	}
}

// cpuTime is what the process has used of all cores, which other processes do not change as they do the time that passes.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	check(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func region(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	m, err := hostmem.Alloc(bytes)
	check(tb, err)
	tb.Cleanup(func() { check(tb, hostmem.Free(m)) })
	r, err := hostmem.Region(m)
	check(tb, err)
	return r
}

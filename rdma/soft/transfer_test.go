package soft_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// formRig is a rig with memory of a device, and a queue pair of a depth of its own.
type formRig struct {
	*rig
	m     *slowMover
	q     rdma.QP
	gpu   *mem.Region
	bytes []byte // of gpu
	info  rdma.MRInfo
}

func newFormRig(t *testing.T, seed uint64) *formRig {
	t.Helper()
	m := newSlowMover(seed)
	g := &formRig{rig: newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{}), m: m}
	g.gpu, g.bytes = m.device(t, 1<<20)
	g.info = register(t, g.pd, g.gpu, access)
	g.q = g.newQPOf(t, g.pd, 256, rdma.ConnectOptions{})
	random(g.bytes, 2)
	return g
}

// block is a copy between host and device, in bytes.
type block struct {
	host, gpu, n int64
	out          bool // from the device
	within       bool // gpu is a place of the host's memory
}

// request is b as a request that asks for no completion.
func (g *formRig) request(b block) rdma.SendWR {
	op := rdma.WRRDMAWrite
	if b.out {
		op = rdma.WRRDMARead
	}
	w := g.move(op, 0, b.gpu, b.host, uint32(b.n))
	if w.Flags = 0; !b.within {
		w = to(w, g.info, b.gpu)
	}
	return w
}

// TestFormOfTransfers: many copies of one length that lie at multiples of it are given to the mover as page numbers, the
// host's side as slots, and all others as a list. Either way the bytes are those of the requests.
func TestFormOfTransfers(t *testing.T) {
	const n, size = 100, 4096
	scattered := func(i int) block { return block{host: int64(i) * size, gpu: int64(i*37%101) * size, n: size} }
	apart := func(i int) block { return block{host: int64(i) * 2 * size, gpu: int64(i*37%101) * 2 * size, n: size} }
	for name, tt := range map[string]struct {
		block func(i int) block
		n     int
		pairs int // zero: a list
		dir   mem.Direction
	}{
		"one length":       {scattered, n, n, mem.ToPages},
		"from the device":  {func(i int) block { b := scattered(i); b.out = true; return b }, n, n, mem.ToSlots},
		"both ways":        {func(i int) block { b := scattered(i); b.out = i%5 == 4; return b }, n, 0, 0},
		"within the host":  {func(i int) block { b := scattered(i); b.gpu, b.within = b.gpu+1<<19, true; return b }, n, n, mem.ToPages},
		"few":              {scattered, 60, 0, 0},
		"from anywhere on": {func(i int) block { b := scattered(i); b.host, b.gpu = b.host+1024, b.gpu+512; return b }, n, n, mem.ToPages},
		"neighbours as one": {func(i int) block {
			return block{host: int64(i) * 2 * size, gpu: int64(i*37%101) * 2 * size, n: size * int64(1+i%4/3)}
		}, n, n * 5 / 4, mem.ToPages},
		"sixteen as one": {func(i int) block {
			return block{host: int64(i) * 8192, gpu: int64(i*37%101) * 8192, n: 512 << (i % 4 / 3 * 4)}
		}, n, n * 19 / 4, mem.ToPages},
		"seventeen": {func(i int) block {
			return block{host: int64(i) * 9216, gpu: int64(i*37%101) * 9216, n: 512 + int64(i%4/3*8192)}
		}, n, 0, 0},
		"a short one":        {func(i int) block { b := scattered(i); b.n -= int64(i / (n - 1) * 100); return b }, n, 0, 0},
		"no power of two":    {func(i int) block { b := scattered(i); b.n = 3000; return b }, n, 0, 0},
		"one off the grid":   {func(i int) block { b := apart(i); b.host += int64(i / (n - 1) * 512); return b }, n, 0, 0},
		"one off the pages":  {func(i int) block { b := apart(i); b.gpu += int64(i / (n - 1) * 512); return b }, n, 0, 0},
		"after another form": {func(i int) block { b := scattered(i); b.n -= int64((i + 1) % n / (n - 1)); return b }, n, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFormRig(t, 1)
			defer g.m.letGo()
			random(g.mem.Bytes(), 3)
			for _, plain := range []bool{false, true} { // requests start one by one, and as those before them
				host, gpu := bytes.Clone(g.mem.Bytes()), bytes.Clone(g.bytes)
				var wrs []rdma.SendWR
				for i := range tt.n {
					b := tt.block(i)
					wrs = append(wrs, g.request(b))
					switch {
					case b.within:
						copy(host[b.gpu:b.gpu+b.n], host[b.host:])
					case b.out:
						copy(host[b.host:b.host+b.n], gpu[b.gpu:])
					default:
						copy(gpu[b.gpu:b.gpu+b.n], host[b.host:])
					}
				}
				wrs[tt.n-1].Flags = rdma.SendSignaled
				g.m.shut()
				post(t, g.q, wrs...)
				g.m.holds(t, 1)
				g.wantForm(t, tt.n, tt.pairs, tt.dir)
				g.m.letGo()
				good(t, g.cq, 1)
				if !bytes.Equal(g.mem.Bytes(), host) || !bytes.Equal(g.bytes, gpu) {
					t.Fatalf("plain: %t: wrong bytes", plain)
				}
				if got := g.m.plainRuns() > 0; got != plain {
					t.Errorf("some requests started as those before them: %t", got)
				}
				random(g.mem.Bytes(), 4)
			}
		})
	}
}

// wantForm checks the transfer that the mover holds, of n requests.
func (g *formRig) wantForm(t *testing.T, n, pairs int, dir mem.Direction) {
	t.Helper()
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if len(g.m.held) != 1 {
		t.Fatalf("%d transfers", len(g.m.held))
	}
	b := &g.m.held[0].Batch
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	if (b.Paged != nil) != (pairs > 0) {
		t.Fatalf("as page numbers: %t", b.Paged != nil)
	}
	if b.Paged == nil {
		if len(b.Dst) != n {
			t.Errorf("a list of %d for %d requests", len(b.Dst), n)
		}
		return
	}
	group := &b.Paged.Groups[0]
	if len(group.Pairs) != pairs || b.Paged.Dir != dir || len(b.Dst) != 0 {
		t.Errorf("%d pairs %s and a list of %d, want %d %s", len(group.Pairs), b.Paged.Dir, len(b.Dst), pairs, dir)
	}
	if group.Slots.Region != g.mem {
		t.Errorf("the slots are of the %s", group.Slots.Region)
	}
}

// TestDirectionsDoNotOverlap: whichever ways copies go, a mover that does those of a transfer in any order gives the bytes that
// one request after the other would.
func TestDirectionsDoNotOverlap(t *testing.T) {
	const window, batch = 64 << 10, 100
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			g := newFormRig(t, seed)
			defer g.m.letGo()
			host, gpu := bytes.Clone(g.mem.Bytes()), bytes.Clone(g.bytes)
			for range 8 {
				g.m.shut()
				g.keepBusy(t, g.m)
				turn := rng.IntN(batch) // the first go one way
				out, n := rng.IntN(2) == 0, []int64{512, 500}[rng.IntN(2)]
				var wrs []rdma.SendWR
				for i := range batch {
					b := block{host: rng.Int64N(window/512) * 512, gpu: rng.Int64N(window/512) * 512, n: n, out: out}
					if i > turn {
						b.out, b.within = rng.IntN(2) == 0, rng.IntN(4) == 0
					}
					for b.within && b.host == b.gpu { // a request that overlaps itself has no meaning
						b.gpu = rng.Int64N(window/512) * 512
					}
					from, far := host, gpu
					if b.within {
						far = host
					}
					to, at, off := far, b.gpu, b.host
					if b.out {
						from, to, at, off = far, host, b.host, b.gpu
					}
					copy(to[at:at+b.n], from[off:off+b.n])
					wrs = append(wrs, g.request(b))
				}
				wrs[batch-1].Flags = rdma.SendSignaled
				post(t, g.q, wrs...)
				g.m.letGo()
				good(t, g.cq, 1)
			}
			if g.m.overlap {
				t.Error("a transfer overlaps itself")
			}
			if !bytes.Equal(g.mem.Bytes()[:window], host[:window]) || !bytes.Equal(g.bytes, gpu) {
				t.Error("the bytes are not those of one request after the other")
			}
		})
	}
}

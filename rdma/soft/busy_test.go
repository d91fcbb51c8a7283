package soft_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// TestRequestsGatherWhileTheMoverIsBusy: while three transfers are under way, what is posted makes one more, whatever number of
// chains it came in.
func TestRequestsGatherWhileTheMoverIsBusy(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m}, rdma.ConnectOptions{})
	defer m.letGo()
	r.keepBusy(t, m)
	for i := range 5 {
		post(t, r.qp, r.write(uint64(i), 8192+int64(i)*1024, 4096, 8))
	}
	idle(t, r.cq)
	if m.count() != 3 {
		t.Fatalf("%d transfers are under way", m.count())
	}
	m.letGo()
	good(t, r.cq, 5)
	if n := m.count(); n != 4 {
		t.Errorf("5 requests made %d transfers", n-3)
	}
}

func (m *slowMover) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moves
}

// TestMemoryIsHeldByEveryTransfer: memory is not given up while bytes of it move, in the first transfer as in later ones, which
// are made of what the first was.
func TestMemoryIsHeldByEveryTransfer(t *testing.T) {
	m := newSlowMover(1)
	r := newRig(t, soft.Options{Mover: m, DrainTimeout: 20 * time.Millisecond}, rdma.ConnectOptions{})
	other, err := r.pd.RegMR(mem.All(region(t, 4096)), access)
	check(t, err)
	info := other.Info()
	for n := range 3 {
		second := r.write(1, 4096, 0, 8) // whose source is the other memory
		second.SGEs = []rdma.SGE{info.SGE(0, 8)}
		post(t, r.qp, r.write(0, 0, 8192, 8), second)
		m.holds(t, 1)
		for _, mr := range []rdma.MR{r.mr, other} {
			if err := mr.Close(); !errors.Is(err, errdefs.ErrBusy) {
				t.Fatalf("memory of transfer %d: %v", n, err)
			}
		}
		m.letGo()
		good(t, r.cq, 2)
		m.shut()
	}
	check(t, other.Close())
}

// countingStream counts batches.
type countingStream struct {
	stream.Stream
	batches atomic.Int64
	longest atomic.Int64 // pieces
}

func (s *countingStream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	s.batches.Add(1)
	for n := int64(b.Pieces()); ; {
		if old := s.longest.Load(); n <= old || s.longest.CompareAndSwap(old, n) {
			break
		}
	}
	return s.Stream.Submit(ctx, b)
}

// lanes is a machine with a simulated GPU and several NICs in software, each of which copies by a stream of its own.
type lanes struct {
	streams   []*countingStream
	qps       []rdma.QP
	cqs       []rdma.CQ
	host, gpu []rdma.MRInfo // by NIC
	memory    *mem.Region   // host
}

const laneDepth = 2048

func newLanes(t *testing.T, n int) *lanes {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
	check(t, err)
	closing(t, dev)
	l := &lanes{}
	var streams []stream.Stream
	for range n {
		s, err := streamcopy.Open(dev, streamcopy.Options{})
		check(t, err)
		t.Cleanup(func() { check(t, s.Close(context.Background())) })
		l.streams = append(l.streams, &countingStream{Stream: s})
		streams = append(streams, l.streams[len(l.streams)-1])
	}
	m := soft.NewStreamMover(streams[0], streams[1:]...)
	t.Cleanup(func() { check(t, m.Close(context.Background())) })
	l.memory, err = dev.AllocHost(2 * gpuBytes)
	check(t, err)
	t.Cleanup(func() { check(t, dev.Free(l.memory)) })
	gpu, err := dev.Alloc(gpuBytes, device.AllocOptions{})
	check(t, err)
	t.Cleanup(func() { check(t, dev.Free(gpu)) })
	p, err := soft.New(soft.Options{Mover: m, Devices: make([]soft.DeviceOptions, n)})
	check(t, err)
	closing(t, p)
	names, err := p.Devices()
	check(t, err)
	for _, name := range names {
		l.open(t, p, name, gpu)
	}
	return l
}

func (l *lanes) open(t *testing.T, p *soft.Provider, name string, gpu *mem.Region) {
	t.Helper()
	d, err := p.Open(name)
	check(t, err)
	closing(t, d)
	pd, err := d.AllocPD()
	check(t, err)
	closing(t, pd)
	for _, b := range []struct {
		region *mem.Region
		infos  *[]rdma.MRInfo
	}{{l.memory, &l.host}, {gpu, &l.gpu}} {
		mr, err := pd.RegMR(mem.All(b.region), access)
		check(t, err)
		closing(t, mr)
		*b.infos = append(*b.infos, mr.Info())
	}
	cq, err := d.CreateCQ(rdma.CQOptions{Entries: 2 * laneDepth})
	check(t, err)
	closing(t, cq)
	qp, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: laneDepth, MaxSendSGE: 1}})
	check(t, err)
	closing(t, qp)
	check(t, rdma.Loopback(d, qp, rdma.ConnectOptions{}))
	l.qps, l.cqs = append(l.qps, qp), append(l.cqs, cq)
}

// write writes n pieces of the host's first half to the GPU, by NIC i.
func (l *lanes) write(t *testing.T, i, n int) {
	t.Helper()
	wrs := make([]rdma.SendWR, n)
	for j := range wrs {
		wrs[j] = rdma.SendWR{
			Opcode: rdma.WRRDMAWrite, RKey: l.gpu[i].RKey, RemoteAddr: l.gpu[i].Addr + uint64(j*gpuPiece),
			SGEs: []rdma.SGE{l.host[i].SGE(int64(j)*gpuPiece, gpuPiece)},
		}
	}
	wrs[n-1].Flags = rdma.SendSignaled
	post(t, l.qps[i], wrs...)
}

// TestStreamOfEachNIC: the transfers of a NIC go by a stream of its own, where there are as many.
func TestStreamOfEachNIC(t *testing.T) {
	l := newLanes(t, 3)
	for i := range l.qps {
		l.write(t, i, gpuPieces)
		good(t, l.cqs[i], 1)
		for j, s := range l.streams {
			if (s.batches.Load() > 0) != (j <= i) {
				t.Errorf("NIC %d has copied: stream %d had %d batches", i, j, s.batches.Load())
			}
		}
	}
}

// TestShortTransfersDoNotOvertakeLongOnes: long transfers are submitted by another goroutine than short ones, and yet a
// NIC's transfers land in order.
func TestShortTransfersDoNotOvertakeLongOnes(t *testing.T) {
	l := newLanes(t, 1)
	host, back := l.memory.Bytes()[:gpuBytes], l.memory.Bytes()[gpuBytes:]
	for round := range 20 {
		random(host, byte(round))
		l.write(t, 0, gpuPieces)
		// One piece more than once, and then all back: each has to wait for those before it.
		far := l.gpu[0]
		for i := range 4 {
			post(t, l.qps[0], rdma.SendWR{
				Opcode: rdma.WRRDMAWrite, RKey: far.RKey, RemoteAddr: far.Addr, SGEs: []rdma.SGE{l.host[0].SGE(int64(i+1)*gpuPiece, gpuPiece)},
			})
		}
		post(t, l.qps[0], rdma.SendWR{
			Opcode: rdma.WRRDMARead, Flags: rdma.SendSignaled, RKey: far.RKey, RemoteAddr: far.Addr,
			SGEs: []rdma.SGE{l.host[0].SGE(gpuBytes, gpuBytes)},
		})
		good(t, l.cqs[0], 2)
		if !bytes.Equal(back[gpuPiece:], host[gpuPiece:]) || !bytes.Equal(back[:gpuPiece], host[4*gpuPiece:5*gpuPiece]) {
			t.Fatalf("round %d: not what was written last", round)
		}
	}
	if l.streams[0].longest.Load() < 64 {
		t.Errorf("the longest transfer had %d pieces: none was long", l.streams[0].longest.Load())
	}
}

package softnic_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/softnic"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// gpuRig is a loopback queue pair between pinned memory and memory of a simulated GPU.
type gpuRig struct {
	cq         rdma.CQ
	qp         rdma.QP
	host       *mem.Region
	near, away rdma.MRInfo
}

const (
	gpuBytes  = 1 << 20
	gpuPiece  = 1 << 10
	gpuPieces = gpuBytes / gpuPiece
)

func newGPURig(t *testing.T, faults *fault.Plan) *gpuRig {
	t.Helper()
	dev, err := sim.Open(sim.Options{Faults: faults})
	check(t, err)
	closing(t, dev)
	m := softnic.NewMover(func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) })
	t.Cleanup(func() { check(t, m.Close(context.Background())) })
	r := &gpuRig{}
	r.host, err = dev.AllocHost(gpuBytes)
	check(t, err)
	t.Cleanup(func() { check(t, dev.Free(r.host)) })
	gpu, err := dev.Alloc(gpuBytes, device.AllocOptions{})
	check(t, err)
	t.Cleanup(func() { check(t, dev.Free(gpu)) })

	p, err := soft.New(soft.Options{Mover: m})
	check(t, err)
	closing(t, p)
	d, err := p.Open("soft0")
	check(t, err)
	closing(t, d)
	pd, err := d.AllocPD()
	check(t, err)
	closing(t, pd)
	for _, b := range []struct {
		region *mem.Region
		info   *rdma.MRInfo
	}{{r.host, &r.near}, {gpu, &r.away}} {
		mr, err := pd.RegMR(mem.All(b.region), rdma.MROptions{Access: access})
		check(t, err)
		closing(t, mr)
		*b.info = mr.Info()
	}
	if _, err := pd.RegMR(mem.All(region(t, 4096)), rdma.MROptions{Access: access}); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("memory that the GPU does not reach: %v", err)
	}
	r.cq, err = d.CreateCQ(rdma.CQOptions{Entries: 2 * gpuPieces})
	check(t, err)
	closing(t, r.cq)
	r.qp, err = pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{MaxSendWR: gpuPieces, MaxSendSGE: 1}})
	check(t, err)
	closing(t, r.qp)
	check(t, rdmatest.Loopback(d, r.qp, rdma.ConnectOptions{}))
	return r
}

// shuffle posts one piece at a time, from piece i of one side to piece i*step of the other.
func (r *gpuRig) shuffle(t *testing.T, op rdma.WROpcode, step int64) {
	t.Helper()
	wrs := make([]rdma.SendWR, gpuPieces)
	for i := range wrs {
		wrs[i] = rdma.SendWR{
			WRID: uint64(i), Opcode: op, RKey: r.away.RKey, RemoteAddr: r.away.Addr + uint64(int64(i)*step%gpuPieces*gpuPiece),
			SGEs: []rdma.SGE{r.near.SGE(int64(i)*gpuPiece, gpuPiece)},
		}
	}
	wrs[gpuPieces-1].Flags = rdma.SendSignaled
	post(t, r.qp, wrs...)
}

// TestGPUMemory writes to and reads from device memory with a loopback queue pair and a stream.
func TestGPUMemory(t *testing.T) {
	r := newGPURig(t, nil)
	random(r.host.Bytes(), 3)
	want := bytes.Clone(r.host.Bytes())
	r.shuffle(t, rdma.WRRDMAWrite, 7)
	good(t, r.cq, 1)
	clear(r.host.Bytes())
	r.shuffle(t, rdma.WRRDMARead, 7)
	good(t, r.cq, 1)
	if !bytes.Equal(r.host.Bytes(), want) {
		t.Error("the bytes read back from the device differ from those written")
	}
}

// TestGPUFails checks that the error of a completion contains the failure of the stream.
func TestGPUFails(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpWork, 0).Fail(nil))
	r := newGPURig(t, plan)
	r.shuffle(t, rdma.WRRDMARead, 7)
	wcs := await(t, r.cq, gpuPieces)
	if wcs[0].Status != rdma.WCGeneralErr || len(plan.Unreported(wcs[0].Err())) > 0 {
		t.Errorf("first completion: %v", wcs[0].Err())
	}
	if wcs[1].Status != rdma.WCWRFlushErr {
		t.Errorf("second completion: %v", wcs[1].Err())
	}
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() { check(t, c.Close()) })
}

func random(b []byte, seed byte) {
	c := rand.NewChaCha8([32]byte{seed})
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, c.Uint64())
	}
}

func post(t *testing.T, q rdma.QP, wrs ...rdma.SendWR) {
	t.Helper()
	if n, err := q.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func await(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	wcs := make([]rdma.WC, n)
	for got, tries := 0, 0; got < n; tries++ {
		k, err := q.Poll(wcs[got:])
		check(t, err)
		if got += k; k == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if tries > 6_000_000 {
			t.Fatalf("%d completions of %d", got, n)
		}
	}
	return wcs
}

func good(t *testing.T, q rdma.CQ, n int) []rdma.WC {
	t.Helper()
	wcs := await(t, q, n)
	for i := range wcs {
		check(t, wcs[i].Err())
	}
	return wcs
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

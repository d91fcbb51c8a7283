package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/blockiotest"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/softnic"
)

// gpu is a fabric whose NIC reaches the memory of the device, and copies to read it.
type gpu struct {
	*fabric
	copies  stream.Stream
	staging *mem.Region
}

func newGPU(t *testing.T, dev device.Device, bytes int64) *gpu {
	t.Helper()
	m := softnic.NewMover(func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) })
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	p, err := soft.New(soft.Options{Mover: m})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	g := &gpu{fabric: &fabric{dev: dev, devices: registry.NewDevices(p), names: []string{"soft0"}}}
	g.copies, err = streamcopy.Open(dev, streamcopy.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, g.copies.Close(context.Background())) })
	g.staging, err = dev.AllocHost(bytes)
	must(t, err)
	t.Cleanup(func() { must(t, dev.Free(g.staging)) })
	return g
}

func (g *gpu) copy(dst, src mem.Extent) error {
	k, err := g.copies.Submit(context.Background(), &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		return err
	}
	return k.Wait(context.Background())
}

// Pieces in device memory are stored and retrieved, flushed, and summed on the device. Damaged ones
// are detected.
func TestPiecesInDeviceMemory(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	piecesInDeviceMemory(t, dev, dev.FlushRemoteWrites)
}

// The software NIC copies with streams of the GPU, whose writes need no flush.
func TestCUDAPiecesInDeviceMemory(t *testing.T) {
	piecesInDeviceMemory(t, cudatest.Open(t), func() error { return nil })
}

func piecesInDeviceMemory(t *testing.T, dev device.Device, flush func() error) {
	t.Helper()
	const n = 32 * blockio.MinDeviceBytes
	f := newGPU(t, dev, n)
	s := blockiotest.NewServer(blockio.DefaultLimits())
	g := f.gateway(t, gateway.Options{})
	var flushes atomic.Int64
	r := f.client(t)
	r.Flush = func(device int) error {
		flushes.Add(1)
		return flush()
	}
	r.Sum = func(e mem.Extent) (uint64, error) {
		staged := mem.Extent{Region: f.staging, Len: e.Len}
		err := f.copy(staged, e)
		return xxh3.Hash(staged.Bytes()), err
	}
	pages, err := f.dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	must(t, r.NIC.Register(rdma.MROptions{Access: blockio.PeerAccess}, pages))
	t.Cleanup(func() {
		must(t, registry.Unregister(context.Background(), []*registry.Registry{r.NIC}, pages))
		must(t, f.dev.Free(pages))
	})
	c, err := blockio.NewClient(blockio.ClientOptions{
		Dial: listen(t, func(nc net.Conn) { s.Serve(t, g.Open(nc, true)) }), RDMA: r, Timeout: min(testkit.Patience(), time.Minute),
		Formats: []blockio.Format{{Identity: block.Digest{identity}, ShardBytes: []int64{n}}},
	})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close(context.Background())) })
	var pieces []blockio.Piece
	for at := int64(0); at < n; at += blockio.MinDeviceBytes {
		pieces = append(pieces, blockio.Piece{
			Key: block.Key{1}, Identity: identity, Offset: uint64(at), Mem: mem.Extent{Region: pages, Off: at, Len: blockio.MinDeviceBytes},
		})
	}
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	copy(f.staging.Bytes(), want)
	must(t, f.copy(mem.All(pages), mem.All(f.staging)))
	errs := make([]error, len(pieces))
	c.Store(t.Context(), pieces, errs)
	must(t, errors.Join(errs...))
	clear(f.staging.Bytes())
	must(t, f.copy(mem.All(pages), mem.All(f.staging)))
	c.Retrieve(t.Context(), pieces, errs)
	must(t, errors.Join(errs...))
	must(t, f.copy(mem.All(f.staging), mem.All(pages)))
	if !bytes.Equal(f.staging.Bytes(), want) || flushes.Load() == 0 {
		t.Errorf("the bytes differ, or %d flushes", flushes.Load())
	}
	s.Behave(blockiotest.Behavior{Change: func(b []byte) { b[100] ^= 1 }})
	c.Retrieve(t.Context(), pieces[:1], errs[:1])
	if !errors.Is(errs[0], errdefs.ErrCorrupt) {
		t.Errorf("a piece with a flipped bit: %v", errs[0])
	}
}

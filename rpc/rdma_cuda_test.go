package rpc_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
)

// TestOnGPU runs the counted copies on a real GPU with a software NIC, and moves long attachments by
// blocks and directly, with one copy and no copy within the device.
func TestOnGPU(t *testing.T) {
	dev := cudatest.Open(t)
	t.Run("copies", func(t *testing.T) { testCopies(t, newFabricOn(t, dev, nil)) })
	t.Run("split headers", func(t *testing.T) { testSplitHeaders(t, newFabricOn(t, dev, nil)) })
	t.Run("blocks", func(t *testing.T) { testLongBlocks(t, newFabricOn(t, dev, nil), 48<<20) })
	for _, n := range []int{48 << 20, 512 << 20} {
		t.Run("direct", func(t *testing.T) { testLongDirect(t, newFabricOn(t, dev, nil), n) })
	}
}

// Attachments of many blocks on the simulated device.
func TestLongAttachments(t *testing.T) {
	testLongBlocks(t, newFabric(t), 5<<20)
	testLongDirect(t, newFabric(t), 9<<20)
}

// testLongBlocks receives an attachment into blocks, and copies it to one region: one copy within
// the device.
func testLongBlocks(t *testing.T, f *fabric, n int) {
	t.Helper()
	blocks := func(o *rpc.RDMAOptions) {
		o.RegionBytes, o.Queue = 64<<20, 128
		if o.GPU != nil {
			o.GPU = &rpc.GPUOptions{Device: f.dev, RegionBytes: 256 << 20}
		}
	}
	sr, nic := f.open(t, true, blocks), f.nic(t)
	want := random(1, n)
	source, to := f.alloc(t, nic, want), f.alloc(t, nil, make([]byte, n))
	cr := f.open(t, false, func(o *rpc.RDMAOptions) {
		blocks(o)
		o.NIC = nic
	})
	_, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, func(c *rpc.Call) error {
		before := f.dev.within.Load()
		k, err := c.Attachment.CopyFromGPU(mem.All(to), int64(n), 0)
		if copies := f.dev.within.Load() - before; err != nil || k != int64(n) || copies != 1 {
			t.Errorf("%d bytes by %d copies: %v", k, copies, err)
		}
		c.Attachment.Release()
		return nil
	}))
	client := newClient(t, addr, rpc.ClientOptions{RDMA: cr})
	began := time.Now()
	c := new(chain.Chain)
	b, err := chain.NewRegistered(mem.All(source), nil)
	must(t, err)
	c.AppendBlock(b, int64(n))
	if _, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(c)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes by blocks in %v, %d copies to the host", n, time.Since(began), f.dev.toHost.Load())
	if !bytes.Equal(f.read(t, mem.All(to)), want) {
		t.Error("the bytes differ")
	}
}

// testLongDirect places a tensor in both directions, beside small calls.
func testLongDirect(t *testing.T, f *fabric, n int) {
	t.Helper()
	d := newDirect(t, f, true, func(o *rpc.RDMAOptions) { o.Stall = testkit.Patience() })
	want := random(2, n)
	source, middle := d.alloc(t, d.nics[1], want), d.alloc(t, d.nics[0], make([]byte, n))
	to := d.alloc(t, d.nics[1], make([]byte, n))
	d.handle = func(ctx context.Context, c *rpc.Call) error {
		if err := c.ReadSource(ctx, all(middle)); err != nil {
			return err
		}
		return c.WriteDestination(ctx, all(middle))
	}
	began := time.Now()
	_, err := echoCall(t.Context(), d.client, "place", rpc.WithSource(rpc.Memory{Extents: all(source)}), rpc.WithDestination(rpc.Memory{Extents: all(to)}))
	must(t, err)
	t.Logf("%d bytes directly, there and back, in %v", n, time.Since(began))
	if within, toDevice := f.dev.within.Load(), f.dev.toDevice.Load(); within+toDevice != 0 {
		t.Errorf("%d copies within, %d to the device", within, toDevice)
	}
	if !bytes.Equal(d.read(t, mem.All(to)), want) {
		t.Error("the bytes differ")
	}
}

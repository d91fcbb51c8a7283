package rpc_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"sync"
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
	t.Run("small calls", func(t *testing.T) { testSmallCalls(t, newFabricOn(t, dev, nil), 48<<20, 2*time.Second) })
}

// Attachments of many blocks on the simulated device.
func TestLongAttachments(t *testing.T) {
	testkit.SkipRace(t, "TestDeviceOperationNFails has long attachments too")
	testLongBlocks(t, newFabric(t), 5<<20)
	testLongDirect(t, newFabric(t), 9<<20)
	testSmallCalls(t, newFabric(t), 4<<20, 20*time.Millisecond)
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
		k, err := c.Attachment.CopyFromGPU(t.Context(), mem.All(to), int64(n), 0)
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

// testSmallCalls logs the times of calls of 4 KiB alone, and beside transfers of n bytes by blocks
// and directly, on the same connection.
func testSmallCalls(t *testing.T, f *fabric, n int, d time.Duration) {
	t.Helper()
	k := newDirect(t, f, true, func(o *rpc.RDMAOptions) {
		o.RegionBytes, o.Queue, o.Stall = 64<<20, 128, testkit.Patience()
		o.GPU = &rpc.GPUOptions{Device: f.dev, RegionBytes: 256 << 20}
	})
	source, middle := k.alloc(t, k.nics[1], random(1, n)), k.alloc(t, k.nics[0], make([]byte, n))
	k.handle = func(ctx context.Context, c *rpc.Call) error {
		if c.SourceBytes() == 0 {
			return nil
		}
		return c.ReadSource(ctx, all(middle))
	}
	small := hex.EncodeToString(random(2, 2048))
	block := func() rpc.CallOption {
		c := new(chain.Chain)
		b, err := chain.NewRegistered(mem.All(source), nil)
		must(t, err)
		c.AppendBlock(b, b.Len())
		return rpc.WithAttachment(c)
	}
	direct := func() rpc.CallOption { return rpc.WithSource(rpc.Memory{Extents: all(source)}) }
	for _, mode := range []struct {
		name string
		long func() rpc.CallOption
	}{{"alone", nil}, {"beside blocks", block}, {"beside direct placement", direct}} {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		transfers := 0
		if mode.long != nil {
			group.Go(func() {
				for ctx.Err() == nil {
					if _, err := echoCall(t.Context(), k.client, "place", mode.long()); err != nil {
						t.Errorf("%s: %v", mode.name, err)
						return
					}
					transfers++
				}
			})
		}
		var times []time.Duration
		for end := time.Now().Add(d); time.Now().Before(end); {
			began := time.Now()
			if m, err := echoCall(t.Context(), k.client, small); err != nil || m != small {
				t.Errorf("%s: %v", mode.name, err)
				break
			}
			times = append(times, time.Since(began))
		}
		cancel()
		group.Wait()
		if slices.Sort(times); len(times) > 0 {
			t.Logf("4 KiB %s: %d calls, p50 %v, p99 %v; %d transfers of %d bytes", mode.name, len(times), times[len(times)/2], times[len(times)*99/100], transfers, n)
		}
	}
}

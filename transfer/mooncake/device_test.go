package mooncake_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
	"github.com/kvlane/kvlane/wire"
)

const stagedChunks = 4

// serveDevice serves n bytes of device memory. They are staged through stagedChunks chunks in each
// direction.
func serveDevice(t *testing.T, n int64) (*mooncake.Server, *mem.Region) {
	t.Helper()
	d, err := sim.Open(sim.Options{})
	must(t, err)
	s, err := streamcopy.Open(d, streamcopy.Options{})
	must(t, err)
	m, err := wire.NewMover(wire.MoverOptions{Device: d, Copy: s, ChunkBytes: 64 << 10, Chunks: stagedChunks})
	must(t, err)
	gpu, err := d.Alloc(n, device.AllocOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(m.Close(), d.Free(gpu), s.Close(within(t)), d.Close())) })
	regions := mooncake.NewRegions(m)
	must(t, regions.Add("cuda:0", gpu))
	server, _ := serve(t, 4096, func(o *mooncake.ServerOptions) { o.Memory = regions })
	return server, gpu
}

// staysAvailable checks that another peer can move n bytes.
func staysAvailable(t *testing.T, server *mooncake.Server, op transfer.Op, gpu *mem.Region, n uint64) {
	t.Helper()
	remote, here := open(t, server.Segment().Name, int64(n), nil)
	for range 3 {
		b, err := remote.Submit(t.Context(), []mooncake.Task{{Op: op, Local: addr(here), Remote: mooncake.Address(gpu), Length: n}})
		must(t, err)
		patient, cancel := context.WithTimeout(t.Context(), testkit.Patience())
		must(t, b.Wait(patient))
		cancel()
	}
}

// TestDefectTrickleTakesChunks starts more slow writers than there are staging chunks. Other
// transfers must still get chunks.
func TestDefectTrickleTakesChunks(t *testing.T) {
	const n = 1 << 20
	server, gpu := serveDevice(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for range 2 * stagedChunks {
		c := talk(t, dataAddr(server))
		_, err := c.Write(append(request(n, mooncake.Address(gpu), 0x81), 1))
		must(t, err)
		go func() {
			for ctx.Err() == nil {
				if _, err := c.Write([]byte{1}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	staysAvailable(t, server, transfer.Write, gpu, n)
}

// TestDefectSlowReaderTakesChunks starts more slow readers than there are staging chunks. Other
// transfers must still get chunks.
func TestDefectSlowReaderTakesChunks(t *testing.T) {
	const n = 16 << 20 // more than the socket buffers hold
	server, gpu := serveDevice(t, n)
	for range 2 * stagedChunks {
		c := talk(t, dataAddr(server))
		defer c.Close() // runs before the cleanups, which close the server
		must(t, c.SetReadBuffer(256<<10))
		_, err := c.Write(request(n, mooncake.Address(gpu), 0x80))
		must(t, err)
	}
	staysAvailable(t, server, transfer.Read, gpu, 1<<20)
}

package mooncake_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/transfer/memory"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// TestDefectTrickleTakesChunks: more writers than there are chunks, who send a byte now and then, do not keep others' bytes from being staged.
func TestDefectTrickleTakesChunks(t *testing.T) {
	const n, chunks = 1 << 20, 4
	d, err := sim.Open(sim.Options{})
	must(t, err)
	s, err := streamcopy.Open(d, streamcopy.Options{})
	must(t, err)
	m, err := memory.NewMover(memory.Options{Device: d, Copy: s, ChunkBytes: 64 << 10, Chunks: chunks})
	must(t, err)
	gpu, err := d.Alloc(n, device.AllocOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(m.Close(), d.Free(gpu), s.Close(within(t)), d.Close())) })
	regions := mooncake.NewRegions(m)
	must(t, regions.Add("cuda:0", gpu))
	server, _ := serve(t, 4096, func(o *mooncake.ServerOptions) { o.Memory = regions })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for range 2 * chunks {
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
	remote, here := open(t, server.Name(), n, nil)
	for range 3 {
		b, err := remote.Submit(t.Context(), []mooncake.Task{{Op: mooncake.Write, Local: addr(here), Remote: mooncake.Address(gpu), Length: n}})
		must(t, err)
		patient, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		must(t, b.Wait(patient))
		cancel()
	}
}

package copy_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// BenchmarkNIC compares a stream over NICs that copy nothing with a copy stream that uses the same
// NICs. The difference is the cost of the copy stream.
func BenchmarkNIC(b *testing.B) {
	dev := openSim(b, sim.Options{})
	g := newNICRig(b, dev, soft.Options{Mover: rdmatest.NullMover{}})
	gpu, host := g.device(b, 1<<20), g.pinned(b, 1<<20)
	c := g.carrier(nic.Options{})
	path := func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{Path: c.Path, NIC: c}) }
	for _, pieces := range []int{1, 64} {
		batch := streamtest.Strided(gpu, host, pieces, 4<<10)
		for _, depth := range []int{1, 16} {
			for name, open := range map[string]func() (stream.Stream, error){"alone": c.Open, "path": path} {
				b.Run(fmt.Sprintf("%s/pieces=%d/depth=%d", name, pieces, depth), func(b *testing.B) {
					s, err := open()
					if err != nil {
						b.Fatal(err)
					}
					b.ReportAllocs()
					tickets := make([]*stream.Ticket, depth)
					for i := 0; i < b.N && err == nil; i++ {
						k := &tickets[i%depth]
						if *k != nil {
							err = (*k).Wait(b.Context())
						}
						if err == nil {
							*k, err = s.Submit(b.Context(), batch)
						}
					}
					if err := errors.Join(err, s.Close(context.Background())); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}

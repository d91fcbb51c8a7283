package copy_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// route is a path between two memories.
type route struct {
	path    stream.Path
	forward bool  // to the device; with peers, from the peer to the stream's device
	copies  int   // number of copies of a batch
	chunk   int64 // if not 0, the path is planned with this chunk size instead of forced
	peers   bool  // between two devices
}

func (w route) String() string {
	return fmt.Sprintf("%s chunk %d forward %t peers %t", pathName(w.path), w.chunk, w.forward, w.peers)
}

// routes returns all paths in both directions, with batches that no path can issue in one step.
func routes() []route {
	var all []route
	for _, forward := range []bool{true, false} {
		for _, path := range paths {
			w := route{path: path, forward: forward, copies: 1500}
			all = append(all, w)
		}
		for _, path := range peerPaths[1:] {
			all = append(all, route{path: path, forward: forward, copies: 1500, peers: true})
		}
		all = append(all, route{path: stream.PathStaged, forward: forward, copies: 1500, chunk: 1 << 10})
	}
	return all
}

// cancelRig is a stream on a route between two simulated devices. The first device executes
// operations only when the test steps it, in a seeded order over all its queues. The second device
// is used to read and write memory at once.
type cancelRig struct {
	dev, far *sim.Device
	s        *streamcopy.Stream
	dst, src *mem.Region
	notice   time.Duration // time for the stream to notice a step of the device
}

func (w route) open(t *testing.T, seed uint64, bytes int64) cancelRig {
	t.Helper()
	c := cancelRig{}
	c.dev, c.far = simPeers(t, sim.Options{Interleave: &sim.Interleave{Seed: seed, Manual: true}})
	other := streamtest.Pinned(c.dev)
	if w.peers {
		other = streamtest.DeviceMemory(c.far)
	}
	c.dst, c.src = streamtest.DeviceMemory(c.dev).Alloc(t, bytes), other.Alloc(t, bytes)
	if !w.forward {
		c.dst, c.src = c.src, c.dst
	}
	o := streamcopy.Options{Path: w.path, Descriptors: streamcopy.MinDescriptors, StagingBytes: streamcopy.MinStagingBytes}
	if w.chunk > 0 {
		o.Path, o.Planner = stream.PathNone, &fixedPlanner{choice: plan.Choice{Path: w.path, ChunkBytes: w.chunk}}
	}
	c.s = open(t, c.dev, o)
	return c
}

// close closes the stream while it steps the device.
func (c *cancelRig) close(t *testing.T) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- c.s.Close(deadline(t)) }()
	if err := c.stepUntil(closed); err != nil {
		t.Error(err)
	}
}

// end steps the device until the ticket resolves, and reports whether the batch was canceled.
func (c *cancelRig) end(t *testing.T, ticket *stream.Ticket) bool {
	t.Helper()
	resolved := make(chan error, 1)
	go func() { resolved <- ticket.Wait(deadline(t)) }()
	switch err := c.stepUntil(resolved); {
	case errors.Is(err, errdefs.ErrCanceled):
		return true
	case err != nil:
		t.Fatal(err)
	}
	return false
}

// TestCancelProvesQuiescence cancels a batch of many steps after each possible number of device
// operations. When the ticket resolves, it overwrites the destination. Operations that the device
// executes later must not change it.
func TestCancelProvesQuiescence(t *testing.T) {
	const seeds, size = 12, 16
	for _, w := range routes() {
		t.Run(w.String(), func(t *testing.T) {
			canceled := 0
			for seed := range uint64(seeds) {
				c := w.open(t, seed, int64(w.copies)*(size+1))
				ticket := submitOK(t, c.s, streamtest.Strided(c.dst, c.src, w.copies, size))
				for range rand.New(rand.NewPCG(seed, 10)).IntN(20) {
					c.dev.Step()
				}
				ticket.Cancel()
				if c.end(t, ticket) {
					canceled++
				}
				c.checkUnchanged(t, mem.All(c.dst))
				c.close(t)
			}
			if canceled == 0 && w.path != stream.PathNone {
				t.Error("no ticket was cancelled before its end: nothing was tested")
			}
		})
	}
}

// TestCancelAmongOthers cancels some of many batches in flight, in random order. After its ticket
// resolves, the memory of a canceled batch must not be written. All other batches must be copied.
func TestCancelAmongOthers(t *testing.T) {
	const seeds, batches, each, size = 4, 24, 40, 16
	const bytes = each * (size + 1)
	for _, w := range routes() {
		t.Run(w.String(), func(t *testing.T) {
			for seed := range uint64(seeds) {
				rng := rand.New(rand.NewPCG(seed, 12))
				c := w.open(t, seed, batches*bytes)
				want := make([]byte, batches*bytes)
				for i := range want {
					want[i] = byte(rng.Uint32())
				}
				memoryOf(c.src, c.far).Write(t, mem.All(c.src), want)
				var tickets []*stream.Ticket
				for i := range int64(batches) {
					b := streamtest.Strided(c.dst, c.src, each, size)
					for j := range b.Dst {
						b.Dst[j].Off += i * bytes
						b.Src[j].Off += i * bytes
					}
					tickets = append(tickets, submitOK(t, c.s, b))
				}
				for _, i := range rng.Perm(batches)[:batches/2] {
					for range rng.IntN(4) {
						c.dev.Step()
					}
					tickets[i].Cancel()
				}
				for i, ticket := range tickets {
					e := mem.Extent{Region: c.dst, Off: int64(i) * bytes, Len: bytes}
					if c.end(t, ticket) {
						c.checkUnchanged(t, e)
						continue
					}
					got := memoryOf(c.dst, c.far).Read(t, e)
					for j := range got {
						if j%(size+1) < size && got[j] != want[i*bytes+j] {
							t.Fatalf("seed %d, batch %d, byte %d: %#02x, want %#02x", seed, i, j, got[j], want[i*bytes+j])
						}
					}
				}
				c.close(t)
			}
		})
	}
}

// checkUnchanged overwrites e, lets the device execute all remaining operations, and checks that e
// did not change.
func (c *cancelRig) checkUnchanged(t *testing.T, e mem.Extent) {
	t.Helper()
	memory, sentinel := memoryOf(e.Region, c.far), bytes.Repeat([]byte{0xa5}, int(e.Len))
	memory.Write(t, e, sentinel)
	c.dev.StepAll()
	if !bytes.Equal(memory.Read(t, e), sentinel) {
		t.Error("memory was written after its ticket had resolved")
	}
}

// stepUntil steps the device until done receives a value. After each step it gives the stream time
// to notice it.
func (c *cancelRig) stepUntil(done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		default:
			if c.dev.Step() {
				time.Sleep(c.notice)
			} else {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
}

func submitOK(t *testing.T, s *streamcopy.Stream, b *mem.Batch) *stream.Ticket {
	t.Helper()
	ticket, err := s.Submit(deadline(t), b)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

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

// way is a path and the two memories that batches go between.
type way struct {
	path    stream.Path
	forward bool  // to the device, or to the stream's device from its peer
	copies  int   // of a batch
	chunk   int64 // the path is not forced but planned, with chunks of so many bytes
	peers   bool  // between two devices
}

func (w way) String() string {
	return fmt.Sprintf("%s chunk %d forward %t peers %t", pathName(w.path), w.chunk, w.forward, w.peers)
}

// ways are all paths, both ways, with batches that no path can issue at once.
func ways() []way {
	var all []way
	for _, forward := range []bool{true, false} {
		for _, path := range paths {
			w := way{path: path, forward: forward, copies: 1500}
			all = append(all, w)
		}
		for _, path := range peerPaths[1:] {
			all = append(all, way{path: path, forward: forward, copies: 1500, peers: true})
		}
		all = append(all, way{path: stream.PathStaged, forward: forward, copies: 1500, chunk: 1 << 10})
	}
	return all
}

// crossing is one way on two simulated devices. What the first does is done one operation at a time in a seeded order of
// all its queues, when the test says so; the second does at once what the test looks at memory with.
type crossing struct {
	dev, far *sim.Device
	s        *streamcopy.Stream
	dst, src *mem.Region
	notice   time.Duration // what the stream may take to see that a step was done
}

func (w way) open(t *testing.T, seed uint64, bytes int64) crossing {
	t.Helper()
	c := crossing{}
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
		o.Path, o.Planner = stream.PathNone, &decider{choice: plan.Choice{Path: w.path, ChunkBytes: w.chunk}}
	}
	c.s = open(t, c.dev, o)
	return c
}

// close closes the stream, with the device at work.
func (c *crossing) close(t *testing.T) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- c.s.Close(deadline(t)) }()
	if err := c.stepUntil(closed); err != nil {
		t.Error(err)
	}
}

// end has the device work until the ticket has resolved, and reports whether the batch was cancelled.
func (c *crossing) end(t *testing.T, ticket *stream.Ticket) bool {
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

// TestCancelProvesQuiescence cancels a batch of many steps after any number of the device's operations, and overwrites the
// destination once the ticket has resolved. What is still to be done then must not change it.
func TestCancelProvesQuiescence(t *testing.T) {
	const seeds, size = 12, 16
	for _, w := range ways() {
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
				c.stays(t, mem.All(c.dst))
				c.close(t)
			}
			if canceled == 0 && w.path != stream.PathNone {
				t.Error("no ticket was cancelled before its end: nothing was tested")
			}
		})
	}
}

// TestCancelAmongOthers has many batches in flight and cancels some of them, in any order. Each that was cancelled must not
// be touched any more; the others must arrive.
func TestCancelAmongOthers(t *testing.T) {
	const seeds, batches, each, size = 4, 24, 40, 16
	const bytes = each * (size + 1)
	for _, w := range ways() {
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
						c.stays(t, e)
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

// stays overwrites e and does all that the device has still to do.
func (c *crossing) stays(t *testing.T, e mem.Extent) {
	t.Helper()
	memory, sentinel := memoryOf(e.Region, c.far), bytes.Repeat([]byte{0xa5}, int(e.Len))
	memory.Write(t, e, sentinel)
	c.dev.StepAll()
	if !bytes.Equal(memory.Read(t, e), sentinel) {
		t.Error("memory was written after its ticket had resolved")
	}
}

// stepUntil has the device work until done answers, and lets the stream see each step.
func (c *crossing) stepUntil(done <-chan error) error {
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

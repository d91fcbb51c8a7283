package share_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// openStream opens a copy stream and closes it when the test ends.
func openStream(t *testing.T, dev device.Device, o streamcopy.Options) *streamcopy.Stream {
	t.Helper()
	s, err := streamcopy.Open(dev, o)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wait(t *testing.T, ticket *stream.Ticket) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return ticket.Wait(ctx)
}

// scattered returns a batch that copies every second block of src to the same place in dst.
func scattered(dst, src *mem.Region, block int64) *mem.Batch {
	b := new(mem.Batch)
	for off := int64(0); off+block <= src.Len(); off += 2 * block {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: off, Len: block})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: off, Len: block})
	}
	return b
}

// TestRequirement8Copies checks that streams copy between imported memory and the device's own
// memory on all paths and in both directions, and that they copy imported host memory like local
// host memory.
func TestRequirement8Copies(t *testing.T) {
	const n = 1 << 20
	other, d, host := startExporter(t, filepath.Join(t.TempDir(), "s"), "x.sock", n)
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	i, ih := take(t, in, d), take(t, in, host)
	local, err := dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	for v, path := range []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel} {
		s := openStream(t, dev, streamcopy.Options{Path: path})
		other.do(fmt.Sprintf("fill %d", 10+v))
		ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}})
		must(t, err)
		must(t, wait(t, ticket))
		must(t, check(dev, local, byte(10+v)))
		must(t, fill(dev, local, byte(20+v)))
		for _, b := range []*mem.Batch{scattered(i.Region(), local, 4096), {Dst: []mem.Extent{mem.All(i.Region())}, Src: []mem.Extent{mem.All(local)}}} {
			ticket, err = s.Submit(t.Context(), b)
			must(t, err)
			must(t, wait(t, ticket))
		}
		other.do(fmt.Sprintf("check %d", 20+v))
		if ticket, err = s.Submit(t.Context(), scattered(ih.Region(), local, 4096)); err == nil {
			err = wait(t, ticket)
		}
		must(t, err)
		if b := ih.Region().Bytes(); b[0] != byte(20+v) || b[4096] != 0 && b[4096] != byte(19+v) {
			t.Errorf("host memory of the other process: %#x, %#x", b[0], b[4096])
		}
	}
	// Other devices have no access to the imported memory.
	third := simDevice(t, sim.Options{})
	must(t, third.EnablePeer(dev))
	s := openStream(t, third, streamcopy.Options{})
	mine, err := third.Alloc(n, device.AllocOptions{})
	must(t, err)
	if _, err := s.Submit(t.Context(), scattered(mine, i.Region(), 4096)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("submit a copy of another device's import: %v", err)
	}
	must(t, errors.Join(third.Free(mine), dev.Free(local), i.Close(), ih.Close()))
	other.end()
}

// TestRequirement8GoodOnlyIfLive checks that a copy fails if its export ends before the copy does,
// even if the bytes were copied. The stream stays usable.
func TestRequirement8GoodOnlyIfLive(t *testing.T) {
	for _, how := range []string{"withdraw", "kill"} {
		t.Run(how, func(t *testing.T) {
			const n = 64 << 10
			other, d, _ := startExporter(t, filepath.Join(t.TempDir(), "s"), "x.sock", n)
			other.do("fill 3")
			faults := fault.New(1, fault.Nth(sim.OpWork, 1).Stall())
			dev := simDevice(t, sim.Options{Index: 1, Faults: faults})
			in := importer(t, dev)
			i := take(t, in, d)
			local, err := dev.Alloc(n, device.AllocOptions{})
			must(t, err)
			s := openStream(t, dev, streamcopy.Options{Path: stream.PathCopyEngine})
			batch := &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}}
			good, err := s.Submit(t.Context(), batch)
			must(t, err)
			must(t, wait(t, good))
			bad, err := s.Submit(t.Context(), batch)
			must(t, err)
			must(t, faults.Await(t.Context(), 1))
			if how == "kill" {
				other.kill()
			} else {
				_, err := fmt.Fprintln(other.in, "withdraw")
				must(t, err)
				lost(t, i)
			}
			faults.Release()
			if how == "withdraw" {
				if got := other.line(); got != "<nil>" {
					t.Errorf("withdraw: %s", got)
				}
			}
			if err := wait(t, bad); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("a copy that ended after the export: %v", err)
			}
			if c := bad.Completion(); c.Bytes != 0 {
				t.Errorf("completion %+v", c)
			}
			if _, err := s.Submit(t.Context(), batch); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("submit of a lost region: %v", err)
			}
			half := n / 2
			own, err := s.Submit(t.Context(), &mem.Batch{
				Dst: []mem.Extent{{Region: local, Len: int64(half)}}, Src: []mem.Extent{{Region: local, Off: int64(half), Len: int64(half)}},
			})
			must(t, err)
			must(t, wait(t, own))
			must(t, errors.Join(dev.Free(local), i.Close()))
		})
	}
}

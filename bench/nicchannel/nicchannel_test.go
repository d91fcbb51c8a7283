package nicchannel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/bench/nicchannel"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/softnic"
)

func openChannel(tb testing.TB, o nicchannel.Options) *nicchannel.Channel {
	tb.Helper()
	c, err := nicchannel.Open(o)
	check(tb, err)
	tb.Cleanup(func() { check(tb, c.Close(context.Background())) })
	return c
}

// shuffled returns batches that copy blocks of src, in random order, to those of dst.
func shuffled(dst, src *mem.Region, size int64) []mem.Batch {
	n := int(src.Len() / size)
	batches := make([]mem.Batch, 2)
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		b := &batches[i*2/n]
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: int64(i) * size, Len: size})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: int64(at) * size, Len: size})
	}
	return batches
}

func wantShuffled(tb testing.TB, dst, src *mem.Region, size int64) {
	tb.Helper()
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(int(src.Len() / size)) {
		if off := int64(at) * size; !bytes.Equal(dst.Bytes()[int64(i)*size:][:size], src.Bytes()[off:off+size]) {
			tb.Fatalf("block %d is not block %d of the source", i, at)
		}
	}
}

func random(b []byte) {
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b) // never fails
}

// All blocks are copied, even if they exceed a chain or the queue, or a block exceeds a request.
func TestChannelCopies(t *testing.T) {
	for _, c := range []struct {
		size, bytes int64
		depth       int
	}{{512, 1 << 20, 0}, {512, 256 << 10, 3}, {3 << 20, 12 << 20, 64}, {64 << 10, 64 << 10, 128}} {
		t.Run(fmt.Sprintf("%d bytes, depth %d", c.size, c.depth), func(t *testing.T) {
			g := softNIC(t, nil, soft.DeviceOptions{})
			dst, src := host(t, g, c.bytes), host(t, g, c.bytes)
			random(src.Bytes())
			ch := openChannel(t, nicchannel.Options{Registry: g, Depth: c.depth})
			for range 2 {
				clear(dst.Bytes())
				if posted, err := ch.Move(t.Context(), shuffled(dst, src, c.size)); err != nil || posted.IsZero() {
					t.Fatal(err)
				}
				wantShuffled(t, dst, src, c.size)
			}
			if ch.Path() != stream.PathNICSoft {
				t.Errorf("path %s", ch.Path())
			}
		})
	}
}

func TestVerbsChannelCopies(t *testing.T) {
	g, connect := verbsNIC(t)
	dst, src := host(t, g, 1<<20), host(t, g, 1<<20)
	random(src.Bytes())
	ch := openChannel(t, nicchannel.Options{Registry: g, Connect: connect})
	if _, err := ch.Move(t.Context(), shuffled(dst, src, 4096)); err != nil {
		t.Fatal(err)
	}
	wantShuffled(t, dst, src, 4096)
	if ch.Path() != stream.PathNIC {
		t.Errorf("path %s", ch.Path())
	}
}

// Copies to a device are writes, and copies from it are reads, as in a stream.
func TestChannelCopiesDeviceMemory(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	check(t, err)
	closing(t, dev)
	m := softnic.NewMover(func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) })
	t.Cleanup(func() { check(t, m.Close(context.Background())) })
	p, err := soft.New(soft.Options{Mover: m})
	check(t, err)
	closing(t, p)
	g := firstNIC(t, p)
	const bytes = 256 << 10
	var regions [3]*mem.Region
	for i := range regions {
		if i == 1 {
			regions[i], err = dev.Alloc(bytes, device.AllocOptions{})
		} else {
			regions[i], err = dev.AllocHost(bytes)
		}
		check(t, err)
		t.Cleanup(func() { check(t, dev.Free(regions[i])) })
	}
	check(t, g.Register(all, regions[:]...))
	t.Cleanup(func() { check(t, registry.Unregister(context.Background(), []*registry.Registry{g}, regions[:]...)) })
	random(regions[0].Bytes())
	ch := openChannel(t, nicchannel.Options{Registry: g})
	for i := range 2 {
		if _, err := ch.Move(t.Context(), []mem.Batch{{Dst: []mem.Extent{mem.All(regions[i+1])}, Src: []mem.Extent{mem.All(regions[i])}}}); err != nil {
			t.Fatal(err)
		}
	}
	wantShuffled(t, regions[2], regions[0], bytes)
}

func TestChannelFails(t *testing.T) {
	g := softNIC(t, fault.New(1, fault.Nth(soft.OpWrite, 700).Fail(nil)), soft.DeviceOptions{})
	dst, src := host(t, g, 1<<20), host(t, g, 1<<20)
	ch := openChannel(t, nicchannel.Options{Registry: g})
	var wc *rdma.WCError
	if _, err := ch.Move(t.Context(), shuffled(dst, src, 1024)); !errors.As(err, &wc) || wc.Status != rdma.WCGeneralErr {
		t.Errorf("error %v", err)
	}

	ch = openChannel(t, nicchannel.Options{Registry: g})
	if _, err := ch.Move(t.Context(), shuffled(dst, memory(t, 1<<20), 1024)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("memory that is not registered: %v", err)
	}
	if _, err := ch.Move(t.Context(), []mem.Batch{{Paged: &mem.Paged{}}}); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("page lists: %v", err)
	}
	for _, o := range []nicchannel.Options{{}, {Registry: g, Depth: -1}, {Registry: g, Connect: rdma.ConnectOptions{Port: 9}}} {
		if _, err := nicchannel.Open(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// If a verb fails while a channel is opened, Open returns the error and leaves nothing open.
func TestChannelOpenFails(t *testing.T) {
	for _, op := range []string{soft.OpQueryPort, soft.OpCreateCQ, soft.OpCreateQP, soft.OpModifyQP, soft.OpQueryGID} {
		plan := fault.New(1, fault.Nth(op, 0).Fail(nil))
		g := softNIC(t, plan, soft.DeviceOptions{})
		if _, err := nicchannel.Open(nicchannel.Options{Registry: g}); err == nil || len(plan.Unreported(err)) > 0 {
			t.Errorf("%s: %v", op, err)
		}
	}
}

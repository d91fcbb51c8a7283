package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// roleEnv makes the test binary run as a target process instead of running tests.
const roleEnv = "KVLANE_TRANSFER_ROLE"

// lockedEnv limits the bytes that a target process may lock. The NICs of such a process are
// optional.
const lockedEnv = "KVLANE_TRANSFER_LOCKED"

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" {
		cudatest.UseDriverOnce()
		testkit.Main(m)
		return
	}
	if err := playTarget(os.Args[1:]); err != nil {
		panic(err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}

// until waits until ok returns true, and fails with what after patience.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
	}
}

// engine opens an engine and closes it when the test ends.
func engine(tb testing.TB, o Options) *Engine {
	tb.Helper()
	e, err := Open(o)
	must(tb, err)
	tb.Cleanup(func() { closeEngine(tb, e) })
	return e
}

func closeEngine(tb testing.TB, e *Engine) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		tb.Error(err)
	}
}

// host returns host memory. It is freed after the engines of the test are closed.
func host(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(n)
	must(tb, err)
	tb.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	must(tb, err)
	return r
}

// pattern fills b with 8-byte words that are all different, also between seeds.
func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>3)*31 ^ byte(i>>11)*17 ^ byte(i>>19) ^ byte(i)*7 ^ seed
	}
}

func same(tb testing.TB, what string, got, want []byte) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			tb.Fatalf("%s: byte %d is %#x, want %#x", what, i, got[i], want[i])
		}
	}
}

// pair is a target engine with a segment, and an initiator engine that has opened the segment.
type pair struct {
	target, initiator *Engine
	segment           *Segment
	remote            *Remote
}

func newPair(tb testing.TB, target, initiator Options, regions ...*mem.Region) *pair {
	tb.Helper()
	p := &pair{target: engine(tb, target), initiator: engine(tb, initiator)}
	p.publish(tb, regions...)
	p.open(tb, p.target.Address())
	return p
}

func (p *pair) publish(tb testing.TB, regions ...*mem.Region) {
	tb.Helper()
	var err error
	p.segment, err = p.target.Publish(tb.Context(), "kv")
	must(tb, err)
	for _, r := range regions {
		_, err := p.segment.Register(tb.Context(), r, RegisterOptions{})
		must(tb, err)
	}
}

func (p *pair) open(tb testing.TB, addr string) {
	tb.Helper()
	var err error
	p.remote, err = p.initiator.OpenSegment(tb.Context(), addr+"/kv")
	must(tb, err)
}

// local registers memory with the initiator's NICs, if it has any.
func (p *pair) local(tb testing.TB, regions ...*mem.Region) {
	tb.Helper()
	for _, r := range regions {
		must(tb, p.initiator.RegisterLocal(r))
	}
}

func (p *pair) submit(tb testing.TB, o SubmitOptions, tasks ...Task) *Batch {
	tb.Helper()
	for i := range tasks {
		if tasks[i].Segment == nil {
			tasks[i].Segment = p.remote
		}
	}
	b, err := p.initiator.Submit(tb.Context(), tasks, o)
	must(tb, err)
	return b
}

func (p *pair) do(tb testing.TB, tasks ...Task) *Batch {
	tb.Helper()
	b := p.submit(tb, SubmitOptions{Timeout: patience}, tasks...)
	must(tb, wait(tb, b))
	return b
}

func wait(tb testing.TB, b *Batch) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return b.Wait(ctx)
}

// gpu is a device with a copy stream. It is usually simulated.
type gpu struct {
	device.Device
	copy *streamcopy.Stream
}

func newGPU(tb testing.TB, o sim.Options) *gpu {
	tb.Helper()
	d, err := sim.Open(o)
	must(tb, err)
	s, err := streamcopy.Open(d, streamcopy.Options{})
	must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(s.Close(ctx), d.Close()); err != nil {
			tb.Error(err)
		}
	})
	return &gpu{d, s}
}

func (g *gpu) options() Options {
	return Options{Device: g.Device, Copy: g.copy, ChunkBytes: 64 << 10, Chunks: 6}
}

// alloc returns device memory. It is freed when the test ends.
func (g *gpu) alloc(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	r, err := g.Alloc(n, device.AllocOptions{Shareable: true})
	must(tb, err)
	tb.Cleanup(func() {
		if err := g.Free(r); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// load copies device memory to a new slice.
func (g *gpu) load(tb testing.TB, r *mem.Region) []byte {
	tb.Helper()
	out := make([]byte, r.Len())
	g.through(tb, r, func(p *mem.Region) { must(tb, g.run(tb, mem.All(p), mem.All(r))); copy(out, p.Bytes()) })
	return out
}

func (g *gpu) store(tb testing.TB, r *mem.Region, b []byte) {
	tb.Helper()
	g.through(tb, r, func(p *mem.Region) { copy(p.Bytes(), b); must(tb, g.run(tb, mem.All(r), mem.All(p))) })
}

func (g *gpu) through(tb testing.TB, r *mem.Region, f func(p *mem.Region)) {
	tb.Helper()
	p, err := g.AllocHost(r.Len())
	must(tb, err)
	f(p)
	must(tb, g.Free(p))
}

func (g *gpu) run(tb testing.TB, dst, src mem.Extent) error {
	tb.Helper()
	t, err := g.copy.Submit(tb.Context(), &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		return err
	}
	return t.Wait(context.Background())
}

// shareServer starts a share server. Together with importer it lets the process import its own
// memory as another process would.
func shareServer(tb testing.TB) *share.Server {
	tb.Helper()
	s, err := share.NewServer(share.Options{Dir: tb.TempDir() + "/s"})
	must(tb, err)
	must(tb, s.Start(tb.Context()))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func importer(tb testing.TB, dev device.Device) *share.Importer {
	tb.Helper()
	in, err := share.NewImporter(dev, share.ImportOptions{})
	must(tb, err)
	tb.Cleanup(func() {
		if err := in.Close(); err != nil {
			tb.Error(err)
		}
	})
	return in
}

// playTarget runs a target process. It publishes a segment "kv" with the given number of bytes, and
// with gpuBytes of a GPU if an index is given. It returns when its input ends.
func playTarget(args []string) error {
	var n int64
	if _, err := fmt.Sscan(args[0], &n); err != nil {
		return err
	}
	h, err := share.AllocHost(nil, n)
	if err != nil {
		return err
	}
	server, err := share.NewServer(share.Options{Dir: args[1]})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := server.Start(ctx); err != nil {
		return err
	}
	nics, closeNICs, err := targetNICs()
	if err != nil {
		return err
	}
	o := Options{Share: server, NICs: nics, NICsOptional: os.Getenv(lockedEnv) != ""}
	var gpu device.Sharer
	var r *mem.Region
	if len(args) > 2 {
		var s *streamcopy.Stream
		if gpu, s, r, err = gpuMemory(args[2]); err != nil {
			return err
		}
		o.Device, o.Copy = gpu, s
		defer func() { _ = errors.Join(s.Close(ctx), gpu.Free(r), gpu.Close()) }()
	}
	e, err := Open(o)
	if err != nil {
		return err
	}
	s, err := e.Publish(ctx, "kv")
	if err != nil {
		return err
	}
	if _, err := s.Register(ctx, h.Region(), RegisterOptions{Source: h}); err != nil {
		return err
	}
	if gpu != nil {
		if _, err := s.Register(ctx, r, RegisterOptions{Source: gpu}); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, e.Address()); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return errors.Join(e.Close(ctx), closeNICs(), server.Close(ctx), h.Close())
}

// sharer returns the device as the source of its shared memory.
func (g *gpu) sharer() share.Source {
	s, _ := g.Device.(device.Sharer) // all devices of these tests implement it
	return s
}

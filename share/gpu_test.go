package share_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// gpuShare is the feature of tests that need both types of handles that work without an IMEX
// channel.
const gpuShare = "cuda-share"

// gpuMemory returns n bytes of GPU memory for each type of handle that works.
func gpuMemory(n int64, index string) (dev device.Sharer, all []sharedMemory, free func() error, err error) {
	i, err := strconv.Atoi(index)
	if err != nil {
		return nil, nil, nil, err
	}
	drv, err := cuda.Load()
	if err != nil {
		return nil, nil, nil, err
	}
	opened, err := drv.Open(i, cuda.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	dev, ok := opened.(device.Sharer)
	if !ok {
		return nil, nil, nil, fmt.Errorf("%T shares no memory", opened)
	}
	for _, by := range dev.HandleTypes() {
		r, err := dev.Alloc(n, device.AllocOptions{Shareable: true, Handle: by})
		if errors.Is(err, errdefs.ErrNotSupported) {
			continue
		}
		if err != nil {
			return nil, nil, nil, err
		}
		all = append(all, sharedMemory{dev, r})
	}
	free = func() error {
		var errs []error
		for _, m := range all {
			errs = append(errs, dev.Free(m.region))
		}
		return errors.Join(append(errs, dev.Close())...)
	}
	return dev, all, free, nil
}

// TestGPUProbe probes each type of handle on the first GPU with a second process, and logs the
// results.
func TestGPUProbe(t *testing.T) {
	dev, ok := cudatest.Open(t).(device.Sharer)
	if !ok {
		t.Fatal("the device does not implement device.Sharer")
	}
	peer := share.ProbeOptions{Peer: func(ctx context.Context) *exec.Cmd { return command(ctx, "probe-gpu") }}
	found := append(share.Probe(t.Context(), dev, peer), share.ProbeHost(t.Context(), dev, peer))
	for _, f := range found {
		t.Logf("%s: %v", f.Type, f.Err)
		if f.Err != nil && !errors.Is(f.Err, errdefs.ErrNotSupported) {
			t.Errorf("%s: inconclusive: %v", f.Type, f.Err)
		}
		if f.Err != nil && f.Type != device.HandleFabric && testkit.Required(gpuShare) {
			t.Errorf("%s does not work: %v", f.Type, f.Err)
		}
	}
	a, err := share.NewAllocator(dev, found[:len(found)-1])
	if err != nil {
		testkit.Skip(t, gpuShare, err.Error())
	}
	t.Logf("chosen: %s", a.Type())
	r, err := a.Alloc(1 << 20)
	must(t, err)
	must(t, dev.Free(r))
}

// TestGPUImportsItsOwn shares memory of one GPU between two processes.
func TestGPUImportsItsOwn(t *testing.T) { shareGPU(t, 0) }

// TestGPUImportsAPeers copies from a process on the first GPU to and from memory that another
// process exports on the second.
func TestGPUImportsAPeers(t *testing.T) {
	if n := cudatest.Count(); n < 2 {
		testkit.Skip(t, "cuda-peer", fmt.Sprintf("there are %d GPUs", n))
	}
	shareGPU(t, 1)
}

func shareGPU(t *testing.T, exporter int) {
	t.Helper()
	const n = 64 << 20
	dev := cudatest.Open(t)
	other := start(t, "export", filepath.Join(t.TempDir(), "s"), "x.sock", strconv.Itoa(n), strconv.Itoa(exporter))
	all := other.descriptors()
	if len(all) == 0 {
		testkit.Skip(t, gpuShare, "no type of handle works")
	}
	in := importer(t, dev)
	local, err := dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	var imports []*share.Import
	for _, d := range all {
		i := take(t, in, d)
		t.Logf("%s: imported as %s", d.Type, i.Region())
		if got := i.Region().Device(); got != exporter {
			t.Errorf("%s: the memory is of device %d, and exported by %d", d.Type, got, exporter)
		}
		imports = append(imports, i)
	}
	for v, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel} {
		s := openStream(t, dev, streamcopy.Options{Path: path})
		for _, i := range imports {
			copyBothWays(t, other, dev, s, local, i, byte(10+v))
		}
	}
	other.kill()
	for _, i := range imports {
		lost(t, i)
		if err := check(dev, i.Region(), 0); !errors.Is(err, errdefs.ErrLost) {
			t.Errorf("%s: read after its exporter was killed: %v", i.Descriptor().Type, err)
		}
		must(t, i.Close())
	}
	must(t, dev.Free(local))
}

// copyBothWays copies from the memory of the other process, writes other bytes to it, also block by
// block, and lets that process check them.
func copyBothWays(t *testing.T, other *process, dev device.Device, s *streamcopy.Stream, local *mem.Region, i *share.Import, v byte) {
	t.Helper()
	other.do(fmt.Sprintf("fill %d", v))
	carry := func(b *mem.Batch) {
		t.Helper()
		begin := time.Now()
		ticket, err := s.Submit(t.Context(), b)
		must(t, err)
		must(t, wait(t, ticket))
		c := ticket.Completion()
		t.Logf("%s: %d pieces, %d bytes by %s: %.1f GB/s", i.Descriptor().Type, c.Pieces, c.Bytes, c.Path, float64(c.Bytes)/float64(time.Since(begin).Nanoseconds()))
	}
	whole := &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}}
	carry(whole)
	must(t, check(dev, local, v))
	must(t, fill(dev, local, v+100))
	carry(&mem.Batch{Dst: whole.Src, Src: whole.Dst})
	must(t, check(dev, i.Region(), v+100))
	must(t, fill(dev, i.Region(), v+50))
	blocks := scattered(i.Region(), local, 4096)
	carry(blocks)
	for k := range blocks.Dst { // shift to the blocks that were not copied
		blocks.Dst[k].Off += 4096
		blocks.Src[k].Off += 4096
	}
	carry(blocks)
	must(t, check(dev, i.Region(), v+100))
}

// BenchmarkGPUImport measures copies from memory of another process on the second GPU: 1 GiB at
// once, and scattered blocks.
func BenchmarkGPUImport(b *testing.B) {
	dev := cudatest.Open(b)
	if cudatest.Count() < 2 {
		testkit.Skip(b, "cuda-peer", "this machine has one GPU")
	}
	const n = 1 << 30
	all := start(b, "export", filepath.Join(b.TempDir(), "s"), "x.sock", strconv.Itoa(n), "1").descriptors()
	if len(all) == 0 {
		testkit.Skip(b, "cuda-peer", "the exporter exports nothing")
	}
	local, err := dev.Alloc(n, device.AllocOptions{})
	must(b, err)
	in := importer(b, dev)
	for _, d := range all {
		i := take(b, in, d)
		for _, block := range []int64{n, 16 << 20, 1 << 20, 4 << 10} {
			batch := &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(i.Region())}}
			if block < n {
				batch = scattered(local, i.Region(), block)
			}
			b.Run(fmt.Sprintf("%s/%dB", d.Type, block), func(b *testing.B) { benchBatch(b, dev, batch) })
			if block == 16<<20 {
				batch := &mem.Batch{Dst: batch.Dst[:1], Src: batch.Src[:1]}
				b.Run(fmt.Sprintf("%s/%dB-by-itself", d.Type, block), func(b *testing.B) { benchBatch(b, dev, batch) })
			}
		}
		must(b, i.Close())
	}
	must(b, dev.Free(local))
}

// benchBatch keeps two batches in flight, on the path that the stream chooses.
func benchBatch(b *testing.B, dev device.Device, batch *mem.Batch) {
	b.Helper()
	s, err := streamcopy.Open(dev, streamcopy.Options{})
	must(b, err)
	b.SetBytes(batch.Bytes())
	var before *stream.Ticket
	for b.Loop() {
		ticket, err := s.Submit(b.Context(), batch)
		must(b, err)
		if before != nil {
			must(b, before.Wait(b.Context()))
		}
		before = ticket
	}
	must(b, before.Wait(b.Context()))
	must(b, s.Close(b.Context()))
}

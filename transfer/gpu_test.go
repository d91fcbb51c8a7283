package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// gpuBytes is the length of a target's GPU memory.
const gpuBytes = 1 << 30

func openGPU(index int) (device.Sharer, error) {
	drv, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	dev, err := drv.Open(index, cuda.Options{})
	if err != nil {
		return nil, err
	}
	s, ok := dev.(device.Sharer)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T shares no memory", dev), dev.Close())
	}
	return s, nil
}

// gpuMemory opens the GPU with the index in text. It returns the device, the stream for a target's
// engine, and memory.
func gpuMemory(text string) (dev device.Sharer, s *streamcopy.Stream, r *mem.Region, err error) {
	index, err := strconv.Atoi(text)
	if err != nil {
		return nil, nil, nil, err
	}
	if dev, err = openGPU(index); err != nil {
		return nil, nil, nil, err
	}
	if s, err = streamcopy.Open(dev, streamcopy.Options{}); err != nil {
		return nil, nil, nil, err
	}
	r, err = dev.Alloc(gpuBytes, device.AllocOptions{Shareable: true, Handle: device.HandlePosixFD})
	return dev, s, r, err
}

// initiatorGPU returns the first GPU, or skips the test.
func initiatorGPU(tb testing.TB) (*gpu, Options) {
	tb.Helper()
	dev := cudatest.Open(tb)
	s, err := streamcopy.Open(dev, streamcopy.Options{})
	must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(tb, s.Close(ctx))
	})
	return &gpu{Device: dev, copy: s}, Options{Device: dev, Copy: s, Importer: importer(tb, dev)}
}

// gpuTarget starts a process with memory of the last GPU and opens its segment.
func gpuTarget(tb testing.TB, e *Engine) *Remote {
	tb.Helper()
	p, err := startTarget(4096, tb.TempDir()+"/s", strconv.Itoa(cudatest.Count()-1))
	must(tb, err)
	tb.Cleanup(p.kill)
	r, err := e.OpenSegment(tb.Context(), p.addr+"/kv")
	must(tb, err)
	return r
}

// gpuOffset is the offset of a target's GPU memory in its segment.
const gpuOffset = align

// scattered returns tasks for n blocks, in random order on both sides.
func scattered(op Op, to *Remote, here *mem.Region, block int64, n int) []Task {
	rng := rand.New(rand.NewPCG(1, uint64(block)))
	mine, theirs := rng.Perm(int(here.Len()/block)), rng.Perm(int(gpuBytes/block))
	tasks := make([]Task, min(n, len(mine)))
	for i := range tasks {
		local := mem.Extent{Region: here, Off: int64(mine[i]) * block, Len: block}
		tasks[i] = Task{Op: op, Segment: to, Local: local, Offset: gpuOffset + int64(theirs[i])*block}
	}
	return tasks
}

// paged returns the blocks of tasks as pages of a single task.
func paged(tasks []Task, block int64) []Task {
	pages := &Pages{Planes: []PagePlane{{Region: tasks[0].Local.Region, Stride: block, Bytes: block, RemoteBase: gpuOffset, RemoteStride: block}}}
	for _, t := range tasks {
		pages.Pairs = append(pages.Pairs, PagePair{Local: uint32(t.Local.Off / block), Remote: uint32((t.Offset - gpuOffset) / block)})
	}
	return []Task{{Op: tasks[0].Op, Segment: tasks[0].Segment, Pages: pages}}
}

// TestGPUTransfers moves scattered blocks between two processes on each path and compares every
// byte. If there are two GPUs, each process uses its own.
func TestGPUTransfers(t *testing.T) {
	g, o := initiatorGPU(t)
	e := engine(t, o)
	to := gpuTarget(t, e)
	here := g.alloc(t, 64<<20)
	data := make([]byte, here.Len())
	for _, path := range []Path{PathNVLink, PathTCP} {
		for _, block := range []int64{4 << 10, 1 << 20} {
			if err := to.Shared(gpuOffset); path == PathNVLink && err != nil {
				testkit.Skip(t, "cuda-share", err.Error())
			}
			pattern(data, byte(block>>12)+byte(path))
			g.store(t, here, data)
			for _, op := range []Op{Write, Read} {
				tasks := scattered(op, to, here, block, 1<<20)
				if op == Write {
					tasks = paged(tasks, block)
				}
				b, err := e.Submit(t.Context(), tasks, SubmitOptions{Path: path, Timeout: patience})
				must(t, err)
				must(t, wait(t, b))
				if op == Write {
					g.store(t, here, make([]byte, here.Len()))
				}
			}
			same(t, fmt.Sprintf("%s, blocks of %d", path, block), g.load(t, here), data)
		}
	}
}

// BenchmarkGPUTransfers measures the rate between the GPUs of two processes with two batches in
// flight: go test -run - -bench GPUTransfers ./transfer
func BenchmarkGPUTransfers(b *testing.B) {
	g, o := initiatorGPU(b)
	e := engine(b, o)
	to := gpuTarget(b, e)
	here := g.alloc(b, gpuBytes)
	for _, path := range []Path{PathNVLink, PathTCP} {
		for _, block := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20, gpuBytes} {
			for k, op := range []Op{Write, Read, Write, Read} {
				form := [...]string{"pages", "list"}[k/2]
				b.Run(fmt.Sprintf("%s/%s/%s/%dKiB", path, op, form, block>>10), func(b *testing.B) {
					tasks := scattered(op, to, here, block, 32768)
					b.SetBytes(int64(len(tasks)) * block)
					if form == "pages" {
						tasks = paged(tasks, block)
					}
					var before *Batch
					for b.Loop() {
						next, err := e.Submit(b.Context(), tasks, SubmitOptions{Path: path, Timeout: 5 * time.Minute})
						must(b, err)
						if before != nil {
							must(b, before.Wait(b.Context()))
						}
						before = next
					}
					must(b, before.Wait(b.Context()))
				})
			}
		}
	}
}

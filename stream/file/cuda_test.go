package file_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestConformanceCUDA reads to and writes from GPU memory: through chunks of pinned memory, and
// with cuFile, by workers and by queues.
func TestConformanceCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	t.Run("chunks", func(t *testing.T) {
		copies := openCopies(t, dev)
		streamtest.Run(t, func(t *testing.T) streamtest.Env {
			t.Helper()
			o := file.Options{Device: dev, Copy: copies, Transfers: 4, ChunkBytes: 4 * file.Align, Chunks: 3}
			return env(real(t), streamtest.DeviceMemory(dev), o)
		})
	})
	for name, queues := range map[string]int{"cufile, workers": 0, "cufile, queues": 2} {
		t.Run(name, func(t *testing.T) {
			opener, ok := dev.(device.StorageOpener)
			if !ok {
				t.Fatal("the device opens no storage")
			}
			st, err := opener.OpenStorage(device.StorageOptions{})
			if errors.Is(err, errdefs.ErrNotSupported) {
				testkit.Skip(t, "cufile", err.Error())
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := st.Close(); err != nil {
					t.Error(err)
				}
			})
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				o := file.Options{
					Device: dev, Transfers: 4, ChunkBytes: 4 * file.Align, Path: stream.PathCuFile,
					CuFile: file.CuFileOptions{Storage: st, Queues: queues},
				}
				return env(real(t), streamtest.DeviceMemory(dev), o)
			})
		})
	}
}

// BenchmarkGPUPageCache reads blocks that are scattered over a file in the page cache to a GPU.
func BenchmarkGPUPageCache(b *testing.B) {
	const total = 1 << 30
	dev := cudatest.Open(b)
	fs, gpu := real(b), streamtest.DeviceMemory(dev)
	from, to := fs.alloc(b, total), gpu.Alloc(b, total)
	fs.memory().Write(b, mem.All(from), make([]byte, total))
	s := closeAtEnd(b, open(b, file.Options{Device: dev, Copy: openCopies(b, dev)}))
	for _, size := range []int64{16 << 20, 64 << 20, 256 << 20, total} {
		for _, block := range []int64{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("%dMiB/%dKiB", size>>20, block>>10), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					batch := new(mem.Batch)
					for i, at := range rand.Perm(int(total / block))[:size/block] {
						batch.Src = append(batch.Src, mem.All(from).Sub(int64(at)*block, block))
						batch.Dst = append(batch.Dst, mem.All(to).Sub(int64(i)*block, block))
					}
					t, err := s.Submit(b.Context(), batch)
					if err != nil {
						b.Fatal(err)
					}
					if err := t.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

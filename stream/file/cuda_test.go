package file_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestConformanceCUDA has a GPU's memory at the other end: through chunks of pinned memory, and by cuFile, waiting for each
// transfer and by queues.
func TestConformanceCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	t.Run("chunks", func(t *testing.T) {
		copies, err := streamcopy.Open(dev, streamcopy.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := copies.Close(within(t)); err != nil {
				t.Error(err)
			}
		})
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

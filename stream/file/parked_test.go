package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/file"
)

// parkedLimit limits transfers while a stream of the host program waits.
const parkedLimit = 20 * time.Second

// Direct transfers must not make driver calls that block while a stream of the host program waits.
func TestDirectFilesBesideParkedStreams(t *testing.T) {
	for _, queues := range []int{0, 2} {
		for _, compat := range []string{"", "forced"} {
			dev, err := sim.Open(sim.Options{WaitsHoldAllocation: true, Storage: sim.StorageModel{Aligned: true, Compat: compat}})
			if err != nil {
				t.Fatal(err)
			}
			directBesideParked(t, dev, queues)
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestDirectFilesBesideParkedStreamsCUDA checks the same with libcufile and a GPU.
func TestDirectFilesBesideParkedStreamsCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	for _, queues := range []int{0, 2} {
		t.Run(fmt.Sprintf("queues=%d", queues), func(t *testing.T) { directBesideParked(t, dev, queues) })
	}
}

// directBesideParked first opens storage as an engine does. Then it reads and writes new files
// while a stream waits.
func directBesideParked(t *testing.T, dev device.Device, queues int) {
	t.Helper()
	const files, bytes = 32, 1 << 20
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := t.TempDir()
	for i := range files {
		must(os.WriteFile(filepath.Join(path, fmt.Sprint(i)), make([]byte, bytes), 0o600))
	}
	opener, ok := dev.(device.StorageOpener)
	adopter, adopts := dev.(device.StreamAdopter)
	if !ok || !adopts {
		t.Fatalf("%T opens no storage, or adopts no streams", dev)
	}
	st, err := opener.OpenStorage(device.StorageOptions{})
	if err != nil {
		testkit.Skip(t, "cufile", err.Error())
	}
	mode, err := storage.Try(t.Context(), dev, st, path)
	must(err)
	t.Logf("mode: %+v", mode)
	d, err := file.OpenDirect(file.DirectOptions{Storage: st, Device: dev, Queues: queues})
	must(err)
	gpu, err := dev.Alloc(files*bytes, device.AllocOptions{})
	must(err)
	word, err := dev.AllocHost(64)
	must(err)
	parked, err := dev.OpenQueue(device.QueueOptions{})
	must(err)
	handle, ok := parked.(interface{ Handle() uintptr })
	if !ok {
		t.Fatalf("%T has no handle", parked)
	}
	stream, err := adopter.AdoptStream(handle.Handle())
	must(err)
	dir := openDir(t, dirfs.OS(), path)
	must(stream.WaitValue(mem.Extent{Region: word, Len: 8}, 1))
	var waiting sync.WaitGroup
	for i := range files {
		waiting.Go(func() {
			e := mem.All(gpu).Sub(int64(i)*bytes, bytes)
			f, err := d.Open(t.Context(), dir, fmt.Sprint(i))
			if err == nil {
				_, err = f.ReadDirect(t.Context(), e, 0)
				f.Release()
			}
			if err == nil && i%4 == 0 {
				var w dirfs.DirectWriter
				if w, err = d.OpenWriter(dir, fmt.Sprint("new", i), os.O_CREATE|os.O_EXCL); err == nil {
					_, err = w.WriteDirect(t.Context(), e, 0)
					must(w.Close())
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { waiting.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(parkedLimit):
		t.Errorf("transfers wait for a stream that waits: %v", errdefs.ErrBusy)
	}
	hostmem.StoreUint64(word.Bytes(), 1)
	<-done
	must(parked.Close(within(t)))
	must(d.Close(within(t)))
	must(st.Close())
	for _, r := range []*mem.Region{gpu, word} {
		must(dev.Free(r))
	}
}

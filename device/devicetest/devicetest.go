package devicetest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// patience is the maximum wait for work that must complete.
const patience = 30 * time.Second

// glance is the time for which a test observes work that must not complete.
const glance = 20 * time.Millisecond

// guardByte fills the parts of destinations that must not be written.
const guardByte = 0xee

// Run runs the suite. It calls open for every test; some tests need two open devices, which may be
// the same GPU. The suite closes the devices.
func Run(t *testing.T, open func(t *testing.T) device.Device) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, h *harness)
	}{
		{"Info", testInfo},
		{"Alloc", testAlloc},
		{"AllocRefuses", testAllocRefuses},
		{"AllocHost", testAllocHost},
		{"RegisterHost", testRegisterHost},
		{"FreeRefuses", testFreeRefuses},
		{"DeviceClose", testDeviceClose},
		{"Copy", testCopy},
		{"CopyLarge", testCopyLarge},
		{"CopyRefuses", testCopyRefuses},
		{"Fill", testFill},
		{"Order", testOrder},
		{"Event", testEvent},
		{"CrossQueueWait", testCrossQueueWait},
		{"QueueClose", testQueueClose},
		{"Threads", testThreads},
		{"Batch", testBatch},
		{"BatchOfRows", testBatchOfRows},
		{"BatchRefuses", testBatchRefuses},
		{"CopyListAlignments", func(t *testing.T, h *harness) { testCopyListAlignments(t, h, device.KernelCopyList) }},
		{"CopyListLong", func(t *testing.T, h *harness) { testCopyListLong(t, h, device.KernelCopyList) }},
		{"CopyPaged", func(t *testing.T, h *harness) { testCopyPaged(t, h, device.KernelCopyPaged) }},
		{"PatternFill", testPatternFill},
		{"PatternCheck", testPatternCheck},
		{"CopyListSum", func(t *testing.T, h *harness) { testCopyListSum(t, h, device.KernelCopyListSum) }},
		{"CopyPagedSum", func(t *testing.T, h *harness) { testCopyPagedSum(t, h, device.KernelCopyPagedSum) }},
		{"CopyParts", func(t *testing.T, h *harness) { testCopyParts(t, h, device.KernelCopyParts) }},
		{"CopyPartsSum", func(t *testing.T, h *harness) { testCopyParts(t, h, device.KernelCopyPartsSum) }},
		{"LaunchRefuses", testLaunchRefuses},
		{"WaitValue", testWaitValue},
		{"WaitValueRefuses", testWaitValueRefuses},
		{"WriteValue", testWriteValue},
		{"HostStreamRecord", testHostStreamRecord},
		{"HeldQueueClose", testBlockedQueueClose},
		{"AdoptRefuses", testAdoptRefuses},
		{"Parked", testParked},
		{"SignalSteps", testSignalSteps},
		{"SignalReuse", testSignalReuse},
		{"SignalPoolClose", testSignalPoolClose},
		{"ShareMemory", testShareMemory},
		{"ShareOutlives", testShareOutlives},
		{"ShareRefuses", testShareRefuses},
		{"ExportDMABuf", testExportDMABuf},
		{"FlushRemoteWrites", testFlushRemoteWrites},
		{"StorageMoves", testStorageMoves},
		{"StorageShort", testStorageShort},
		{"StorageRefuses", testStorageRefuses},
		{"StorageQueueOrder", testStorageQueueOrder},
		{"StorageWordsLive", testStorageWordsLive},
		{"StorageClose", testStorageClose},
		{"StorageLeftOpen", testStorageLeftOpen},
		{"StorageBuffers", testStorageBuffers},
		{"StorageManyFiles", testStorageManyFiles},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(open)
			h.dev = h.another(t)
			tt.test(t, h)
		})
	}
}

// harness is the device of one test.
type harness struct {
	open func(t *testing.T) device.Device
	dev  device.Device
	// rng draws numbers, and bytes fills slices, from one seeded source.
	rng   *rand.Rand
	bytes *rand.ChaCha8
}

func newHarness(open func(t *testing.T) device.Device) *harness {
	seeded := rand.NewChaCha8([32]byte{1})
	return &harness{open: open, rng: rand.New(seeded), bytes: seeded}
}

// another opens a device and closes it at the end of the test. All its queues and regions must be
// released by then.
func (h *harness) another(t *testing.T) device.Device {
	t.Helper()
	d := h.open(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return d
}

func (h *harness) device(t *testing.T, n int64) *mem.Region {
	t.Helper()
	r, err := h.dev.Alloc(n, device.AllocOptions{})
	return h.keep(t, r, err)
}

func (h *harness) pinned(t *testing.T, n int64) *mem.Region {
	t.Helper()
	r, err := h.dev.AllocHost(n)
	return h.keep(t, r, err)
}

func (h *harness) keep(t *testing.T, r *mem.Region, err error) *mem.Region {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.dev.Free(r); err != nil {
			t.Errorf("free: %v", err)
		}
	})
	return r
}

// queue opens a queue and closes it at the end of the test.
func (h *harness) queue(t *testing.T) device.Queue {
	t.Helper()
	q, err := h.dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.closing(t, q)
	return q
}

// closing closes q at the end of the test.
func (h *harness) closing(t *testing.T, q device.Queue) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := q.Close(ctx); err != nil {
			t.Errorf("close queue: %v", err)
		}
	})
}

// launcher opens a queue that runs kernels.
func (h *harness) launcher(t *testing.T) device.Launcher {
	t.Helper()
	l, ok := h.queue(t).(device.Launcher)
	if !ok {
		testkit.Skip(t, "kernels", "queues of this device run no kernels")
	}
	return l
}

// random fills b with seeded bytes.
func (h *harness) random(b []byte) {
	_, _ = h.bytes.Read(b) // never fails
}

// fillBytes sets every byte of b to v, mostly by copying, which is fast even under the race
// detector.
func fillBytes(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for done := 1; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// extent returns n bytes of r from byte off.
func extent(r *mem.Region, off, n int64) mem.Extent { return mem.Extent{Region: r, Off: off, Len: n} }

// must stops the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sync waits until q is idle.
func sync(t *testing.T, q device.Queue) {
	t.Helper()
	e, err := q.Record()
	must(t, err)
	defer e.Close()
	must(t, wait(t, e))
}

// wait waits for e, with a time limit.
func wait(t *testing.T, e device.Event) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return e.Wait(ctx)
}

// put copies b to the start of r through a pinned buffer.
func (h *harness) put(t *testing.T, q device.Queue, r *mem.Region, b []byte) {
	t.Helper()
	p, err := h.dev.AllocHost(int64(len(b)))
	must(t, err)
	copy(p.Bytes(), b)
	must(t, q.Copy(extent(r, 0, int64(len(b))), mem.All(p)))
	sync(t, q)
	must(t, h.dev.Free(p))
}

func (h *harness) get(t *testing.T, q device.Queue, r *mem.Region, n int64) []byte {
	t.Helper()
	p, err := h.dev.AllocHost(n)
	must(t, err)
	must(t, q.Copy(mem.All(p), extent(r, 0, n)))
	sync(t, q)
	b := bytes.Clone(p.Bytes())
	must(t, h.dev.Free(p))
	return b
}

// diff reports the first byte that differs between got and want.
func diff(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	mismatches, first := 0, -1
	for i := range got {
		if got[i] != want[i] {
			if mismatches++; first < 0 {
				first = i
			}
		}
	}
	t.Fatalf("%s: %d of %d bytes are wrong, the first at %d: %#02x, want %#02x", what, mismatches, len(got), first, got[first], want[first])
}

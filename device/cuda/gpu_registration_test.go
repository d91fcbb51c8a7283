package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// openGPU opens the first GPU, or skips the test if this machine has none.
func openGPU(t *testing.T) *Device {
	t.Helper()
	drv, err := Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cuda", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	dev, err := drv.Open(0, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return concrete(t, dev)
}

// Memory of several registrations is copied across their ends, in rows and by a kernel.
func TestGPUCopiesMemoryOfSeveralRegistrations(t *testing.T) {
	const slot, slots = 3 << 20, 40
	d := openGPU(t)
	d.maxRegistration = 16 << 20
	pinned := func() *mem.Region {
		r, err := d.AllocSlots(slots, slot)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { free(t, d, r) })
		return r
	}
	from, back := pinned(), pinned()
	if n, _ := mem.All(from).Registration(); n != 15<<20 {
		t.Logf("this driver's addresses are not contiguous, so that %d bytes are registered at once", n)
	}
	dev, err := d.Alloc(from.Len(), device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { free(t, d, dev) })
	q, err := d.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	var rows, rowsBack, there []mem.Extent // a part of each slot, like a layer
	for at := int64(0); at < from.Len(); at += slot {
		rows = append(rows, mem.Extent{Region: from, Off: at + 4096, Len: 1 << 20})
		rowsBack = append(rowsBack, mem.Extent{Region: back, Off: at + 4096, Len: 1 << 20})
		there = append(there, mem.Extent{Region: dev, Off: at + 4096, Len: 1 << 20})
	}
	list, err := d.AllocHost(device.CopyDescBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { free(t, d, list) })
	byKernel := func(dst, src mem.Extent) error {
		l, ok := q.(device.Launcher)
		if !ok {
			return q.Copy(dst, src)
		}
		device.CopyDesc{Dst: dst.Dev(), Src: src.Dev(), Bytes: uint64(src.Len)}.Put(list.Bytes())
		k := device.ListArgs{Descs: list.Dev(), Count: 1}.Kernel(device.KernelCopyList, 0)
		return l.Launch(&k)
	}
	inRows := func(dst, src []mem.Extent) error {
		b, ok := q.(device.BatchCopier)
		if !ok {
			for i := range dst {
				if err := q.Copy(dst[i], src[i]); err != nil {
					return err
				}
			}
			return nil
		}
		return b.CopyBatch(dst, src)
	}
	whole, odd := mem.All(from), func(r *mem.Region) mem.Extent { return mem.All(r).Sub(5, r.Len()-12) }
	for name, c := range map[string]struct {
		to, back func() error
		same     []mem.Extent
	}{
		"one copy":   {func() error { return q.Copy(mem.All(dev), whole) }, func() error { return q.Copy(mem.All(back), mem.All(dev)) }, []mem.Extent{mem.All(back)}},
		"odd bounds": {func() error { return q.Copy(odd(dev), odd(from)) }, func() error { return q.Copy(odd(back), odd(dev)) }, []mem.Extent{odd(back)}},
		"rows":       {func() error { return inRows(there, rows) }, func() error { return inRows(rowsBack, there) }, rowsBack},
		"a kernel":   {func() error { return byKernel(odd(dev), odd(from)) }, func() error { return byKernel(odd(back), odd(dev)) }, []mem.Extent{odd(back)}},
		"a fill":     {func() error { return q.Fill(whole, 7) }, func() error { return errors.Join(q.Copy(mem.All(dev), whole), q.Copy(mem.All(back), mem.All(dev))) }, []mem.Extent{mem.All(back)}},
	} {
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(from.Bytes())
		clear(back.Bytes())
		for _, step := range []func() error{c.to, c.back} {
			if err := step(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			waitIdle(t, q)
		}
		for _, e := range c.same {
			if !bytes.Equal(e.Bytes(), from.Bytes()[e.Off:e.Off+e.Len]) {
				t.Errorf("%s: bytes from %d on differ", name, e.Off)
			}
		}
	}
	logCopyAcross(t, d, q, from, dev)
}

func waitIdle(t *testing.T, q device.Queue) {
	t.Helper()
	e, err := q.Record()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// logCopyAcross logs the driver's result for a copy that crosses registrations. No copy of this
// package does so.
func logCopyAcross(t *testing.T, d *Device, q device.Queue, host, dev *mem.Region) {
	t.Helper()
	n, _ := mem.All(host).Registration()
	native, ok := q.(interface{ native() *queue })
	if !ok {
		t.Fatalf("queue is a %T", q)
	}
	err := d.Do(func() error {
		r := d.api.MemcpyAsync(cuda.DevicePtr(dev.Dev()), cuda.DevicePtr(host.Dev()), uint64(min(2*n, host.Len())), native.native().stream)
		t.Logf("a copy of %d bytes across registrations of %d: %v", 2*n, n, r)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	waitIdle(t, q)
}

// Pinned memory is on the GPU's NUMA node, if the kernel reports that node.
func TestGPUPinnedMemoryIsOnItsNode(t *testing.T) {
	const size = 256 << 20
	d := openGPU(t)
	r, err := d.AllocHost(size)
	if err != nil {
		t.Fatal(err)
	}
	defer free(t, d, r)
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		testkit.Skip(t, "numa", err.Error())
	}
	var line string
	for l := range strings.Lines(string(maps)) {
		if strings.HasPrefix(l, fmt.Sprintf("%x ", uint64(r.CPU()))) {
			line = strings.TrimSpace(l)
		}
	}
	node := d.Info().NUMANode
	t.Logf("NUMA node of the GPU: %d; notes: %q; pages: %s", node, d.Notes(), line)
	if node < 0 || len(d.Notes()) > 0 {
		return
	}
	if !strings.Contains(line, fmt.Sprintf(" prefer:%d ", node)) {
		t.Errorf("the mapping does not prefer node %d", node)
	}
	for _, f := range strings.Fields(line) {
		var on, pages int64
		if n, err := fmt.Sscanf(f, "N%d=%d", &on, &pages); n == 2 && err == nil && int(on) != node && pages > size/pageBytes/10 {
			t.Errorf("%d pages are on node %d", pages, on)
		}
	}
}

package cuda

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

func TestKernelsThatTheGPULacks(t *testing.T) {
	for _, compute := range []int{8, 9} {
		f := newFake(t)
		f.compute = compute
		dev := f.open()
		q, err := dev.OpenQueue(device.QueueOptions{})
		must(t, err)
		l, ok := q.(device.KernelLister)
		if !ok {
			t.Fatal("the queue does not list its kernels")
		}
		for name, want := range map[string]bool{
			device.KernelCopyList: true, device.KernelCopyPagedSum: true, device.KernelResident: true,
			device.KernelBulkList: compute >= 9, device.KernelBulkPagedSum: compute >= 9, "kvlane_nothing": false,
		} {
			if got := l.HasKernel(name); got != want {
				t.Errorf("compute capability %d: kernel %s there: %v, want %v", compute, name, got, want)
			}
		}
		if err := l.Launch(&device.Kernel{Name: device.KernelBulkList, NArgs: 2}); (err == nil) != (compute >= 9) || err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("compute capability %d: launch of a bulk kernel: %v", compute, err)
		}
		if err := l.Launch(&device.Kernel{Name: "kvlane_nothing"}); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("launch of a kernel that is nowhere: %v", err)
		}
		must(t, q.Close(t.Context()))
	}
}

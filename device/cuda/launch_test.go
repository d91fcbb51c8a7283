package cuda

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

func TestQueueReportsItsKernels(t *testing.T) {
	q, err := newFake(t).open().OpenQueue(device.QueueOptions{})
	must(t, err)
	l, ok := q.(device.KernelLister)
	if !ok {
		t.Fatal("the queue does not list its kernels")
	}
	for name, want := range map[string]bool{
		device.KernelCopyList: true, device.KernelCopyPagedSum: true, "kvlane_nothing": false,
	} {
		if got := l.HasKernel(name); got != want {
			t.Errorf("kernel %s there: %v, want %v", name, got, want)
		}
	}
	if err := l.Launch(&device.Kernel{Name: "kvlane_nothing"}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("launch of a kernel that is nowhere: %v", err)
	}
	must(t, q.Close(t.Context()))
}

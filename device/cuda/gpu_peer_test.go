package cuda_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// openPeers opens two GPUs that can access each other's memory. It skips the test if there are
// none.
func openPeers(t *testing.T) (a, b device.Peerer) {
	t.Helper()
	drv, n := driver(t)
	if n < 2 {
		testkit.Skip(t, "cuda-peer", "this machine has one GPU")
	}
	var both [2]device.Peerer
	for i := range both {
		dev, err := drv.Open(i, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, ok := dev.(device.Peerer)
		if !ok {
			t.Fatalf("%T is no Peerer", dev)
		}
		both[i] = p
	}
	return both[0], both[1]
}

func TestGPUPeers(t *testing.T) {
	a, b := openPeers(t)
	err := a.EnablePeer(b)
	if cerr := errors.Join(a.Close(), b.Close()); cerr != nil {
		t.Fatal(cerr)
	}
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cuda-peer", err.Error())
	}
	devicetest.RunPeers(t, openPeers)
}

package cuda

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// fakePeers opens both devices of a fake driver that can be peers.
func fakePeers(t *testing.T, f *fake) (a, b *Device) {
	t.Helper()
	api := f.api()
	api.DeviceCanAccessPeer = func(_, _ cuda.DeviceID) (bool, cuda.Result) {
		return true, f.enter("cuDeviceCanAccessPeer", nothing)
	}
	api.CtxEnablePeerAccess = func(cuda.Context) cuda.Result { return f.enter("cuCtxEnablePeerAccess", contextRelaxed) }
	drv, err := newDriver(api)
	must(t, err)
	var both [2]*Device
	for i := range both {
		dev, err := drv.Open(i, Options{})
		must(t, err)
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		both[i] = concrete(t, dev)
	}
	return both[0], both[1]
}

// TestPeersOpenShareableMemory checks that every peer gets access to shareable memory, whether it
// was allocated before or after the peer was enabled.
func TestPeersOpenShareableMemory(t *testing.T) {
	f := newFake(t)
	a, b := fakePeers(t, f)
	opened := make(map[cuda.DevicePtr][]cuda.DeviceID)
	access := b.api.MemSetAccess
	b.api.MemSetAccess = func(p cuda.DevicePtr, bytes uint64, dev cuda.DeviceID) cuda.Result {
		opened[p] = append(opened[p], dev)
		return access(p, bytes, dev)
	}
	early, err := b.Alloc(1, device.AllocOptions{Shareable: true})
	must(t, err)
	must(t, a.EnablePeer(b))
	must(t, a.EnablePeer(b))
	late, err := b.Alloc(1, device.AllocOptions{Shareable: true})
	must(t, err)
	own, err := a.Alloc(1, device.AllocOptions{Shareable: true})
	must(t, err)
	for _, r := range []struct {
		p    cuda.DevicePtr
		want int
	}{{cuda.DevicePtr(early.Dev()), 2}, {cuda.DevicePtr(late.Dev()), 2}, {cuda.DevicePtr(own.Dev()), 1}} {
		if got := opened[r.p]; len(got) != r.want {
			t.Errorf("memory at %#x is open to devices %v, want %d of them", r.p, got, r.want)
		}
	}
	if n := f.count("cuCtxEnablePeerAccess"); n != 1 {
		t.Errorf("enabled %d times", n)
	}
	must(t, errors.Join(b.Free(early), b.Free(late), a.Free(own)))
	f.clean()
}

func TestEnablePeerReportsTheNthFailure(t *testing.T) {
	for n := 0; ; n++ {
		f := newFake(t)
		a, b := fakePeers(t, f)
		r, err := b.Alloc(1, device.AllocOptions{Shareable: true})
		must(t, err)
		f.failNth(n, cuda.ErrorOutOfMemory)
		err = a.EnablePeer(b)
		failed := f.failedCall()
		f.failNth(-1, cuda.Success)
		if failed != "" {
			namesCall(t, failed, err)
			if a.reachesPeer(1) {
				t.Errorf("%s failed, and the peer is reached", failed)
			}
			must(t, a.EnablePeer(b))
		} else {
			must(t, err)
		}
		if !a.reachesPeer(1) || b.reachesPeer(0) {
			t.Errorf("access to the peer: %v one way, %v the other; want true, false", a.reachesPeer(1), b.reachesPeer(0))
		}
		must(t, b.Free(r))
		f.clean()
		if failed == "" {
			return
		}
	}
}

func namesCall(t *testing.T, failed string, err error) {
	t.Helper()
	var native *device.Error
	if !errors.As(err, &native) || native.Call != failed {
		t.Errorf("%s failed, and the error is %v", failed, err)
	}
}

func TestPeersThatCannotBe(t *testing.T) {
	f := newFake(t)
	a, b := fakePeers(t, f)
	a.api.DeviceCanAccessPeer = func(_, _ cuda.DeviceID) (bool, cuda.Result) { return false, cuda.Success }
	if err := a.EnablePeer(b); !errors.Is(err, errdefs.ErrNotSupported) || a.reachesPeer(1) {
		t.Errorf("error %v, reaches %v", err, a.reachesPeer(1))
	}
	a.api.DeviceCanAccessPeer = func(_, _ cuda.DeviceID) (bool, cuda.Result) { return true, cuda.Success }
	a.api.CtxEnablePeerAccess = func(cuda.Context) cuda.Result { return cuda.ErrorPeerAccessAlreadyEnabled }
	must(t, a.EnablePeer(b)) // the host program has enabled the access before
	if !a.reachesPeer(1) {
		t.Error("the peer is not reachable")
	}
}

package sim_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

func openPeers(t *testing.T, o sim.Options) (a, b *sim.Device) {
	t.Helper()
	var both [2]*sim.Device
	for i := range both {
		o.Index = i
		d, err := sim.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		both[i] = d
	}
	return both[0], both[1]
}

func TestPeers(t *testing.T) {
	devicetest.RunPeers(t, func(t *testing.T) (device.Peerer, device.Peerer) {
		t.Helper()
		a, b := openPeers(t, sim.Options{})
		return a, b
	})
}

func closeAll(t *testing.T, devices ...*sim.Device) {
	t.Helper()
	for _, d := range devices {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestStrangersMemory checks that without peer access copies are refused and kernels break the
// queue.
func TestStrangersMemory(t *testing.T) {
	a, b := openPeers(t, sim.Options{})
	defer closeAll(t, a, b)
	near, err := a.Alloc(4096, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	far, err := b.Alloc(4096, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Copy(mem.All(near), mem.All(far)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("copy: %v", err)
	}
	if err := a.EnablePeer(b); err != nil {
		t.Fatal(err)
	}
	if err := q.Copy(mem.All(near), mem.All(far)); err != nil {
		t.Errorf("copy with access: %v", err)
	}
	if err := q.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(a.Free(near), b.Free(far)); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if a.Reaches(far) {
		t.Error("a closed device is reached")
	}
	if err := a.EnablePeer(b); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("access to a closed device: %v", err)
	}
}

func TestEnablePeerFails(t *testing.T) {
	a, b := openPeers(t, sim.Options{Faults: fault.New(1, fault.Nth(sim.OpPeer, 0).Fail(errdefs.ErrNotSupported))})
	defer closeAll(t, a, b)
	far, err := b.Alloc(4096, device.AllocOptions{})
	must(t, err)
	if err := a.EnablePeer(b); !errors.Is(err, errdefs.ErrNotSupported) || a.Reaches(far) {
		t.Errorf("error %v, reaches %v", err, a.Reaches(far))
	}
	must(t, b.Free(far))
}

// TestPeersAtWorkOnEachOther checks concurrent copies of two devices in both directions while
// memory of both is allocated and freed.
func TestPeersAtWorkOnEachOther(t *testing.T) {
	a, b := openPeers(t, sim.Options{})
	defer closeAll(t, a, b)
	if err := errors.Join(a.EnablePeer(b), b.EnablePeer(a)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, pair := range [][2]*sim.Device{{a, b}, {b, a}} {
		all.Go(func() {
			if err := pingPong(t, pair[0], pair[1]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func pingPong(t *testing.T, own, other *sim.Device) (err error) {
	t.Helper()
	q, err := own.OpenQueue(device.QueueOptions{})
	if err != nil {
		return err
	}
	for range 300 {
		near, err := own.Alloc(1000, device.AllocOptions{})
		if err != nil {
			return err
		}
		far, err := other.Alloc(1000, device.AllocOptions{})
		if err != nil {
			return err
		}
		if err := errors.Join(q.Copy(mem.All(near), mem.All(far)), q.Copy(mem.All(far), mem.All(near))); err != nil {
			return err
		}
		e, err := q.Record()
		if err != nil {
			return err
		}
		err = e.Wait(t.Context())
		e.Close()
		if err := errors.Join(err, own.Free(near), other.Free(far)); err != nil {
			return err
		}
	}
	return q.Close(t.Context())
}

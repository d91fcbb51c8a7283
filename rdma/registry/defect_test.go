package registry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// slowProvider is a provider whose Open waits until the test allows it.
type slowProvider struct {
	rdma.Provider
	asked, let chan struct{}
}

func (p slowProvider) Open(name string) (rdma.Device, error) {
	close(p.asked)
	<-p.let
	return p.Provider.Open(name)
}

// TestDefectMethodsWaitForTheProvider checks that no method waits for the provider, because the
// methods have no context that could end the wait.
func TestDefectMethodsWaitForTheProvider(t *testing.T) {
	prov, err := soft.New(soft.Options{Mover: soft.CPUMover{}})
	if err != nil {
		t.Fatal(err)
	}
	p := slowProvider{prov, make(chan struct{}), make(chan struct{})}
	set := registry.NewDevices(p).NewSet(registry.Options{})
	first := make(chan error, 1)
	go func() {
		_, err := set.NIC("soft0")
		first <- err
	}()
	<-p.asked
	for _, c := range []struct {
		name string
		call func() error
		want error
	}{
		{"NICs", func() error { set.NICs(); return nil }, nil},
		{"NIC", func() error { _, err := set.NIC("soft0"); return err }, errdefs.ErrBusy},
		{"Close", set.Close, errdefs.ErrBusy},
	} {
		said := make(chan error, 1)
		go func() { said <- c.call() }()
		select {
		case err := <-said:
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		case <-time.After(testkit.Patience()):
			t.Errorf("%s waits for the provider", c.name)
		}
	}
	close(p.let)
	if err := errors.Join(<-first, set.Close(), prov.Close()); err != nil {
		t.Error(err)
	}
}

// TestDefectFailureToUndoPassesForARefusal checks that the error contains the cause of a failed
// registration separately from the cause of a failed undo, and that Unregister removes the rest.
func TestDefectFailureToUndoPassesForARefusal(t *testing.T) {
	for _, undone := range []bool{true, false} {
		plan := fault.New(1)
		_, nics := machine(t, soft.Options{Faults: plan}, registry.Options{})
		a, b := gpu(t, 0, 0x1000, 0x1000), gpu(t, 0, 0x9000, 0x1000)
		plan.Add(fault.Nth(soft.OpRegMR, 1).Fail(errdefs.ErrNoMemory))
		if !undone {
			plan.Add(fault.Nth(soft.OpClose, 0).Fail(errdefs.ErrBusy))
		}
		err := nics[0].Register(all, a, b)
		wantErr(t, err, errdefs.ErrNoMemory)
		var left *registry.LeftError
		if errors.As(err, &left) == undone || left != nil && (!errors.Is(left.Left, errdefs.ErrBusy) || errors.Is(left.Err, errdefs.ErrBusy) || errors.Is(left.Left, errdefs.ErrNoMemory)) {
			t.Errorf("undo succeeded %t: %v", undone, err)
		}
		if err := registry.Unregister(t.Context(), nics, a, b); err != nil {
			t.Error(err)
		}
		if err := nics[0].Register(all, a, b); err != nil {
			t.Errorf("register again, undo succeeded %t: %v", undone, err)
		}
		if err := registry.Unregister(t.Context(), nics, a, b); err != nil {
			t.Error(err)
		}
	}
}

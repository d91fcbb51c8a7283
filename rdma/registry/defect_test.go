package registry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// slowProvider takes its time to open a NIC.
type slowProvider struct {
	rdma.Provider
	asked, let chan struct{}
}

func (p slowProvider) Open(name string) (rdma.Device, error) {
	close(p.asked)
	<-p.let
	return p.Provider.Open(name)
}

// TestDefectNobodyWaitsForANICToBeOpened: the provider takes its time, and no method has a context that could end a wait for it.
func TestDefectNobodyWaitsForANICToBeOpened(t *testing.T) {
	prov, err := soft.New(soft.Options{Mover: soft.CPUMover{}})
	if err != nil {
		t.Fatal(err)
	}
	p := slowProvider{prov, make(chan struct{}), make(chan struct{})}
	set := registry.NewSet(p, registry.Options{})
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
		case <-time.After(5 * time.Second):
			t.Errorf("%s waits for the provider", c.name)
		}
	}
	close(p.let)
	if err := errors.Join(<-first, set.Close(), prov.Close()); err != nil {
		t.Error(err)
	}
}

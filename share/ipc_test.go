package share_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// ipc is a device whose memory has CUDA IPC handles. Such a handle does not keep memory alive that
// the exporter frees.
type ipc struct{ *sim.Device }

func (ipc) HandleTypes() []device.HandleType { return []device.HandleType{device.HandleCUDAIPC} }

func (d ipc) ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error) {
	return device.Handle{Type: t, Device: d.Info().UUID, FD: -1, Bytes: r.Len()}, nil
}

// exportedIPC returns an export of memory with an IPC handle, and a function that frees the memory.
func exportedIPC(t *testing.T) (*share.Server, *share.Export, func()) {
	t.Helper()
	s := serve(t, share.Options{})
	dev := ipc{simDevice(t, sim.Options{})}
	r, err := dev.Alloc(4096, device.AllocOptions{})
	must(t, err)
	e, err := s.Export(dev, r)
	must(t, err)
	return s, e, func() { must(t, dev.Free(r)) }
}

// ended returns a canceled context, so that Close returns instead of waiting.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// slowMapper maps memory with CUDA IPC handles. It unmaps memory only after gate is closed.
type slowMapper struct {
	ipc
	mapped  atomic.Pointer[mem.Region]
	freeing chan struct{} // closed when unmapping starts
	gate    chan struct{}
}

func (m *slowMapper) ImportMemory(h device.Handle) (*mem.Region, error) {
	r, err := m.Alloc(h.Bytes, device.AllocOptions{})
	m.mapped.Store(r)
	return r, err
}

func (m *slowMapper) Free(r *mem.Region) error {
	if r == m.mapped.Load() {
		close(m.freeing)
		<-m.gate
	}
	return m.Device.Free(r)
}

// TestExporterFreesAfterImportersHaveUnmapped checks that Close of an export waits until importers
// have unmapped its memory.
func TestExporterFreesAfterImportersHaveUnmapped(t *testing.T) {
	_, e, free := exportedIPC(t)
	m := &slowMapper{ipc: ipc{simDevice(t, sim.Options{Index: 1})}, freeing: make(chan struct{}), gate: make(chan struct{})}
	in, err := share.NewImporter(m, share.ImportOptions{})
	must(t, err)
	i, err := in.Import(t.Context(), e.Descriptor())
	must(t, err)
	if err := e.Close(ended(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with an importer: %v", err)
	}
	select {
	case <-m.freeing:
	case <-time.After(patience):
		t.Fatal("the importer does not unmap memory that was withdrawn")
	}
	// The defect shows within this time on most machines.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("the exporter may free memory that an importer has mapped: %v", err)
	}
	close(m.gate)
	must(t, withdraw(e))
	must(t, i.Close())
	must(t, in.Close())
	free()
}

// askFor requests the export from the server, and returns the status and the connection.
func askFor(t *testing.T, s *share.Server, e *share.Export) (status byte, c io.ReadWriteCloser) {
	t.Helper()
	conn := dialServer(t, s)
	_, err := conn.Write(share.EncodeRequest(e.Descriptor().Identity))
	must(t, err)
	b := make([]byte, 200)
	n, err := conn.Read(b)
	must(t, err)
	if n < 8 {
		t.Fatalf("a reply of %d bytes", n)
	}
	return b[6], conn
}

// TestNoImportAfterTheWithdrawal checks that a withdrawn export accepts no more importers while it
// waits for others.
func TestNoImportAfterTheWithdrawal(t *testing.T) {
	s, e, free := exportedIPC(t)
	status, first := askFor(t, s, e)
	if status != 1 {
		t.Fatalf("the first importer: status %d", status)
	}
	if err := e.Close(ended(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Fatalf("close with an importer: %v", err)
	}
	status, late := askFor(t, s, e)
	if status == 1 {
		t.Error("an importer was accepted after the withdrawal")
	}
	must(t, late.Close())
	_, err := first.Write(share.EncodeEnd(e.Descriptor().Identity))
	must(t, err)
	must(t, withdraw(e))
	free()
}

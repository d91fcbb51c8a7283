package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Source exports memory. It is implemented by device.Sharer and HostMemory.
type Source interface {
	// HandleTypes and ExportMemory are described at device.Sharer.
	HandleTypes() []device.HandleType
	ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error)
}

// Export is a Region that other processes can import until it is withdrawn. Its memory must not be
// freed or reused before Close has returned nil, because copies of importers may still be in
// progress.
type Export struct {
	server *Server
	desc   Descriptor
	handle device.Handle

	// mu is held while the handle is sent, because removing the last importer closes the handle.
	mu        sync.Mutex
	withdrawn bool
	importers map[*net.UnixConn]int32 // value: process ID of the importer, or 0
	idle      chan struct{}           // closed when the export is withdrawn and has no importers
}

// Export exports r, memory of the source from, with the first handle type that the memory supports.
// Importers map the whole allocation of r. Export returns ErrNotSupported with the reason for every
// type if none works, and ErrClosed if the server is not running.
func (s *Server) Export(from Source, r *mem.Region) (*Export, error) {
	e, err := s.export(from, r)
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", r, err)
	}
	return e, nil
}

func (s *Server) export(from Source, r *mem.Region) (*Export, error) {
	h, err := firstHandle(from, r)
	if err != nil {
		return nil, err
	}
	e := &Export{server: s, handle: h, importers: make(map[*net.UnixConn]int32), idle: make(chan struct{}), desc: Descriptor{
		Identity: NewIdentity(), Type: h.Type, PID: os.Getpid(), Socket: s.path, Device: h.Device, Bytes: h.Bytes, Offset: h.Off, Length: r.Len(),
	}}
	if err := e.desc.Validate(); err != nil {
		return nil, errors.Join(err, e.closeHandle())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener == nil {
		return nil, errors.Join(fmt.Errorf("the server is not running: %w", errdefs.ErrClosed), e.closeHandle())
	}
	s.exports[e.desc.Identity] = e
	return e, nil
}

func firstHandle(from Source, r *mem.Region) (device.Handle, error) {
	var refusals []error
	for _, t := range from.HandleTypes() {
		h, err := from.ExportMemory(r, t)
		if err == nil {
			return h, nil
		}
		refusals = append(refusals, err)
	}
	return device.Handle{}, errors.Join(refusals...)
}

// Descriptor returns the public description of the export.
func (e *Export) Descriptor() Descriptor { return e.desc }

// Importers returns the number of imports. It includes imports of a withdrawn export that are not
// yet released.
func (e *Export) Importers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.importers)
}

// Close withdraws the export and waits until no importer accesses the memory: each importer has
// confirmed this, or its process has ended. Copies that end after the withdrawal are not reported
// as successful. If ctx ends first, Close returns ErrBusy with the processes that may still access
// the memory. Then the memory must not be freed, and the caller must retry. After success, Close
// returns nil.
func (e *Export) Close(ctx context.Context) error {
	if err := errors.Join(e.withdraw(statusWithdrawn), e.waitImporters(ctx)); err != nil {
		return fmt.Errorf("withdraw export %s: %w", e.desc.Identity, err)
	}
	return nil
}

// withdraw marks the export as withdrawn and notifies the importers. Further calls do nothing.
func (e *Export) withdraw(why status) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.withdrawn {
		return nil
	}
	e.withdrawn = true
	for c := range e.importers {
		refuse(c, why)
		_ = c.CloseWrite()
	}
	if len(e.importers) == 0 {
		close(e.idle)
	}
	return e.closeHandle()
}

// waitImporters waits until a withdrawn export has no importers.
func (e *Export) waitImporters(ctx context.Context) error {
	select {
	case <-e.idle:
	case <-ctx.Done():
		select {
		case <-e.idle: // idle at the same time
		default:
			return fmt.Errorf("%s may still touch the memory: %w: %w", e.holders(), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.exports, e.desc.Identity)
	return nil
}

// holders returns a text with the process IDs of the importers.
func (e *Export) holders() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	pids := slices.Compact(slices.Sorted(maps.Values(e.importers)))
	if len(pids) == 1 {
		return fmt.Sprintf("process %d", pids[0])
	}
	return fmt.Sprintf("processes %v", pids)
}

func (e *Export) closeHandle() error {
	if !e.handle.Type.IsFD() {
		return nil
	}
	return unix.Close(e.handle.FD)
}

// admit sends the handle to an importer with process ID pid.
func (e *Export) admit(c *net.UnixConn, pid int32) status {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.withdrawn {
		return statusUnknown
	}
	var files []byte
	if e.handle.Type.IsFD() {
		files = unix.UnixRights(e.handle.FD)
	}
	r := reply{status: statusOK, handle: e.handle, length: e.desc.Length}
	if _, _, err := c.WriteMsgUnix(r.encode(), files, nil); err != nil {
		return statusMalformed // the importer has disconnected
	}
	e.importers[c] = pid
	return statusOK
}

func (e *Export) removeImporter(c *net.UnixConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.importers, c)
	if e.withdrawn && len(e.importers) == 0 {
		close(e.idle)
	}
}

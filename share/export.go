package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Source is who has memory that can be exported: a device.Sharer, or HostMemory.
type Source interface {
	// HandleTypes and ExportMemory are as device.Sharer's.
	HandleTypes() []device.HandleType
	ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error)
}

// Export is a Region that other processes can import until it is withdrawn. Withdraw it before its memory is freed: memory of type
// posix-fd and memfd stays in use until then, and what importers of cuda-ipc do to freed memory nobody knows.
type Export struct {
	server *Server
	desc   Descriptor
	handle device.Handle

	// mu is held while the handle is sent, which is closed with the last word.
	mu        sync.Mutex
	withdrawn bool
	importers map[*net.UnixConn]struct{}
}

// Export exports r, of that source, by the first of its handle types that the memory has. Importers map the whole allocation that r
// lies in. ErrNotSupported with every type's reason for memory that has none, and ErrClosed unless the server runs.
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
	e := &Export{server: s, handle: h, importers: make(map[*net.UnixConn]struct{}), desc: Descriptor{
		Identity: NewIdentity(), Type: h.Type, PID: os.Getpid(), Socket: s.path, Device: h.Device, Bytes: h.Bytes, Offset: h.Off, Length: r.Len(),
	}}
	if err := e.desc.Validate(); err != nil {
		return nil, errors.Join(err, e.closeHandle())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener == nil {
		return nil, errors.Join(fmt.Errorf("the server does not run: %w", errdefs.ErrClosed), e.closeHandle())
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

// Descriptor returns what is published of the export.
func (e *Export) Descriptor() Descriptor { return e.desc }

// Importers returns how many imports there are now.
func (e *Export) Importers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.importers)
}

// Close withdraws the export. When it returns every importer has been told: no copy that ends later is reported good. A second Close
// returns nil.
func (e *Export) Close() error { return e.withdraw(statusWithdrawn) }

func (e *Export) withdraw(why status) error {
	s := e.server
	s.mu.Lock()
	delete(s.exports, e.desc.Identity)
	s.mu.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.withdrawn {
		return nil
	}
	e.withdrawn = true
	for c := range e.importers {
		refuse(c, why)
		_ = c.CloseWrite() // at once, where Close waits for who reads
		_ = c.Close()
	}
	clear(e.importers)
	if err := e.closeHandle(); err != nil {
		return fmt.Errorf("withdraw export %s: %w", e.desc.Identity, err)
	}
	return nil
}

func (e *Export) closeHandle() error {
	if !e.handle.Type.IsFD() {
		return nil
	}
	return unix.Close(e.handle.FD)
}

// admit gives the handle to an importer.
func (e *Export) admit(c *net.UnixConn) status {
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
		return statusMalformed // it has gone
	}
	e.importers[c] = struct{}{}
	return statusOK
}

func (e *Export) leave(c *net.UnixConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.importers, c)
}

package transfer

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Task is one copy between local memory and a segment: between Local and Offset, or between the
// pairs of Pages.
type Task struct {
	Op      Op
	Segment *Remote
	Local   mem.Extent
	Offset  int64
	Pages   *Pages // replaces Local and Offset
}

// Pages is a list of copies between two paged KV caches, a local one and one in a segment. Each
// pair of pages is copied in every plane.
type Pages struct {
	Planes []PagePlane
	Pairs  []PagePair
}

// PagePlane is a plane of both caches. Page p is the Bytes bytes at Base + p*Stride of Region, and
// at RemoteBase + p*RemoteStride of the segment. All remote pages of a plane must lie in one
// buffer.
type PagePlane struct {
	Region                   *mem.Region
	Base, Stride, Bytes      int64
	RemoteBase, RemoteStride int64
}

// PagePair is a local page and a remote page. The task copies one to the other.
type PagePair struct{ Local, Remote uint32 }

// local returns the extent of a local page.
func (p *PagePlane) local(page uint32) mem.Extent {
	return mem.Extent{Region: p.Region, Off: p.Base + int64(page)*p.Stride, Len: p.Bytes}
}

// Path is the method by which the bytes of a task are transferred.
type Path uint8

// The paths, in order of preference.
const (
	PathNone   Path = iota // nothing was transferred
	PathNVLink             // by a device, with imported device memory of the same host
	PathShm                // with imported host memory of the same host
	PathRDMA               // by NICs, with registered memory
	PathTCP                // over sockets
	paths
)

var pathNames = [paths]string{PathNone: "none", PathNVLink: "nvlink", PathShm: "shm", PathRDMA: "rdma", PathTCP: "tcp"}

// String returns the path's name.
func (p Path) String() string {
	if p < paths {
		return pathNames[p]
	}
	return fmt.Sprintf("path(%d)", uint8(p))
}

// ParsePath parses the result of Path.String. It returns ErrInvalid for other names.
func ParsePath(name string) (Path, error) {
	for p, n := range pathNames {
		if n == name {
			return Path(p), nil
		}
	}
	return PathNone, fmt.Errorf("path %q: must be nvlink, shm, rdma or tcp: %w", name, errdefs.ErrInvalid)
}

// Status is the state of a task or a batch.
type Status uint8

// The states. The last four are final.
const (
	StatusWaiting   Status = iota // waits for dependencies
	StatusPending                 // in progress
	StatusCompleted               // all bytes have arrived
	StatusFailed
	StatusCanceled
	StatusTimeout
)

var statusNames = [...]string{"waiting", "pending", "completed", "failed", "canceled", "timeout"}

// String returns the status's name.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// TaskResult is the state of a task.
type TaskResult struct {
	Status Status
	// Err is nil unless the task failed. After a failure the bytes at the destination are
	// undefined.
	Err  error
	Path Path // path of the last bytes
}

// Completion has the statistics of a batch.
type Completion struct {
	Bytes   [paths]int64 // by path
	Retries int          // number of retried parts
	// Fallback is the last reason for which an expected path was not used, or nil.
	Fallback          error
	Started, Finished time.Time
}

// validate returns the length of the task in bytes, or an error.
func (t *Task) validate(e *Engine) (n int64, err error) {
	switch {
	case t.Op != Read && t.Op != Write:
		return 0, fmt.Errorf("%s: %w", t.Op, errdefs.ErrInvalid)
	case t.Segment == nil || t.Segment.e != e:
		return 0, fmt.Errorf("it has no segment of this engine: %w", errdefs.ErrInvalid)
	case t.Pages != nil:
		return t.validatePages(e)
	}
	if err := t.Local.Validate(); err != nil {
		return 0, err
	}
	if err := e.mover.Moves(t.Local.Region); err != nil {
		return 0, err
	}
	if t.Offset < 0 {
		return 0, fmt.Errorf("offset %d: %w", t.Offset, errdefs.ErrInvalid)
	}
	_, err = t.Segment.buffer(t.Offset, t.Local.Len)
	return t.Local.Len, err
}

// validatePages checks the highest local and remote page of each plane. It returns the total
// length.
func (t *Task) validatePages(e *Engine) (n int64, err error) {
	var here, there uint32
	for _, p := range t.Pages.Pairs {
		here, there = max(here, p.Local), max(there, p.Remote)
	}
	for i := range t.Pages.Planes {
		pl := &t.Pages.Planes[i]
		fail := func(err error) (int64, error) { return 0, fmt.Errorf("plane %d: %w", i, err) }
		if err := e.mover.Moves(pl.Region); err != nil {
			return fail(err)
		}
		remote := shape{planes: []plane{{pl.RemoteBase, pl.RemoteStride, pl.Bytes}}, pages: []uint32{there}}
		local := shape{planes: []plane{{pl.Base, pl.Stride, pl.Bytes}}, pages: []uint32{here}}
		for _, s := range []*shape{&remote, &local} {
			if err := s.validate(); err != nil {
				return fail(err)
			}
		}
		if err := pl.local(here).Validate(); err != nil {
			return fail(err)
		}
		if _, err := pl.buffer(t.Segment, there); err != nil {
			return fail(err)
		}
		n += pl.Bytes * int64(len(t.Pages.Pairs))
	}
	return n, nil
}

// buffer returns the buffer of r that contains the plane's pages up to last. It returns ErrInvalid
// if there is none.
func (p *PagePlane) buffer(r *Remote, last uint32) (*remoteBuffer, error) {
	b, err := r.buffer(p.RemoteBase, p.Bytes)
	if err != nil {
		return nil, err
	}
	if end := p.RemoteBase + int64(last)*p.RemoteStride + p.Bytes; end > b.Offset+b.Length {
		return nil, fmt.Errorf("page %d of segment %q ends at %d, beyond its buffer: %w", last, r.name, end, errdefs.ErrInvalid)
	}
	return b, nil
}

package blockio

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// RDMAOptions let the server of a client read and write the memory of stores and retrieves by RDMA.
// Memory that is not registered with the NIC is sent over the socket, as without RDMA.
//
// A connected server can read and write all memory that is registered with the NIC for peers, not
// only that of requests. Checksums detect bytes that it wrote in place of others.
type RDMAOptions struct {
	// NIC has the memory of calls, registered with the rights PeerAccess. It must be a trust domain
	// of its own, and the caller closes it after the client. Required.
	NIC *registry.Registry
	// Connect has the options of connections: see channel.Options.
	Connect rdma.ConnectOptions
	// Memory allocates host-pinned memory for requests and results: Alloc and Free, and Pin and
	// Unpin if Alloc returns pageable memory. Required.
	Memory mem.BufferHooks
	// Flush makes writes of NICs visible to a device, and Sum returns the XXH3 of device memory.
	// Both are required for pieces in device memory.
	Flush func(device int) error
	Sum   func(e mem.Extent) (uint64, error)
}

const (
	// PeerAccess are the rights of a server to the memory of a client. They exclude relaxed
	// ordering, so the write of a completion word follows all earlier writes.
	PeerAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	// MinDeviceBytes is the minimum length of a piece in device memory.
	MinDeviceBytes = 64 << 10
	// FlagHeadBytes is the length of a flag before its result. A flag is a completion word, u64,
	// which is CompletionWord of the request; the length of the result, u32; zero, u32; and the
	// result. The server writes the word last. A flag has space for a result with an entry for
	// each entry of the request.
	FlagHeadBytes = 16
)

// CompletionWord returns the first 8 bytes of a written flag.
func CompletionWord(id uint64, phase bool) uint64 {
	w := id << 1
	if phase {
		w |= 1
	}
	return w
}

// slots has the registered memory for requests and flags, of all connections of a client.
type slots struct {
	o            *RDMAOptions
	count        int // of each
	sends, flags *mem.Buffers

	sent, missed atomic.Int64
}

// openSlots allocates a request and a flag for each credit.
func openSlots(o *ClientOptions) (_ *slots, err error) {
	r := o.RDMA
	if r.NIC == nil || r.Memory.Alloc == nil {
		return nil, invalid("RDMA without a NIC or memory")
	}
	s := &slots{o: r, count: int(o.Limits.Credits)}
	entries := int64(min(o.BatchEntries, int(o.Limits.Entries)))
	open := func(bytes int64, key func(i rdma.MRInfo) uint32) (*mem.Buffers, error) {
		h := r.Memory
		h.Register = func(m *mem.Region) (uint32, error) {
			if err := r.NIC.Register(rdma.MROptions{Access: PeerAccess}, m); err != nil {
				return 0, err
			}
			held, err := r.NIC.Acquire(mem.All(m), PeerAccess)
			if err != nil {
				return 0, err
			}
			defer held.Release() // Buffers keep it registered
			return key(held.Info()), nil
		}
		h.Deregister = func(ctx context.Context, m *mem.Region) error {
			return registry.Unregister(ctx, []*registry.Registry{r.NIC}, m)
		}
		return mem.NewBuffers(mem.BufferOptions{Kind: mem.KindHostPinned, Count: int64(s.count), Capacity: bytes, Hooks: h})
	}
	if s.sends, err = open(headBytes+entries*int64(entryBytes[formPieces]), func(i rdma.MRInfo) uint32 { return i.LKey }); err != nil {
		return nil, err
	}
	if s.flags, err = open(FlagHeadBytes+headBytes+entries*resultBytes, func(i rdma.MRInfo) uint32 { return i.RKey }); err != nil {
		return nil, errors.Join(err, s.close(context.Background()))
	}
	return s, nil
}

// close frees the slots, after all connections have ended. It may be called again.
func (s *slots) close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	err := s.sends.Close(ctx)
	if s.flags != nil {
		err = errors.Join(err, s.flags.Close(ctx))
	}
	return err
}

// remote is the part of a call that the server accesses.
type remote struct {
	send, flag mem.Buffer
	held       []*registry.Memory
}

// prepare gives the entries of a call the addresses and keys of their memory, and the call a request
// and a flag. It reports false if the memory is not registered, or all slots are in use; the call
// then has no addresses.
func (s *slots) prepare(k *call) (ok bool) {
	q, r := &k.request, new(remote)
	defer func() {
		if !ok {
			for i := range q.Entries {
				q.Entries[i].Addr, q.Entries[i].MemoryKey = 0, 0
			}
			_ = s.release(r) // buffers that were lent here
		}
	}()
	for i, e := range k.extents {
		m, err := s.o.NIC.Acquire(e, PeerAccess)
		if err != nil {
			return false
		}
		r.held = append(r.held, m)
		q.Entries[i].Addr, q.Entries[i].MemoryKey = mem.DevAddr(m.Addr(e)), m.Info().RKey
	}
	var err error
	if r.send, err = s.sends.TryAcquire(int64(headBytes + len(q.Entries)*entryBytes[formPieces])); err != nil {
		return false
	}
	if r.flag, err = s.flags.TryAcquire(int64(FlagHeadBytes + headBytes + len(q.Entries)*resultBytes)); err != nil {
		return false
	}
	if errors.Join(r.send.CheckReady(), r.flag.CheckReady()) != nil {
		return false
	}
	q.Addressed, q.ResponseAddr, q.ResponseKey, k.remote = true, r.flag.Dev, r.flag.Key, r
	return true
}

// release returns the slots and the memory of a call. The server must not access them any more.
func (s *slots) release(r *remote) error {
	for _, m := range r.held {
		m.Release()
	}
	var errs []error
	if r.send.Len > 0 {
		errs = append(errs, s.sends.Release(r.send))
	}
	if r.flag.Len > 0 {
		errs = append(errs, s.flags.Release(r.flag))
	}
	return errors.Join(errs...)
}

// flush makes the retrieved bytes of a call visible to the devices of its memory.
func (s *slots) flush(k *call) error {
	for i := range k.extents {
		if r := k.extents[i].Region; k.request.Op == OpRetrieve && r.Kind() == mem.KindDevice {
			if err := s.o.Flush(r.Device()); err != nil {
				return fmt.Errorf("flush a NIC's writes: %w", err)
			}
		}
	}
	return nil
}

// checkPiece returns an error for a piece whose memory a client with these options cannot use.
func (o *RDMAOptions) checkPiece(m mem.Extent) error {
	switch {
	case m.Bytes() != nil:
		return nil
	case o == nil || o.Flush == nil || o.Sum == nil || m.Region.Kind() != mem.KindDevice:
		return fmt.Errorf("piece in the %s: a connection without RDMA needs memory that the CPU reaches: %w", m.Region, errdefs.ErrNotSupported)
	case m.Len < MinDeviceBytes:
		return fmt.Errorf("piece of %d bytes in the %s, of at least %d: %w", m.Len, m.Region, MinDeviceBytes, errdefs.ErrNotSupported)
	}
	return nil
}

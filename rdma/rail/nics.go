package rail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Options configure NICs.
type Options struct {
	// Devices opens the NICs and shares them with other users. It must outlive the NICs.
	Devices *registry.Devices
	NICs    []NIC // 1 to MaxNICs
	// Registry are the options for registering memory.
	Registry registry.Options
	// Flush makes writes of NICs visible to a device. Nil: no flush is needed.
	Flush func(device int) error
	// Pinned allocates the memory for the reads after writes. Nil: pageable host memory.
	Pinned Pinned
	// Depth is the maximum number of outstanding requests of a queue. MaxSGE is the maximum number
	// of scatter-gather entries of a request. Defaults 512 and 16, or the limit of the NIC if that
	// is less.
	Depth, MaxSGE int
}

// Pinned allocates host memory for a device. A device.Device implements it.
type Pinned interface {
	AllocHost(n int64) (*mem.Region, error)
	Free(r *mem.Region) error
}

// NIC is a NIC and the options of its connections: see channel.Options.
type NIC struct {
	Name    string
	Connect rdma.ConnectOptions
}

const (
	defaultDepth  = 512
	defaultMaxSGE = 16
	// requestBytes is the maximum length of one request. chainBytes is the maximum total length of
	// requests posted together. A shorter chain reports progress more often.
	requestBytes = 1 << 20
	chainBytes   = 4 << 20
)

// NICs are the NICs that transfers use. A nil *NICs has no NIC. It is safe for concurrent use.
type NICs struct{ o Options }

// New returns the NICs of o without opening them. It returns ErrInvalid for options out of range.
func New(o Options) (*NICs, error) {
	if o.Devices == nil || len(o.NICs) == 0 || len(o.NICs) > MaxNICs || o.Depth < 0 || o.MaxSGE < 0 {
		return nil, fmt.Errorf("transfers by %d NICs, %d requests of %d pieces: %w", len(o.NICs), o.Depth, o.MaxSGE, errdefs.ErrInvalid)
	}
	if o.Pinned == nil {
		o.Pinned = plain{}
	}
	o.Depth, o.MaxSGE = cmp.Or(o.Depth, defaultDepth), cmp.Or(o.MaxSGE, defaultMaxSGE)
	return &NICs{o}, nil
}

// Names returns the names of the NICs in order.
func (n *NICs) Names() (names []string) {
	if n == nil {
		return nil
	}
	for i := range n.o.NICs {
		names = append(names, n.o.NICs[i].Name)
	}
	return names
}

// ConnectRetries returns the number of connection retries because the peer's link address was not
// resolved in time. It includes retries of other users of the NICs.
func (n *NICs) ConnectRetries() (sum int64) {
	for _, name := range n.Names() {
		sum += n.o.Devices.ConnectRetries(name)
	}
	return sum
}

// Access flags for memory. PCIe relaxed ordering is excluded, because a read after a write must
// return after all written bytes are visible.
const (
	forPeers = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	forUs    = rdma.AccessLocalWrite
)

// Domain has the memory and queues of one trust domain on all NICs. It is safe for concurrent use.
type Domain struct {
	o      *Options
	access rdma.Access
	set    *registry.Set
	nics   []*registry.Registry

	mu sync.Mutex
	// memory for the reads after writes; nil in domains that peers access
	scratch *mem.Region
	queues  int64 // number of queues opened
	// queues that Retire could not close
	left []*Queue
}

// Serve opens a domain whose memory peers may read and write. The caller closes it.
func (n *NICs) Serve() (*Domain, error) { return n.open(forPeers) }

// Use opens a domain for queues that send. Peers cannot access its memory. The caller closes it.
func (n *NICs) Use() (*Domain, error) { return n.open(forUs) }

func (n *NICs) open(access rdma.Access) (_ *Domain, err error) {
	d := &Domain{o: &n.o, access: access, set: n.o.Devices.NewSet(n.o.Registry)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open NICs for transfers: %w", errors.Join(err, d.Close()))
		}
	}()
	for i := range n.o.NICs {
		g, err := d.set.NIC(n.o.NICs[i].Name)
		if err != nil {
			return nil, err
		}
		d.nics = append(d.nics, g)
	}
	if access == forPeers {
		return d, nil
	}
	if d.scratch, err = d.o.Pinned.AllocHost(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	if err := registry.Register(d.nics, rdma.MROptions{Access: forUs}, d.scratch); err != nil {
		return nil, err
	}
	return d, nil
}

// plain allocates host memory that is not pinned for a device.
type plain struct{}

func (plain) AllocHost(n int64) (*mem.Region, error) { return hostmem.AllocRegion(n) }

func (plain) Free(r *mem.Region) error { return hostmem.FreeRegion(r) }

// Register registers r with all NICs or with none and returns its key for each NIC. The key's
// address is near base and has the same offset within a page as r. Register returns ErrExists for
// memory that overlaps registered memory and ErrNotSupported for memory that no NIC can access.
func (d *Domain) Register(r *mem.Region, base int64) ([]Key, error) {
	page := uint64(os.Getpagesize())
	at := uint64(base)/page*page + rdma.OwnAddr(mem.All(r))%page
	o := rdma.MROptions{Access: d.access}
	if d.access == forPeers {
		o.IOVA = &at
	}
	if err := registry.Register(d.nics, o, r); err != nil {
		return nil, err
	}
	keys := make([]Key, len(d.nics))
	for i, g := range d.nics {
		m, err := g.Acquire(mem.All(r), d.access)
		if err != nil {
			return nil, err
		}
		keys[i] = Key{Addr: m.Info().Addr, RKey: m.Info().RKey}
		m.Release()
	}
	return keys, nil
}

// maxReason is the maximum length of the result of Reason in bytes.
const maxReason = 512

// Reason returns the text about a failed registration that is sent to peers: the verb, its errno
// and known causes, but no addresses of this process.
func Reason(err error) string {
	var verb *rdma.Error
	if !errors.As(err, &verb) {
		return "the process that owns the memory has the reason"
	}
	public := *verb
	public.Args = ""
	text := public.Error()
	return text[:min(len(text), maxReason)]
}

// Unregister waits until no lease has r and unregisters it. If it returns nil, no NIC can access r
// through this domain; otherwise the caller may retry. It returns nil for memory that is not
// registered.
func (d *Domain) Unregister(ctx context.Context, r *mem.Region) error {
	return registry.Unregister(ctx, d.nics, r)
}

// Lease keeps memory registered until Release.
type Lease struct {
	by map[*mem.Region]*registry.Memory
}

// Lease keeps the memory of the extents registered with a NIC until Lease.Release. It returns
// ErrNotFound for memory that is not registered.
func (d *Domain) Lease(nic int, list []mem.Extent) (*Lease, error) {
	h := &Lease{by: make(map[*mem.Region]*registry.Memory)}
	for i := range list {
		r := list[i].Region
		if h.by[r] != nil {
			continue
		}
		m, err := d.nics[nic].Acquire(mem.All(r), d.access)
		if err != nil {
			h.Release()
			return nil, err
		}
		h.by[r] = m
	}
	return h, nil
}

// Release ends the lease. No request may use the memory afterwards.
func (h *Lease) Release() {
	for _, m := range h.by {
		m.Release()
	}
	h.by = nil
}

// Open opens an unconnected queue of a NIC. The caller closes it before the domain, or passes it to
// Retire. It returns ErrBusy while a retired queue of the NIC cannot be closed.
func (d *Domain) Open(nic int) (*Queue, error) {
	if nic < 0 || nic >= len(d.nics) {
		return nil, fmt.Errorf("NIC %d of %d: %w", nic, len(d.nics), errdefs.ErrInvalid)
	}
	if err := d.closeLeft(nic); err != nil {
		return nil, err
	}
	connect := d.o.NICs[nic].Connect
	connect.Access = d.access
	// A random number prevents the new queue pair from accepting packets of an earlier one.
	connect.PSN = rand.Uint32N(max24 + 1)
	c, err := channel.Open(channel.Options{NIC: d.nics[nic], Connect: connect, Depth: d.o.Depth, SGEs: d.o.MaxSGE})
	if err != nil {
		return nil, err
	}
	q := &Queue{d: d, nic: nic, c: c, pair: c.Pairs[0], completed: make(chan struct{}, 1)}
	if d.access == forUs {
		// A chain takes at most a quarter of the queue, so that three chains are in progress while
		// the next is built.
		q.wrs = make([]rdma.SendWR, max(c.Depth/4, 1))
		q.each = max(c.MaxSGE(rdma.WRRDMARead), c.MaxSGE(rdma.WRRDMAWrite))
		q.sges = make([]rdma.SGE, len(q.wrs)*q.each)
		d.mu.Lock()
		scratch, at := d.scratch, d.queues%d.scratch.Len() // each queue has its own byte
		d.queues++
		d.mu.Unlock()
		m, err := d.nics[nic].Acquire(mem.All(scratch), d.access)
		if err != nil {
			return nil, errors.Join(err, d.closeOrKeep(q))
		}
		info := m.Info()
		// the domain keeps the memory registered until all of its queues are closed
		m.Release()
		q.scratch = info.SGE(at, 1)
	}
	return q, nil
}

// Retire closes a queue that has sent nothing. If the NIC cannot close the queue, the domain keeps
// it and its memory stays registered. The domain retries before it opens another queue of that NIC,
// and in Close.
func (d *Domain) Retire(q *Queue) { _ = d.closeOrKeep(q) }

func (d *Domain) closeOrKeep(q *Queue) error {
	err := q.Close()
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.left = append(d.left, q)
	}
	return err
}

// Left returns the number of retired queues that are not closed.
func (d *Domain) Left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.left)
}

// closeLeft closes the retired queues of one NIC, or of all NICs if nic is negative.
func (d *Domain) closeLeft(nic int) error {
	d.mu.Lock()
	own := func(q *Queue) bool { return nic < 0 || q.nic == nic }
	mine := slices.DeleteFunc(slices.Clone(d.left), func(q *Queue) bool { return !own(q) })
	d.left = slices.DeleteFunc(d.left, own)
	d.mu.Unlock()
	var errs []error
	for _, q := range mine {
		errs = append(errs, d.closeOrKeep(q))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("queues that failed to open cannot be closed: %w: %w", errdefs.ErrBusy, err)
	}
	return nil
}

// Close closes the NICs. It returns ErrBusy while queues are open or memory is leased. The caller
// may retry it.
func (d *Domain) Close() error {
	if err := d.closeLeft(-1); err != nil {
		return err
	}
	if err := d.set.Close(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.scratch == nil {
		return nil
	}
	err := d.o.Pinned.Free(d.scratch)
	if err == nil {
		d.scratch = nil
	}
	return err
}

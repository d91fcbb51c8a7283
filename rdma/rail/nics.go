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
	// Flush makes writes of NICs visible to a device. Nil: they always are.
	Flush func(device int) error
	// Pinned allocates the memory that a queue reads bytes back to. Nil: plain host memory.
	Pinned Pinned
	// Depth is the number of outstanding requests of a queue, MaxSGE the number of local pieces of
	// a request. Default 512 and 16, or less if the NIC has less.
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
	// requestBytes is the maximum length of a request, chainBytes of requests posted together.
	// Shorter chains complete more often and show progress.
	requestBytes = 1 << 20
	chainBytes   = 4 << 20
)

// NICs are the NICs of transfers. A nil *NICs has none. They are safe for concurrent use.
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

// Names returns the NICs' names, in their order.
func (n *NICs) Names() (names []string) {
	if n == nil {
		return nil
	}
	for i := range n.o.NICs {
		names = append(names, n.o.NICs[i].Name)
	}
	return names
}

// ConnectRetries returns how often connecting a queue pair was retried because the peer's link
// address was not resolved in time. Other users of the NICs count too.
func (n *NICs) ConnectRetries() (sum int64) {
	for _, name := range n.Names() {
		sum += n.o.Devices.ConnectRetries(name)
	}
	return sum
}

// Access rights of memory. They exclude PCIe relaxed ordering, so that the read after a write
// returns after all of its bytes.
const (
	forPeers = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	forUs    = rdma.AccessLocalWrite
)

// Domain is the memory and queues of one trust domain on all NICs. It is safe for concurrent use.
type Domain struct {
	o      *Options
	access rdma.Access
	set    *registry.Set
	nics   []*registry.Registry

	mu      sync.Mutex
	scratch *mem.Region // memory to read back to; nil in domains that peers use
	queues  int64       // number of queues opened
	left    []*Queue    // queues that Leave could not close
}

// Serve opens a domain whose memory peers read and write. The caller closes it.
func (n *NICs) Serve() (*Domain, error) { return n.open(forPeers) }

// Use opens a domain whose queues send. Peers cannot reach its memory. The caller closes it.
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

func (plain) AllocHost(n int64) (*mem.Region, error) {
	b, err := hostmem.Alloc(n)
	if err != nil {
		return nil, err
	}
	return hostmem.Region(b)
}

func (plain) Free(r *mem.Region) error { return hostmem.Free(r.Bytes()) }

// Register registers r with all NICs or with none and returns its key for each. Peers reach its
// first byte near base, at the same offset within a page. It returns ErrExists for memory that
// overlaps registered memory and ErrNotSupported for memory that no NIC reaches.
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

// maxReason is the maximum length of a reason in bytes.
const maxReason = 512

// Reason returns a text for peers about a failed registration: the verb, its errno and known
// causes, but no addresses of this process.
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

// Unregister waits until r is not held and unregisters it. If it returns nil, no NIC reaches r
// through this domain; otherwise the caller may retry. Memory that is not registered is no error.
func (d *Domain) Unregister(ctx context.Context, r *mem.Region) error {
	return registry.Unregister(ctx, d.nics, r)
}

// Lease is memory that stays registered until Release.
type Lease struct {
	by map[*mem.Region]*registry.Memory
}

// Lease keeps the memory of the extents registered with a NIC. It returns ErrNotFound for memory
// that is not registered.
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

// Release releases the memory. No request may use it any more.
func (h *Lease) Release() {
	for _, m := range h.by {
		m.Release()
	}
	h.by = nil
}

// Open opens an unconnected queue of a NIC. The caller closes it before the domain, or passes it to
// Leave. It returns ErrBusy while a queue from Leave cannot be closed.
func (d *Domain) Open(nic int) (*Queue, error) {
	if nic < 0 || nic >= len(d.nics) {
		return nil, fmt.Errorf("NIC %d of %d: %w", nic, len(d.nics), errdefs.ErrInvalid)
	}
	if err := d.closeLeft(nic); err != nil {
		return nil, err
	}
	connect := d.o.NICs[nic].Connect
	connect.Access = d.access
	// Packets of an earlier queue pair must not be accepted by this one.
	connect.PSN = rand.Uint32N(max24 + 1)
	c, err := channel.Open(channel.Options{NIC: d.nics[nic], Connect: connect, Depth: d.o.Depth, SGEs: d.o.MaxSGE})
	if err != nil {
		return nil, err
	}
	q := &Queue{d: d, nic: nic, c: c, pair: c.Pairs[0], completed: make(chan struct{}, 1)}
	if d.access == forUs {
		// A quarter of the queue: three chains are in progress while the next is built.
		q.wrs = make([]rdma.SendWR, max(c.Depth/4, 1))
		q.each = max(c.MaxSGE(rdma.WRRDMARead), c.MaxSGE(rdma.WRRDMAWrite))
		q.sges = make([]rdma.SGE, len(q.wrs)*q.each)
		d.mu.Lock()
		scratch, at := d.scratch, d.queues%d.scratch.Len() // one byte for each queue
		d.queues++
		d.mu.Unlock()
		m, err := d.nics[nic].Acquire(mem.All(scratch), d.access)
		if err != nil {
			return nil, errors.Join(err, d.closeOrKeep(q))
		}
		info := m.Info()
		m.Release() // the domain keeps it until all of its queues are closed
		q.scratch = info.SGE(at, 1)
	}
	return q, nil
}

// Retire closes a queue that has sent nothing. It does not wait: if the NIC cannot close the queue,
// the domain keeps it and its memory stays registered. The domain retries before it opens another
// queue of that NIC, and in Close.
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

// Left returns the number of queues from Leave that are not closed.
func (d *Domain) Left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.left)
}

// closeLeft closes the queues from Leave of one NIC, or of all if nic is negative.
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

// Close closes the NICs. It returns ErrBusy while queues are open or memory is held, and may be
// called again.
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

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

// Options say by which NICs transfers go.
type Options struct {
	// Devices opens the NICs, each once for all who have it, and outlives them.
	Devices *registry.Devices
	NICs    []NIC // 1 to MaxNICs
	// Registry says how memory is registered.
	Registry registry.Options
	// Flush has a device see what NICs have written to its memory; nil: it does.
	Flush func(device int) error
	// Pinned has the little memory that bytes of the peer's are read back to; nil: it is plain host memory.
	Pinned Pinned
	// Depth is how many requests a queue has outstanding at most, and MaxSGE how many pieces of local memory one has. Default 512 and 16; what a
	// NIC has less, it is.
	Depth, MaxSGE int
}

// Pinned allocates host memory for a device, as device.Device does.
type Pinned interface {
	AllocHost(n int64) (*mem.Region, error)
	Free(r *mem.Region) error
}

// NIC is a NIC, and how its queue pairs are connected: see channel.Options.
type NIC struct {
	Name    string
	Connect rdma.ConnectOptions
}

const (
	defaultDepth  = 512
	defaultMaxSGE = 16
	// requestBytes is how long a request is at most, and chainBytes what is posted together: completions show that a queue gets on.
	requestBytes = 1 << 20
	chainBytes   = 4 << 20
)

// NICs are those by which transfers go. A nil *NICs has none. Safe for concurrent use.
type NICs struct{ o Options }

// New returns the NICs of o, of which nothing is opened yet. ErrInvalid.
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

// ConnectRetries returns how often a queue pair of these NICs, whoever has it, was connected another time as the peer's link address was not found
// in time.
func (n *NICs) ConnectRetries() (sum int64) {
	for _, name := range n.Names() {
		sum += n.o.Devices.ConnectRetries(name)
	}
	return sum
}

// Rights of memory. PCIe's relaxed ordering is not asked for: what is read back of a write is behind all of it.
const (
	forPeers = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	forUs    = rdma.AccessLocalWrite
)

// Domain is memory and queues of one trust domain, on all of the NICs. Safe for concurrent use.
type Domain struct {
	o      *Options
	access rdma.Access
	set    *registry.Set
	nics   []*registry.Registry

	mu      sync.Mutex
	scratch *mem.Region // where bytes are read back to, of domains that send
	queues  int64       // that were opened
	left    []*Queue    // see Leave
}

// Serve opens a domain whose memory peers read and write. The caller closes it.
func (n *NICs) Serve() (*Domain, error) { return n.open(forPeers) }

// Use opens a domain whose queues send, and whose memory no peer reaches. The caller closes it.
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

// plain is host memory that is pinned for no device.
type plain struct{}

func (plain) AllocHost(n int64) (*mem.Region, error) {
	b, err := hostmem.Alloc(n)
	if err != nil {
		return nil, err
	}
	return hostmem.Region(b)
}

func (plain) Free(r *mem.Region) error { return hostmem.Free(r.Bytes()) }

// Register registers r with all NICs, or with none, and returns its key of each. To peers its first byte is at about base, at the same
// offset in a page as it has here. ErrExists for what overlaps registered memory, ErrNotSupported for what no NIC reaches.
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

// maxReason is how long a reason is at most, in bytes.
const maxReason = 512

// Reason returns why a registration failed, for peers: which verb, with what errno, and what is known of that, without addresses of this process.
func Reason(err error) string {
	var verb *rdma.Error
	if !errors.As(err, &verb) {
		return "the process that has the memory knows why"
	}
	public := *verb
	public.Args = ""
	text := public.Error()
	return text[:min(len(text), maxReason)]
}

// Unregister takes r back, if it is registered, when nobody holds it any more. When it returns nil no NIC touches it by this domain; otherwise it
// may be called again.
func (d *Domain) Unregister(ctx context.Context, r *mem.Region) error {
	return registry.Unregister(ctx, d.nics, r)
}

// Held is registered memory that stays so.
type Held struct {
	by map[*mem.Region]*registry.Memory
}

// Hold holds the memory of the extents, as it is registered with a NIC. ErrNotFound for what is not.
func (d *Domain) Hold(nic int, list []mem.Extent) (*Held, error) {
	h := &Held{by: make(map[*mem.Region]*registry.Memory)}
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

// Release lets go of it, once nothing touches it.
func (h *Held) Release() {
	for _, m := range h.by {
		m.Release()
	}
	h.by = nil
}

// Open opens a queue over a NIC, which is to be connected. The caller closes it before the domain, or leaves it there. ErrBusy while the NIC does
// not close what was left.
func (d *Domain) Open(nic int) (*Queue, error) {
	if nic < 0 || nic >= len(d.nics) {
		return nil, fmt.Errorf("NIC %d of %d: %w", nic, len(d.nics), errdefs.ErrInvalid)
	}
	if err := d.closeLeft(nic); err != nil {
		return nil, err
	}
	connect := d.o.NICs[nic].Connect
	connect.Access = d.access
	// What is still on its way from a queue pair of before must not be taken for this one's.
	connect.PSN = rand.Uint32N(max24 + 1)
	c, err := channel.Open(channel.Options{NIC: d.nics[nic], Connect: connect, Depth: d.o.Depth, SGEs: d.o.MaxSGE})
	if err != nil {
		return nil, err
	}
	q := &Queue{d: d, nic: nic, c: c, pair: c.Pairs[0], completed: make(chan struct{}, 1)}
	if d.access == forUs {
		// A quarter of the queue: three chains are under way while the next is built.
		q.wrs = make([]rdma.SendWR, max(c.Depth/4, 1))
		q.each = max(c.MaxSGE(rdma.WRRDMARead), c.MaxSGE(rdma.WRRDMAWrite))
		q.sges = make([]rdma.SGE, len(q.wrs)*q.each)
		d.mu.Lock()
		scratch, at := d.scratch, d.queues%d.scratch.Len() // a byte of its own
		d.queues++
		d.mu.Unlock()
		m, err := d.nics[nic].Acquire(mem.All(scratch), d.access)
		if err != nil {
			return nil, errors.Join(err, d.leave(q))
		}
		info := m.Info()
		m.Release() // the domain has it until all of its queues are closed
		q.scratch = info.SGE(at, 1)
	}
	return q, nil
}

// Leave closes a queue by which nothing was sent, without waiting: what its NIC does not close stays the domain's, whose memory stays registered,
// and is closed before the next queue of that NIC is opened, or with the domain.
func (d *Domain) Leave(q *Queue) { _ = d.leave(q) }

func (d *Domain) leave(q *Queue) error {
	err := q.Close()
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.left = append(d.left, q)
	}
	return err
}

// Left returns how many queues were left that are not closed yet.
func (d *Domain) Left() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.left)
}

// closeLeft closes what was left of a NIC, or of all of them where nic is negative.
func (d *Domain) closeLeft(nic int) error {
	d.mu.Lock()
	own := func(q *Queue) bool { return nic < 0 || q.nic == nic }
	mine := slices.DeleteFunc(slices.Clone(d.left), func(q *Queue) bool { return !own(q) })
	d.left = slices.DeleteFunc(d.left, own)
	d.mu.Unlock()
	var errs []error
	for _, q := range mine {
		errs = append(errs, d.leave(q))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("queues that never worked do not close: %w: %w", errdefs.ErrBusy, err)
	}
	return nil
}

// Close closes the NICs. ErrBusy while queues are open or memory is held: it may be called again.
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

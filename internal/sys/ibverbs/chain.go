package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// request is a kind of work request.
type request interface{ SendWR | RecvWR }

// chain is a linked array of work requests with their scatter-gather entries. The entries are in
// the order of the requests, without gaps. The memory is outside the Go heap.
type chain[W request] struct {
	mem      []byte
	wrs      []W
	sges     []SGE
	bytes    []byte // payloads of inline requests
	used     int    // number of used elements of wrs
	usedSGEs int
	usedByte int
	linkOff  uintptr // offset of the next pointer in a request
}

// alloc allocates a chain of depth requests with up to sges entries and inline bytes each. Memory
// pages are accessed only when used.
func (c *chain[W]) alloc(depth, sges, inline int, linkOff uintptr) error {
	var w W
	if depth < 1 || sges < 0 || inline < 0 {
		return fmt.Errorf("make chain of %d requests of %d entries and %d bytes: %w", depth, sges, inline, errdefs.ErrInvalid)
	}
	// An inline request also needs an entry.
	entries := depth * max(sges, 1)
	wrBytes, sgeBytes := depth*int(unsafe.Sizeof(w)), entries*int(unsafe.Sizeof(SGE{}))
	mem, err := hostmem.Alloc(int64(wrBytes + sgeBytes + depth*inline))
	if err != nil {
		return fmt.Errorf("make chain of %d requests: %w", depth, err)
	}
	c.mem = mem
	c.wrs = unsafe.Slice((*W)(unsafe.Pointer(unsafe.SliceData(mem))), depth)
	c.sges = unsafe.Slice((*SGE)(unsafe.Pointer(unsafe.SliceData(mem[wrBytes:]))), entries)
	c.bytes = mem[wrBytes+sgeBytes:]
	c.linkOff = linkOff
	return nil
}

// Free frees the memory. The chain must not be used afterwards. Further calls return nil.
func (c *chain[W]) Free() error {
	if c.mem == nil {
		return nil
	}
	mem := c.mem
	*c = chain[W]{}
	return hostmem.Free(mem)
}

// Reset empties the chain.
func (c *chain[W]) Reset() { c.used, c.usedSGEs, c.usedByte = 0, 0, 0 }

// Len returns the number of requests in the chain.
func (c *chain[W]) Len() int { return c.used }

// next appends a zeroed request. It returns nil if the chain is full.
func (c *chain[W]) next() *W {
	if c.used == len(c.wrs) {
		return nil
	}
	w := &c.wrs[c.used]
	var zero W
	*w = zero
	c.used++
	if c.used > 1 {
		*c.link(c.used - 2) = c.address(c.used - 1)
	}
	return w
}

// take returns n unused scatter-gather entries and their address.
func (c *chain[W]) take(n int) ([]SGE, uintptr) {
	if n == 0 {
		return nil, 0
	}
	s := c.sges[c.usedSGEs : c.usedSGEs+n]
	c.usedSGEs += n
	return s, uintptr(unsafe.Pointer(unsafe.SliceData(s)))
}

// address returns the address of request i.
func (c *chain[W]) address(i int) uintptr { return uintptr(unsafe.Pointer(&c.wrs[i])) }

// link returns the address of request i's next pointer.
func (c *chain[W]) link(i int) *uintptr {
	return (*uintptr)(unsafe.Add(unsafe.Pointer(&c.wrs[i]), c.linkOff))
}

// index returns the index of the request at an address reported as refused. It returns 0 if the
// address is not in the chain.
func (c *chain[W]) index(address uintptr) int {
	var w W
	i := (address - c.address(0)) / unsafe.Sizeof(w)
	if i >= uintptr(c.used) {
		return 0
	}
	return int(i)
}

// SendChain is a chain of work requests for a send queue that one call posts. Its memory is outside
// the Go heap, has a fixed size, and is reused. It is not safe for concurrent use.
type SendChain struct{ chain[SendWR] }

// NewSendChain allocates a chain for depth requests of up to sges scatter-gather entries and inline
// bytes each.
func NewSendChain(depth, sges, inline int) (*SendChain, error) {
	c := new(SendChain)
	if err := c.alloc(depth, sges, inline, unsafe.Offsetof(SendWR{}.next)); err != nil {
		return nil, err
	}
	return c, nil
}

// Add adds a request with n scatter-gather entries. The caller fills in both before it posts the
// chain. It returns nil if the chain is full.
func (c *SendChain) Add(n int) (*SendWR, []SGE) {
	w := c.next()
	if w == nil {
		return nil, nil
	}
	sges, addr := c.take(n)
	w.sgList, w.numSGE = addr, int32(n)
	return w, sges
}

// AddInline adds a request with a copy of payload. It returns nil if the chain is full.
func (c *SendChain) AddInline(payload []byte) *SendWR {
	w := c.next()
	if w == nil || len(payload) == 0 {
		return w
	}
	to := c.bytes[c.usedByte : c.usedByte+len(payload)]
	c.usedByte += copy(to, payload)
	sges, addr := c.take(1)
	sges[0] = SGE{Addr: uint64(hostmem.Addr(to)), Length: uint32(len(payload))}
	w.sgList, w.numSGE = addr, 1
	return w
}

// RecvChain is a chain of work requests for a receive queue, like SendChain.
type RecvChain struct{ chain[RecvWR] }

// NewRecvChain allocates a chain for depth requests of up to sges scatter-gather entries each.
func NewRecvChain(depth, sges int) (*RecvChain, error) {
	c := new(RecvChain)
	if err := c.alloc(depth, sges, 0, unsafe.Offsetof(RecvWR{}.next)); err != nil {
		return nil, err
	}
	return c, nil
}

// Add adds a request, like SendChain.Add.
func (c *RecvChain) Add(n int) (*RecvWR, []SGE) {
	w := c.next()
	if w == nil {
		return nil, nil
	}
	sges, addr := c.take(n)
	w.sgList, w.numSGE = addr, int32(n)
	return w, sges
}

// WCArray is an array of completions in memory outside the Go heap. It is not safe for concurrent
// use.
type WCArray struct {
	mem []byte
	wcs []WC
}

// NewWCArray allocates an array of n completions.
func NewWCArray(n int) (*WCArray, error) {
	var wc WC
	mem, err := hostmem.Alloc(int64(n) * int64(unsafe.Sizeof(wc)))
	if err != nil {
		return nil, fmt.Errorf("allocate %d completions: %w", n, err)
	}
	return &WCArray{mem: mem, wcs: unsafe.Slice((*WC)(unsafe.Pointer(unsafe.SliceData(mem))), n)}, nil
}

// WCs returns the whole array. PollCQ writes to the first elements.
func (a *WCArray) WCs() []WC { return a.wcs }

// Free frees the memory. The array must not be used afterwards. Further calls return nil.
func (a *WCArray) Free() error {
	if a.mem == nil {
		return nil
	}
	mem := a.mem
	*a = WCArray{}
	return hostmem.Free(mem)
}

func (a *WCArray) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(a.wcs))) }

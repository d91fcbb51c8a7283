package registry

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Method is how memory was registered.
type Method uint8

// The methods.
const (
	MethodHost       Method = iota + 1 // host memory, by its CPU address
	MethodDMABuf                       // device memory that its driver exported
	MethodPeerMemory                   // device memory, through a module of the kernel such as nvidia_peermem
)

// methods is how many there are.
const methods = int(MethodPeerMemory)

// Stats are figures of the registrations with a NIC.
type Stats struct {
	By     [methods]MethodStats // Method(i+1) has By[i]
	Failed int64                // regions that could not be registered; those that were refused before the NIC was asked are none
}

// MethodStats are figures of the registrations by one method.
type MethodStats struct {
	Live  int64 // regions that are registered now
	Bytes int64 // of those
	Total int64 // regions that were registered since the NIC was opened
}

// String returns the method's name for reports.
func (m Method) String() string {
	switch m {
	case MethodHost:
		return "host"
	case MethodDMABuf:
		return "dma-buf"
	case MethodPeerMemory:
		return "peer-memory"
	}
	return fmt.Sprintf("method(%d)", uint8(m))
}

// cpuSpace is the space of CPU addresses; space d is that of device d's addresses.
const cpuSpace = mem.NoDevice

// address returns where memory is looked for that holds e: by the address that it has for NICs, in the space that this is of.
func address(e mem.Extent) (space int, addr uint64) {
	space = cpuSpace
	if e.Region.Kind() == mem.KindDevice {
		space = e.Region.Device()
	}
	return space, rdma.OwnAddr(e)
}

// Memory is a region that is registered with a NIC. Safe for concurrent use.
type Memory struct {
	region    *mem.Region
	access    rdma.Access
	space     int
	first     uint64 // address of the first byte in its space
	mr        rdma.MR
	info      rdma.MRInfo
	method    Method
	dmabufErr error // why it is no dma-buf; nil where it is, and of host memory

	// users counts references, and retiredBias once none may be added.
	users atomic.Int64
	idle  chan struct{} // closed when it is retired and nobody has a reference

	// Guarded by Registry.mu.
	registered bool // by a NIC: mr is open
	retired    bool
}

// retiredBias keeps users negative whatever the number of references.
const retiredBias = math.MinInt64 / 2

func (m *Memory) end() uint64 { return m.first + uint64(m.region.Len()) }

// acquire takes a reference, unless the memory is retired.
func (m *Memory) acquire() bool {
	for {
		n := m.users.Load()
		if n < 0 {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives back a reference of Acquire. The caller's requests have all completed.
func (m *Memory) Release() {
	switch n := m.users.Add(-1); {
	case n == retiredBias:
		close(m.idle)
	case n == -1 || n < retiredBias:
		m.users.Add(1)
		panic("registry: memory released more often than acquired")
	}
}

// retire ends the taking of references. It must be called once.
func (m *Memory) retire() {
	if m.users.Add(retiredBias) == retiredBias {
		close(m.idle)
	}
}

// references returns how many there are.
func (m *Memory) references() int64 {
	n := m.users.Load()
	if n < 0 {
		n -= retiredBias
	}
	return n
}

// Region returns what was registered.
func (m *Memory) Region() *mem.Region { return m.region }

// Info says how work requests name the memory.
func (m *Memory) Info() rdma.MRInfo { return m.info }

// Method returns how the memory was registered, and for peer memory why it is no dma-buf.
func (m *Memory) Method() (Method, error) { return m.method, m.dmabufErr }

// Addr returns the address of e's first byte in work requests, which begin to count at MROptions.IOVA where that was set. e lies
// inside the memory.
func (m *Memory) Addr(e mem.Extent) uint64 {
	_, addr := address(e)
	return m.info.Addr + (addr - m.first)
}

package registry

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// Method is a way of registering memory.
type Method uint8

// The methods.
const (
	MethodHost   Method = iota + 1 // host memory, by its CPU address
	MethodDMABuf                   // device memory exported by its driver
	// MethodPeerMemory is for device memory, through a kernel module such as nvidia_peermem.
	MethodPeerMemory
)

// methods is the number of methods.
const methods = int(MethodPeerMemory)

// Stats are statistics of the registrations with a NIC.
type Stats struct {
	By [methods]MethodStats // By[i] is for Method(i+1)
	// Failed is the number of regions that the NIC failed to register. Regions refused before the
	// call do not count.
	Failed int64
}

// MethodStats are statistics of the registrations by one method.
type MethodStats struct {
	Live  int64 // regions registered now
	Bytes int64 // total length of the live regions
	Total int64 // regions registered since the NIC was opened
}

// String returns the method's name.
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

// cpuSpace identifies the address space of pageable memory, which is registered by CPU address.
// Other spaces are the index of a device, and mem.NoDevice for host-pinned memory without a device.
const cpuSpace = mem.NoDevice - 1

// address returns the address space of e and e's default address in work requests. Lookups use
// both.
func address(e mem.Extent) (space int, addr uint64) {
	space = e.Region.Device()
	if e.Region.Kind() == mem.KindHost {
		space = cpuSpace
	}
	return space, rdma.OwnAddr(e)
}

// Memory is a region registered with a NIC. It is safe for concurrent use.
type Memory struct {
	region *mem.Region
	access rdma.Access
	space  int
	first  uint64 // address of the first byte in its space
	mr     rdma.MR
	info   rdma.MRInfo
	method Method
	// reason why the memory is not registered as a dma-buf; nil if it is, or for host memory
	dmabufErr error

	// users is the number of references, plus retiredBias if no more references may be taken.
	users atomic.Int64
	idle  chan struct{} // closed when the memory is retired and has no reference

	// Guarded by Registry.mu.
	registered bool // mr is open
	retired    bool
}

// retiredBias is added to users when the memory is retired. It makes users negative for any number
// of references.
const retiredBias = math.MinInt64 / 2

func (m *Memory) end() uint64 { return m.first + uint64(m.region.Len()) }

// acquire takes a reference. It returns false if the memory is retired.
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

// Release drops a reference taken by Acquire. All requests of the caller must have completed.
func (m *Memory) Release() {
	switch n := m.users.Add(-1); {
	case n == retiredBias:
		close(m.idle)
	case n == -1 || n < retiredBias:
		m.users.Add(1)
		panic("registry: memory released more often than acquired")
	}
}

// retire refuses further references. It must be called once.
func (m *Memory) retire() {
	if m.users.Add(retiredBias) == retiredBias {
		close(m.idle)
	}
}

// references returns the number of references.
func (m *Memory) references() int64 {
	n := m.users.Load()
	if n < 0 {
		n -= retiredBias
	}
	return n
}

// Region returns the registered region.
func (m *Memory) Region() *mem.Region { return m.region }

// Info returns the data that identifies the memory in work requests.
func (m *Memory) Info() rdma.MRInfo { return m.info }

// Method returns the method by which the memory was registered. For peer memory, the error is the
// reason why a dma-buf was not used.
func (m *Memory) Method() (Method, error) { return m.method, m.dmabufErr }

// Addr returns the address of e's first byte in work requests, relative to MROptions.IOVA if that
// was set. e must be inside the memory.
func (m *Memory) Addr(e mem.Extent) uint64 {
	_, addr := address(e)
	return m.info.Addr + (addr - m.first)
}

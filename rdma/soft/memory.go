package soft

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// pd implements rdma.PD.
type pd struct {
	owner
	dev *Device
}

// AllocPD creates a protection domain.
func (d *Device) AllocPD() (rdma.PD, error) {
	if err := d.begin(OpAllocPD, "soft_alloc_pd", &d.nic.pds, d.nic.info.MaxPD, &d.owner); err != nil {
		return nil, fmt.Errorf("allocate protection domain: %w", err)
	}
	p := &pd{dev: d}
	p.open("protection domain")
	return p, nil
}

func (p *pd) Close() error {
	ended, err := p.dev.shutdown(&p.owner, "soft_dealloc_pd")
	if err != nil {
		return fmt.Errorf("free protection domain: %w", err)
	}
	if ended {
		p.dev.nic.pds.giveBack()
		p.dev.removeChild()
	}
	return nil
}

// mr implements rdma.MR.
type mr struct {
	owner
	pd   *pd
	info rdma.MRInfo
	ops  *opCounter // counts transfers that access the memory
	ctl  sync.Mutex
}

func (p *pd) RegMR(e mem.Extent, o rdma.MROptions) (rdma.MR, error) {
	const call = "soft_reg_mr"
	if e.Region != nil && e.Region.Kind() == mem.KindDevice && p.dev.nic.o.NoDeviceMemory {
		return nil, fmt.Errorf("register %s: %w", e.Region, rdma.NewError(call, "", unix.EOPNOTSUPP, "no peer memory module: nvidia_peermem is not loaded"))
	}
	return p.register(call, e, o)
}

func (p *pd) RegDMABufMR(e mem.Extent, fd int, off int64, o rdma.MROptions) (rdma.MR, error) {
	const call = "soft_reg_dmabuf_mr"
	switch {
	case p.dev.nic.o.NoDMABuf:
		return nil, fmt.Errorf("register dma-buf of %s: %w", e.Region, rdma.NewError(call, "", unix.EOPNOTSUPP, "the device does not support dma-bufs"))
	case fd < 0 || off < 0 || e.Region == nil || e.Region.Kind() != mem.KindDevice:
		return nil, fmt.Errorf("register dma-buf of %s: %w", e.Region, rdma.NewError(call, fmt.Sprintf("fd=%d, offset=%d", fd, off), unix.EINVAL, ""))
	}
	// The dma-buf is not used, but a dma-buf that is too short is an error.
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil || off > size-e.Len {
		return nil, fmt.Errorf("register dma-buf of %s: %w", e.Region, rdma.NewError(call, fmt.Sprintf("fd=%d, offset=%d, bytes=%d", fd, off, e.Len), unix.EINVAL, fmt.Sprintf("it has %d bytes: %v", size, err)))
	}
	return p.register(call, e, o)
}

func (p *pd) register(call string, e mem.Extent, o rdma.MROptions) (rdma.MR, error) {
	if err := p.checkExtent(call, e, &o); err != nil {
		return nil, fmt.Errorf("register memory: %w", err)
	}
	nic := p.dev.nic
	if err := p.dev.begin(OpRegMR, call, &nic.mrs, nic.info.MaxMR, &p.owner); err != nil {
		return nil, fmt.Errorf("register %d bytes of the %s: %w", e.Len, e.Region, err)
	}
	m := &mr{pd: p, ops: newGate(), info: rdma.MRInfo{Extent: e, Addr: o.Addr(e), Access: o.Access}}
	nic.keys.add(m)
	m.open("memory region")
	return m, nil
}

func (p *pd) checkExtent(call string, e mem.Extent, o *rdma.MROptions) error {
	if err := o.Validate(e); err != nil {
		return err
	}
	if most := p.dev.nic.info.MaxMRBytes; uint64(e.Len) > most {
		return rdma.NewError(call, fmt.Sprintf("bytes=%d", e.Len), unix.EINVAL, fmt.Sprintf("the device registers at most %d bytes", most))
	}
	if err := p.dev.nic.prov.o.Mover.Reaches(e.Region); err != nil {
		return err
	}
	return nil
}

func (m *mr) Info() rdma.MRInfo { return m.info }

func (m *mr) Close() error {
	const call = "soft_dereg_mr"
	m.ctl.Lock() // held while waiting, so that a concurrent Close also waits
	defer m.ctl.Unlock()
	if m.closed.Load() {
		return nil
	}
	d := m.pd.dev
	err := d.fault(OpClose, call)
	if err == nil {
		err = m.ops.stop(call, d.nic.prov)
	}
	if err != nil {
		return fmt.Errorf("deregister %d bytes of the %s: %w", m.info.Extent.Len, m.info.Extent.Region, err)
	}
	d.nic.keys.remove(m)
	if _, err := m.close(call); err != nil {
		return err
	}
	d.nic.mrs.giveBack()
	m.pd.removeChild()
	return nil
}

// keyTable finds memory regions by key. A key consists of an index and a tag in its lowest byte.
// Every use of an index has a different tag.
type keyTable struct {
	mu    sync.RWMutex
	table []*mr   // by index; index 0 is unused, so that key zero is invalid
	tags  []uint8 // by index: the last tag
	free  []uint32
}

// remoteTag is the difference between the tags of a region's local and remote key.
const remoteTag = 0x80

func (k *keyTable) add(m *mr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var i uint32
	if n := len(k.free); n > 0 {
		i = k.free[0]
		k.free = slices.Delete(k.free, 0, 1)
	} else {
		i = max(uint32(len(k.table)), 1)
		grown := int(i) + 1 - len(k.table)
		k.table, k.tags = append(k.table, make([]*mr, grown)...), append(k.tags, make([]uint8, grown)...)
	}
	k.tags[i] = (k.tags[i] + 1) % remoteTag
	m.info.LKey = i<<8 | uint32(k.tags[i])
	if m.info.Access&(rdma.AccessRemoteWrite|rdma.AccessRemoteRead|rdma.AccessRemoteAtomic) != 0 {
		m.info.RKey = m.info.LKey | remoteTag
	}
	k.table[i] = m
}

func (k *keyTable) remove(m *mr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := m.info.LKey >> 8
	k.table[i] = nil
	k.free = append(k.free, i)
}

// find returns the region whose local or remote key is key, or nil.
func (k *keyTable) find(key uint32) *mr {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if i := key >> 8; i < uint32(len(k.table)) {
		return k.table[i]
	}
	return nil
}

// within returns n bytes at addr of the region. It returns false if they exceed the region.
func (m *mr) within(addr uint64, n uint32) (mem.Extent, bool) {
	off, size := addr-m.info.Addr, uint64(m.info.Extent.Len)
	if off > size || uint64(n) > size-off {
		return mem.Extent{}, false
	}
	return mem.Extent{Region: m.info.Extent.Region, Off: m.info.Extent.Off + int64(off), Len: int64(n)}, true
}

// local returns the memory of s for a work request of a queue pair in p.
func (n *nic) local(p *pd, s *rdma.SGE, need rdma.Access) (mem.Extent, *mr, error) {
	m := n.keys.find(s.LKey)
	if m != nil && m.info.LKey == s.LKey && m.pd == p && m.info.Access&need == need {
		if e, ok := m.within(s.Addr, s.Length); ok {
			return e, m, nil
		}
	}
	return mem.Extent{}, nil, n.refusal(p, m, m != nil && m.info.LKey == s.LKey, s.LKey, s.Addr, s.Length, need)
}

// remote returns n bytes at addr for a request of the peer of a queue pair in p.
func (n *nic) remote(p *pd, rkey uint32, addr uint64, bytes uint32, need rdma.Access) (mem.Extent, *mr, error) {
	m := n.keys.find(rkey)
	if m != nil && m.info.RKey == rkey && rkey != 0 && m.pd == p && m.info.Access&need == need {
		if e, ok := m.within(addr, bytes); ok {
			return e, m, nil
		}
	}
	return mem.Extent{}, nil, n.refusal(p, m, m != nil && m.info.RKey == rkey, rkey, addr, bytes, need)
}

// refusal returns the error for a key that does not permit the access.
func (n *nic) refusal(p *pd, m *mr, known bool, key uint32, addr uint64, bytes uint32, need rdma.Access) error {
	why := "the key belongs to no memory region"
	switch {
	case !known:
	case m.pd != p:
		why = "the memory region belongs to another protection domain"
	case m.info.Access&need != need:
		why = fmt.Sprintf("the memory region allows %s and not %s", m.info.Access, need)
	default:
		why = fmt.Sprintf("the memory region has %d bytes at %#x", m.info.Extent.Len, m.info.Addr)
	}
	return fmt.Errorf("key %#x of %s, %d bytes at %#x: %s: %w", key, n.info.Name, bytes, addr, why, errdefs.ErrInvalid)
}

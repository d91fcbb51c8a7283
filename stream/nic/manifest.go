package nic

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// manifest is the memory that a batch uses, kept registered until the batch has resolved. It is used again by later
// batches, with the memory of its lists.
type manifest struct {
	regions []*mem.Region
	base    []uint64 // by region: the address of its first byte in requests
	// keys and held have one element for each region and NIC.
	keys []key
	held []*registry.Memory
	// paged are the indices of the regions of a Paged: of each group its slots, then its planes.
	paged []int32
	// along says by page group that requests go on along the slots.
	along []bool
	// index finds regions where there are many.
	index map[*mem.Region]int32
	last  int32 // region found last
}

type key struct{ lkey, rkey uint32 }

// fewRegions is up to how many regions are looked for one after the other.
const fewRegions = 12

func (m *manifest) reset() {
	clear(m.regions)
	clear(m.held)
	clear(m.index)
	m.regions, m.base, m.keys, m.held = m.regions[:0], m.base[:0], m.keys[:0], m.held[:0]
	m.paged, m.along = m.paged[:0], m.along[:0]
	m.last = 0
}

// find returns the index of r, or -1.
func (m *manifest) find(r *mem.Region) int32 {
	if int(m.last) < len(m.regions) && m.regions[m.last] == r {
		return m.last
	}
	if len(m.regions) > fewRegions {
		if i, ok := m.index[r]; ok {
			m.last = i
			return i
		}
		return -1
	}
	for i, o := range m.regions {
		if o == r {
			m.last = int32(i)
			return m.last
		}
	}
	return -1
}

// release gives the memory back.
func (m *manifest) release() {
	for _, h := range m.held {
		h.Release()
	}
	m.reset()
}

// add makes r the next region, and keeps it registered with every NIC.
func (s *Stream) add(m *manifest, r *mem.Region) (int32, error) {
	if i := m.find(r); i >= 0 {
		return i, nil
	}
	if r.Kind() == mem.KindDevice && r.Device() > maxDevice {
		return 0, fmt.Errorf("device %d is beyond %d: %w", r.Device(), maxDevice, errdefs.ErrInvalid)
	}
	e := mem.All(r)
	for n, l := range s.rails {
		h, err := l.reg.Acquire(e)
		if errors.Is(err, errdefs.ErrNotFound) && s.opts.RegisterOnUse {
			h, err = l.registerAndAcquire(e)
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errdefs.ErrInvalid, err)
		}
		m.held = append(m.held, h)
		info := h.Info()
		m.keys = append(m.keys, key{lkey: info.LKey, rkey: info.RKey})
		switch addr := h.Addr(e); {
		case n == 0:
			m.base = append(m.base, addr)
		case addr != m.base[len(m.base)-1]:
			return 0, fmt.Errorf("NICs know the %s by different addresses: %w", r, errdefs.ErrNotSupported)
		}
	}
	i := int32(len(m.regions))
	m.regions = append(m.regions, r)
	if len(m.regions) > fewRegions {
		m.reindex()
	}
	return i, nil
}

// reindex completes the index, which is only kept where there are many regions.
func (m *manifest) reindex() {
	if m.index == nil {
		m.index = make(map[*mem.Region]int32)
	}
	for i := int32(len(m.index)); int(i) < len(m.regions); i++ {
		m.index[m.regions[i]] = i
	}
}

// registerAndAcquire is Acquire for memory that was not registered. Another stream may be faster.
func (l *rail) registerAndAcquire(e mem.Extent) (*registry.Memory, error) {
	if err := l.reg.Register(e.Region); err != nil && !errors.Is(err, errdefs.ErrExists) {
		return nil, err
	}
	return l.reg.Acquire(e)
}

// classes is a set of sorts of memory: the host's, and each device's.
type classes uint64

const (
	hostClass classes = 1 << 63
	// maxDevice is the last device that is told apart; Submit refuses others.
	maxDevice = 62
)

func classOf(r *mem.Region) classes {
	if r.Kind() == mem.KindDevice {
		return 1 << r.Device()
	}
	return hostClass
}

// load fills o's manifest and says what o reads and writes. The batch is valid. After an error the manifest holds what it
// held: release it.
func (s *Stream) load(o *op) error {
	b, m := o.batch, o.needs
	for i := range b.Dst {
		if b.Dst[i].Len == 0 {
			continue
		}
		if err := s.addPair(o, b.Dst[i].Region, b.Src[i].Region); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
	}
	if b.Paged == nil {
		return nil
	}
	for i := range b.Paged.Groups {
		g := &b.Paged.Groups[i]
		if len(g.Pairs) == 0 {
			m.paged = append(m.paged, make([]int32, 1+len(g.Planes))...)
			m.along = append(m.along, false)
			continue
		}
		along := s.alongSlots(g, b.Paged.Dir)
		m.along = append(m.along, along)
		slots, err := s.add(m, g.Slots.Region)
		if err != nil {
			return fmt.Errorf("slots of page group %d: %w", i, err)
		}
		m.paged = append(m.paged, slots)
		for j := range g.Planes {
			plane, err := s.add(m, g.Planes[j].Region)
			if err != nil {
				return fmt.Errorf("plane %d of page group %d: %w", j, i, err)
			}
			m.paged = append(m.paged, plane)
			dst, src := g.Planes[j].Region, g.Slots.Region
			if b.Paged.Dir == mem.ToSlots {
				dst, src = src, dst
			}
			switch {
			case g.Planes[j].Bytes == 0:
			case along:
				o.account(dst, src, alongOpcode(b.Paged.Dir))
			default:
				o.account(dst, src, opcode(dst, src))
			}
		}
	}
	return nil
}

func (s *Stream) addPair(o *op, dst, src *mem.Region) error {
	if _, err := s.add(o.needs, dst); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	if _, err := s.add(o.needs, src); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	o.account(dst, src, opcode(dst, src))
	return nil
}

// account notes a copy.
func (o *op) account(dst, src *mem.Region, by rdma.WROpcode) {
	o.uses.reads |= classOf(src)
	if by == rdma.WRRDMARead {
		o.uses.fetched |= classOf(dst)
	} else {
		o.uses.pushed |= classOf(dst)
	}
}

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
	keys    []key
	held    []*registry.Memory
	origins mem.Holds // of those that are another process's
	// planes are those of a Paged, in order, and groups where those of each group end.
	planes []plane
	groups []int
	tale   tale
	// index finds regions where there are many.
	index map[*mem.Region]int32
	last  int32 // region found last
	// reversed says that the copies of the list travel by the other opcode.
	reversed bool
}

type key struct{ lkey, rkey uint32 }

// plane is a mem.Plane with the slots of its group, in the addresses of requests.
type plane struct {
	dst, src             uint64 // of page 0, and of its part of slot 0
	dstStride, srcStride uint64
	n                    int64
	dstIndex, srcIndex   int32
	opcode               rdma.WROpcode
}

// fewRegions is up to how many regions are looked for one after the other.
const fewRegions = 12

func (m *manifest) reset() {
	clear(m.regions)
	clear(m.held)
	clear(m.index)
	m.regions, m.base, m.keys, m.held = m.regions[:0], m.base[:0], m.keys[:0], m.held[:0]
	m.planes, m.groups = m.planes[:0], m.groups[:0]
	m.last, m.reversed = 0, false
	m.tale = tale{ends: m.tale.ends[:0]}
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
	m.origins.Release()
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
	if r.Kind() == mem.KindFile {
		return 0, fmt.Errorf("no NIC reaches the %s: %w", r, errdefs.ErrInvalid)
	}
	if err := m.origins.Add(r); err != nil {
		return 0, err
	}
	e := mem.All(r)
	for n, l := range s.rails {
		h, err := l.reg.Acquire(e, Access)
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
	if err := l.reg.Register(rdma.MROptions{Access: Access}, e.Region); err != nil && !errors.Is(err, errdefs.ErrExists) {
		return nil, err
	}
	return l.reg.Acquire(e, Access)
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

// load checks o's batch, fills o's manifest, and says what o reads and writes. After an error the manifest holds what it
// held: release it.
func (s *Stream) load(o *op) error {
	if err := s.loadList(o); err != nil {
		return err
	}
	if o.batch.Paged == nil {
		return nil
	}
	return s.loadPaged(o)
}

// loadList does it for the list, at which it looks once: its loop calls nothing while the regions stay the same. If something
// is wrong, Validate says what.
func (s *Stream) loadList(o *op) error {
	b := o.batch
	if len(b.Dst) != len(b.Src) {
		return b.Validate()
	}
	if s.opts.RegisterOnUse { // a batch that is wrong registers nothing
		if err := b.Validate(); err != nil {
			return err
		}
	}
	var dst, src *mem.Region
	var dstEnd, srcEnd int64
	var next neighbours
	copies, to := 0, remote
	for i := range b.Dst {
		d, f := &b.Dst[i], &b.Src[i]
		if d.Region == nil || f.Region == nil || d.Len != f.Len || !holds(d) || !holds(f) {
			return b.Validate()
		}
		if d.Len == 0 {
			continue // of an empty copy no memory is needed
		}
		if d.Region != dst || f.Region != src {
			if err := s.addPair(o, d.Region, f.Region); err != nil {
				return fmt.Errorf("copy %d: %w", i, err)
			}
			dst, src, dstEnd, srcEnd = d.Region, f.Region, -1, -1
			to = dstSide(opcode(dst, src))
		}
		if d.Off == dstEnd {
			next[to]++
		}
		if f.Off == srcEnd {
			next[1-to]++
		}
		dstEnd, srcEnd = d.Off+d.Len, f.Off+d.Len
		copies++
		o.bytes += d.Len
	}
	s.orient(o, copies, &next)
	return nil
}

// holds reports whether e, which names a region, lies within it. Negative numbers are large ones here.
func holds(e *mem.Extent) bool {
	n := e.Region.Len()
	return uint64(e.Len) <= uint64(n) && uint64(e.Off) <= uint64(n-e.Len)
}

func (s *Stream) loadPaged(o *op) error {
	p, m := o.batch.Paged, o.needs
	if err := p.Validate(); err != nil {
		return err
	}
	o.bytes += p.Bytes()
	for i := range p.Groups {
		g := &p.Groups[i]
		if len(g.Pairs) > 0 {
			along := s.alongSlots(g, p.Dir)
			slots, err := s.add(m, g.Slots.Region)
			if err != nil {
				return fmt.Errorf("slots of page group %d: %w", i, err)
			}
			for j := range g.Planes {
				pages, err := s.add(m, g.Planes[j].Region)
				if err != nil {
					return fmt.Errorf("plane %d of page group %d: %w", j, i, err)
				}
				if g.Planes[j].Bytes > 0 {
					o.addPlane(&g.Planes[j], &g.Slots, pages, slots, along)
				}
			}
		}
		m.groups = append(m.groups, len(m.planes))
	}
	return nil
}

// addPlane appends a plane of o's pages, whose region and that of its slots have these indices.
func (o *op) addPlane(pl *mem.Plane, sl *mem.Slots, pages, slots int32, along bool) {
	m := o.needs
	page := plane{
		dst: m.base[pages] + uint64(pl.Base), dstStride: uint64(pl.Stride), dstIndex: pages,
		src: m.base[slots] + uint64(sl.Base+pl.SlotOff), srcStride: uint64(sl.Stride), srcIndex: slots, n: pl.Bytes,
	}
	dst, src, dir := pl.Region, sl.Region, o.batch.Paged.Dir
	if dir == mem.ToSlots {
		page.dst, page.src, page.dstStride, page.srcStride = page.src, page.dst, page.srcStride, page.dstStride
		page.dstIndex, page.srcIndex = slots, pages
		dst, src = src, dst
	}
	page.opcode = opcode(dst, src)
	if along {
		page.opcode = alongOpcode(dir)
	}
	o.account(dst, src, page.opcode)
	m.planes = append(m.planes, page)
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

package nic

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// manifest lists the memory of a batch and keeps it registered until the batch resolves. Later
// batches reuse its slices.
type manifest struct {
	regions []*mem.Region
	base    []uint64 // by region: address of its first byte in requests
	// keys and memories have one element for each region and NIC.
	keys     []key
	memories []*registry.Memory
	origins  mem.Holds // acquired regions of other processes
	// planes holds the planes of a Paged, in order. groups holds the end of each group in planes.
	planes   []plane
	groups   []int
	progress progress
	// index finds regions if there are more than fewRegions.
	index map[*mem.Region]int32
	last  int32 // result of the last find
	// reversed is set if the copies of the list use the opposite opcode.
	reversed bool
}

type key struct{ lkey, rkey uint32 }

// plane is a mem.Plane with its group's slots, in the addresses of requests.
type plane struct {
	dst, src             uint64 // addresses of page 0, and of the plane in slot 0
	dstStride, srcStride uint64
	n                    int64
	dstIndex, srcIndex   int32
	opcode               rdma.WROpcode
}

// fewRegions is the largest number of regions that find searches linearly.
const fewRegions = 12

func (m *manifest) reset() {
	clear(m.regions)
	clear(m.memories)
	clear(m.index)
	m.regions, m.base, m.keys, m.memories = m.regions[:0], m.base[:0], m.keys[:0], m.memories[:0]
	m.planes, m.groups = m.planes[:0], m.groups[:0]
	m.last, m.reversed = 0, false
	m.progress = progress{ends: m.progress.ends[:0]}
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

// release releases the memory and empties m.
func (m *manifest) release() {
	for _, h := range m.memories {
		h.Release()
	}
	m.origins.Release()
	m.reset()
}

// add appends r to m.regions and keeps it registered with every NIC. It returns the index of r.
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
		m.memories = append(m.memories, h)
		info := h.Info()
		m.keys = append(m.keys, key{lkey: info.LKey, rkey: info.RKey})
		switch addr := h.Addr(e); {
		case n == 0:
			m.base = append(m.base, addr)
		case addr != m.base[len(m.base)-1]:
			return 0, fmt.Errorf("NICs have different addresses for the %s: %w", r, errdefs.ErrNotSupported)
		}
	}
	i := int32(len(m.regions))
	m.regions = append(m.regions, r)
	if len(m.regions) > fewRegions {
		m.reindex()
	}
	return i, nil
}

// reindex adds new regions to the index.
func (m *manifest) reindex() {
	if m.index == nil {
		m.index = make(map[*mem.Region]int32)
	}
	for i := int32(len(m.index)); int(i) < len(m.regions); i++ {
		m.index[m.regions[i]] = i
	}
}

// registerAndAcquire registers and acquires memory. It accepts that another stream registers the
// memory first.
func (l *rail) registerAndAcquire(e mem.Extent) (*registry.Memory, error) {
	if err := l.reg.Register(rdma.MROptions{Access: Access}, e.Region); err != nil && !errors.Is(err, errdefs.ErrExists) {
		return nil, err
	}
	return l.reg.Acquire(e, Access)
}

// classes is a set of memory classes: the host, and each device.
type classes uint64

const (
	hostClass classes = 1 << 63
	// maxDevice is the highest device index that Submit accepts.
	maxDevice = 62
)

func classOf(r *mem.Region) classes {
	if r.Kind() == mem.KindDevice {
		return 1 << r.Device()
	}
	return hostClass
}

// buildManifest checks o's batch and fills o.manifest, o.uses and o.bytes. After an error the
// caller releases the manifest.
func (s *Stream) buildManifest(o *op) error {
	if err := s.addList(o); err != nil {
		return err
	}
	if o.batch.Paged == nil {
		return nil
	}
	return s.addPaged(o)
}

// addList adds the list in one pass. The loop calls no functions while the regions stay the same.
// mem.Batch.Validate returns the errors of invalid copies.
func (s *Stream) addList(o *op) error {
	b := o.batch
	if len(b.Dst) != len(b.Src) {
		return b.Validate()
	}
	if s.opts.RegisterOnUse { // do not register memory for an invalid batch
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
		if d.Region == nil || f.Region == nil || d.Len != f.Len || !contains(d) || !contains(f) {
			return b.Validate()
		}
		if d.Len == 0 {
			continue // an empty copy needs no memory
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
	s.chooseDirection(o, copies, &next)
	return nil
}

// contains reports whether e is inside its region, which is not nil. Negative numbers count as
// large ones.
func contains(e *mem.Extent) bool {
	n := e.Region.Len()
	return uint64(e.Len) <= uint64(n) && uint64(e.Off) <= uint64(n-e.Len)
}

func (s *Stream) addPaged(o *op) error {
	p, m := o.batch.Paged, o.manifest
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

// addPlane appends a plane. pages and slots are the indices of its regions. along is set if the
// slots are the remote side.
func (o *op) addPlane(pl *mem.Plane, sl *mem.Slots, pages, slots int32, along bool) {
	m := o.manifest
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
	o.addUse(dst, src, page.opcode)
	m.planes = append(m.planes, page)
}

func (s *Stream) addPair(o *op, dst, src *mem.Region) error {
	if _, err := s.add(o.manifest, dst); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	if _, err := s.add(o.manifest, src); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	o.addUse(dst, src, opcode(dst, src))
	return nil
}

// addUse adds the memory of a copy by an opcode to o.uses.
func (o *op) addUse(dst, src *mem.Region, by rdma.WROpcode) {
	o.uses.reads |= classOf(src)
	if by == rdma.WRRDMARead {
		o.uses.fetched |= classOf(dst)
	} else {
		o.uses.pushed |= classOf(dst)
	}
}

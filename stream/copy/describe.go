package copy

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// The directions that KernelCopyPaged knows.
const (
	kernelToSlots = 1
	kernelToPages = 2
)

// The first launch of a batch takes few descriptors, the next ones more and more: the device starts early, and describing
// goes on while it copies. At the largest a launch's start is lost among 40 MB of 4 KiB blocks.
const (
	firstTable     = 16 << 10 // bytes
	tableDoublings = 4
)

// stepKernel writes descriptors into sp and launches kernels on them until the batch is through, sp is full, or
// kernelStep launches are made. The device reads the descriptors when a kernel runs, so they stay until the step's event.
func (s *Stream) stepKernel(o *op, sp span, it *item) (done bool, err error) {
	start := sp.end - uint64(len(sp.buf))
	it.ringEnd = start
	k := &s.scratch.kernel
	for it.calls < kernelStep {
		var used uint64
		most := min(uint64(len(sp.buf)), firstTable<<min(o.launches, tableDoublings))
		*k, used = o.at.describe(sp.buf[:most:most], sp.dev)
		if used == 0 {
			break
		}
		used = min(align(used, tableAlign), uint64(len(sp.buf)))
		sp.buf, sp.dev = sp.buf[used:], sp.dev+used
		it.ringEnd += used
		it.calls++
		o.launches++
		k.CTAs = min(s.opts.CTAs, k.CTAs)
		if err := s.paths.launcher.Launch(k); err != nil {
			return false, err
		}
	}
	return o.at.described(), nil
}

// describe writes the descriptors of one launch into buf, whose device address is dev, and moves on. It sets CTAs to the
// number of copies, the most that can be busy. used is zero when buf is too short or nothing is left.
func (c *cursor) describe(buf []byte, dev uint64) (k device.Kernel, used uint64) {
	if c.i < len(c.batch.Dst) {
		n := c.describeList(buf)
		c.listed += n
		if n > 0 {
			k = device.Kernel{Name: device.KernelCopyList, CTAs: n, NArgs: 2}
			k.Args[0], k.Args[1] = dev, uint64(n)
			return k, uint64(n) * device.CopyDescBytes
		}
		if c.i < len(c.batch.Dst) {
			return k, 0
		}
	}
	if c.described() {
		return k, 0
	}
	return c.describePaged(buf, dev)
}

// described reports whether nothing is left to describe, and skips page groups that copy nothing.
func (c *cursor) described() bool {
	if c.i < len(c.batch.Dst) {
		return false
	}
	p := c.batch.Paged
	if p == nil {
		return true
	}
	for c.group < len(p.Groups) && (len(p.Groups[c.group].Pairs) == 0 || len(p.Groups[c.group].Planes) == 0) {
		c.group++
	}
	return c.group == len(p.Groups)
}

// describeList writes as much of the list as fits, in pieces of device.PieceBytes, and returns the number of pieces.
func (c *cursor) describeList(buf []byte) int {
	dsts, srcs := c.batch.Dst, c.batch.Src
	n := 0
	for ; c.i < len(dsts); c.i++ {
		dst, src := &dsts[c.i], &srcs[c.i]
		to, from := uint64(dst.Dev())+uint64(c.off), uint64(src.Dev())+uint64(c.off)
		for left := dst.Len - c.off; left > 0; {
			if len(buf) < device.CopyDescBytes {
				return n
			}
			piece := min(left, device.PieceBytes)
			d := buf[:device.CopyDescBytes]
			binary.LittleEndian.PutUint64(d[0:8], to)
			binary.LittleEndian.PutUint64(d[8:16], from)
			binary.LittleEndian.PutUint64(d[16:24], uint64(piece))
			buf = buf[device.CopyDescBytes:]
			to, from = to+uint64(piece), from+uint64(piece)
			left -= piece
			c.off += piece
			n++
		}
		c.off = 0
	}
	return n
}

// describePaged writes planes and then pairs of the current group: all planes if they leave room for the pairs that are
// left or fill half of buf at most, else as many as do; and as many pairs as fit behind them.
func (c *cursor) describePaged(buf []byte, dev uint64) (k device.Kernel, used uint64) {
	p := c.batch.Paged
	g := &p.Groups[c.group]
	pairs := g.Pairs[c.pair:]
	room := max(len(buf)/2, len(buf)-len(pairs)*device.PairBytes)
	if room < device.PlaneDescBytes {
		return k, 0
	}
	planes, units := describePlanes(buf[:room], g.Planes[c.plane:])
	at := int(align(uint64(planes)*device.PlaneDescBytes, tableAlign))
	n := min(len(pairs), (len(buf)-at)/device.PairBytes)
	if n <= 0 {
		return k, 0
	}
	describePairs(buf[at:at+n*device.PairBytes], pairs[:n])

	k = device.Kernel{Name: device.KernelCopyPaged, CTAs: units * n, NArgs: 7}
	k.Args = [device.MaxKernelArgs]uint64{
		dev, uint64(planes), dev + uint64(at), uint64(n),
		uint64(g.Slots.Region.Dev()) + uint64(g.Slots.Base), uint64(g.Slots.Stride), kernelToSlots,
	}
	if p.Dir == mem.ToPages {
		k.Args[6] = kernelToPages
	}
	if c.pair += n; c.pair == len(g.Pairs) {
		c.pair, c.plane = 0, c.plane+planes
		if c.plane == len(g.Planes) {
			c.group, c.plane = c.group+1, 0
		}
	}
	return k, uint64(at + n*device.PairBytes)
}

// describePlanes writes as many of planes as fit, and returns how many and what device.PieceBytes make of one page of them.
// The kernel itself cuts long planes into pieces.
func describePlanes(buf []byte, planes []mem.Plane) (n, units int) {
	for n < len(planes) && len(buf) >= device.PlaneDescBytes {
		pl := &planes[n]
		d := buf[:device.PlaneDescBytes]
		binary.LittleEndian.PutUint64(d[0:8], uint64(pl.Region.Dev())+uint64(pl.Base))
		binary.LittleEndian.PutUint64(d[8:16], uint64(pl.Stride))
		binary.LittleEndian.PutUint64(d[16:24], uint64(pl.Bytes))
		binary.LittleEndian.PutUint64(d[24:32], uint64(pl.SlotOff))
		buf = buf[device.PlaneDescBytes:]
		units += int(ceilDiv(pl.Bytes, device.PieceBytes))
		n++
	}
	return n, units
}

func describePairs(buf []byte, pairs []mem.PageSlot) {
	for i := range pairs {
		binary.LittleEndian.PutUint64(buf[:device.PairBytes], uint64(pairs[i].Page)|uint64(pairs[i].Slot)<<32)
		buf = buf[device.PairBytes:]
	}
}

// descriptorBytes returns how much ring the rest of the batch wants. listDescs is the list's total of descriptors.
func (c *cursor) descriptorBytes(listDescs int) uint64 {
	n := uint64(0)
	if c.i < len(c.batch.Dst) {
		n = align(uint64(listDescs-c.listed)*device.CopyDescBytes, tableAlign)
	}
	if c.batch.Paged == nil {
		return n
	}
	for i := c.group; i < len(c.batch.Paged.Groups); i++ {
		g := &c.batch.Paged.Groups[i]
		n += align(uint64(len(g.Planes))*device.PlaneDescBytes, tableAlign) + align(uint64(len(g.Pairs))*device.PairBytes, tableAlign)
	}
	return n
}

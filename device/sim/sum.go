package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// zeroSum is the sum of a leaf of zeros.
var zeroSum = xxh3.Hash(make([]byte, device.LeafBytes))

// sumZeros stores the sums of the leaves of a paged kernel that moves nothing, whose planes are x.planes.
func (x *executor) sumZeros(call string, planes []byte, a *device.PagedArgs) error {
	if len(x.planes) == 0 || a.NPairs == 0 {
		return nil
	}
	stride := device.ReadPlaneSums(planes).Stride
	leaves := uint64(0)
	for i := range x.planes {
		leaves += x.planes[i].Bytes / device.LeafBytes
	}
	if leaves == stride { // all of them
		words, err := x.array(call, a.Sums, a.NPairs*stride, 8)
		if err != nil {
			return fmt.Errorf("sums: %w", err)
		}
		for ; len(words) > 0; words = words[8:] {
			binary.LittleEndian.PutUint64(words, zeroSum)
		}
		return nil
	}
	for i := range x.planes {
		n, where := x.planes[i].Bytes/device.LeafBytes, device.ReadPlaneSums(planes[i*device.PlaneSumDescBytes:])
		for pair := range a.NPairs {
			words, err := x.array(call, a.Sums+mem.DevAddr(8*(pair*where.Stride+where.Off)), n, 8)
			if err != nil {
				return fmt.Errorf("sums: %w", err)
			}
			for l := range n {
				binary.LittleEndian.PutUint64(words[8*l:], zeroSum)
			}
		}
	}
	return nil
}

// copySummed moves one piece and stores the sums of its whole leaves from address sums on, where both sides are aligned.
func (x *executor) copySummed(call string, p piece, sums mem.DevAddr) error {
	if err := x.copy(call, p); err != nil {
		return err
	}
	for leaf := range p.n / device.LeafBytes {
		if err := x.sum(call, p, leaf, sums+mem.DevAddr(8*leaf)); err != nil {
			return err
		}
	}
	return nil
}

func runCopyListSum(x *executor, a *kernelArg) error {
	const call = device.KernelCopyListSum
	l := device.ListArgsOf(a)
	descs, err := x.array(call, l.Descs, l.Count, device.CopyDescBytes)
	if err != nil {
		return fmt.Errorf("read descriptors: %w", err)
	}
	for i := uint64(0); len(descs) > 0; i++ {
		p := desc(descs)
		if p.n == device.LeafBytes {
			err = x.copySummed(call, p, l.Sums+mem.DevAddr(8*i))
		} else {
			err = x.copy(call, p)
		}
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", i, err)
		}
		descs = descs[device.CopyDescBytes:]
	}
	return nil
}

func runCopyPagedSum(x *executor, a *kernelArg) error {
	const call = device.KernelCopyPagedSum
	p := device.PagedArgsOf(a)
	if err := checkDirection(call, p.Direction); err != nil {
		return err
	}
	planes, err := x.array(call, p.Planes, p.NPlanes, device.PlaneSumDescBytes)
	if err != nil {
		return fmt.Errorf("read planes: %w", err)
	}
	x.planes = x.planes[:0]
	for b := planes; len(b) > 0; b = b[device.PlaneSumDescBytes:] {
		x.planes = append(x.planes, device.ReadPlaneDesc(b))
	}
	pairs, err := x.array(call, p.Pairs, p.NPairs, device.PairBytes)
	if err != nil {
		return fmt.Errorf("read pairs: %w", err)
	}
	if x.still {
		return x.sumZeros(call, planes, &p)
	}
	for pair := uint64(0); len(pairs) > 0; pair++ {
		page, slot := device.ReadPair(pairs)
		for i := range x.planes {
			where := device.ReadPlaneSums(planes[i*device.PlaneSumDescBytes:])
			sums := p.Sums + mem.DevAddr(8*(pair*where.Stride+where.Off))
			if err := x.copySummed(call, pieceOf(&x.planes[i], &p, page, slot), sums); err != nil {
				return fmt.Errorf("page %d, slot %d, plane %d: %w", page, slot, i, err)
			}
		}
		pairs = pairs[device.PairBytes:]
	}
	return nil
}

// sum stores the sum of one leaf of p, as it was written, at that address. Only leaves that are whole and aligned have one.
func (x *executor) sum(call string, p piece, leaf uint64, at mem.DevAddr) error {
	if (leaf+1)*device.LeafBytes > p.n || (p.dst|p.src)%device.LeafAlign != 0 {
		return nil
	}
	word, err := x.view(call, at, 8)
	if err != nil {
		return fmt.Errorf("sum: %w", err)
	}
	if x.still {
		binary.LittleEndian.PutUint64(word, zeroSum)
		return nil
	}
	b, err := x.bytes(call, p.dst+mem.DevAddr(leaf*device.LeafBytes), device.LeafBytes, &x.lastDst)
	if err != nil {
		return fmt.Errorf("read leaf: %w", err)
	}
	binary.LittleEndian.PutUint64(word, xxh3.Hash(b))
	return nil
}

func resumList(x *executor, a *kernelArg, i, leaf uint64) error {
	p := listPiece(x, a, i)
	if p.n != device.LeafBytes {
		return nil
	}
	return x.sum(device.KernelCopyListSum, p, leaf, device.ListArgsOf(a).Sums+mem.DevAddr(8*i))
}

func resumPaged(x *executor, a *kernelArg, i, leaf uint64) error {
	const call = device.KernelCopyPagedSum
	p := device.PagedArgsOf(a)
	b, err := x.view(call, p.Planes+mem.DevAddr(i%p.NPlanes*device.PlaneSumDescBytes), device.PlaneSumDescBytes)
	if err != nil {
		return err
	}
	where := device.ReadPlaneSums(b)
	return x.sum(call, pagedPiece(x, a, i), leaf, p.Sums+mem.DevAddr(8*(i/p.NPlanes*where.Stride+where.Off+leaf)))
}

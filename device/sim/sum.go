package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
)

// copySummed moves one piece and stores the sums of its whole leaves from address sums on, where both sides are aligned.
func (x *executor) copySummed(call string, p piece, sums uint64) error {
	if err := x.copy(call, p); err != nil {
		return err
	}
	for leaf := range p.n / device.LeafBytes {
		if err := x.sum(call, p, leaf, sums+8*leaf); err != nil {
			return err
		}
	}
	return nil
}

func runCopyListSum(x *executor, a *kernelArg) error {
	const call = device.KernelCopyListSum
	descs, err := x.array(call, a[0], a[1], device.CopyDescBytes)
	if err != nil {
		return fmt.Errorf("read descriptors: %w", err)
	}
	for i := uint64(0); len(descs) > 0; i++ {
		p := desc(descs)
		if p.n == device.LeafBytes {
			err = x.copySummed(call, p, a[2]+8*i)
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
	if err := checkDirection(call, a); err != nil {
		return err
	}
	planes, err := x.array(call, a[0], a[1], device.PlaneSumDescBytes)
	if err != nil {
		return fmt.Errorf("read planes: %w", err)
	}
	x.planes = x.planes[:0]
	for b := planes; len(b) > 0; b = b[device.PlaneSumDescBytes:] {
		x.planes = append(x.planes, planeOf(b))
	}
	pairs, err := x.array(call, a[2], a[3], device.PairBytes)
	if err != nil {
		return fmt.Errorf("read pairs: %w", err)
	}
	for pair := uint64(0); len(pairs) > 0; pair++ {
		page, slot := u32(pairs), u32(pairs[4:])
		for i := range x.planes {
			where := planes[i*device.PlaneSumDescBytes+device.PlaneDescBytes:]
			sums := a[7] + 8*(pair*u64(where[8:])+u64(where))
			if err := x.copySummed(call, x.planes[i].piece(a, page, slot), sums); err != nil {
				return fmt.Errorf("page %d, slot %d, plane %d: %w", page, slot, i, err)
			}
		}
		pairs = pairs[device.PairBytes:]
	}
	return nil
}

// sum stores the sum of one leaf of p, as it was written, at that address. Only leaves that are whole and aligned have one.
func (x *executor) sum(call string, p piece, leaf, at uint64) error {
	if (leaf+1)*device.LeafBytes > p.n || (p.dst|p.src)%device.LeafAlign != 0 {
		return nil
	}
	b, err := x.bytes(call, p.dst+leaf*device.LeafBytes, device.LeafBytes, &x.lastDst)
	if err != nil {
		return fmt.Errorf("read leaf: %w", err)
	}
	word, err := x.view(call, at, 8)
	if err != nil {
		return fmt.Errorf("sum: %w", err)
	}
	binary.LittleEndian.PutUint64(word, xxh3.Hash(b))
	return nil
}

func resumList(x *executor, a *kernelArg, i, leaf uint64) error {
	p := listPiece(x, a, i)
	if p.n != device.LeafBytes {
		return nil
	}
	return x.sum(device.KernelCopyListSum, p, leaf, a[2]+8*i)
}

func resumPaged(x *executor, a *kernelArg, i, leaf uint64) error {
	const call = device.KernelCopyPagedSum
	where, err := x.view(call, a[0]+i%a[1]*device.PlaneSumDescBytes+device.PlaneDescBytes, 16)
	if err != nil {
		return err
	}
	return x.sum(call, pagedPiece(x, a, i), leaf, a[7]+8*(i/a[1]*u64(where[8:])+u64(where)+leaf))
}

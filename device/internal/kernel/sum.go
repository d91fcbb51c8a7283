package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// zeroSum is the sum of a leaf of zeros.
var zeroSum = xxh3.Hash(make([]byte, device.LeafBytes))

// sumZeros stores the sums of the leaves of a paged kernel that moves nothing. m.planes holds its
// planes.
func (m *Machine) sumZeros(call string, planes []byte, a *device.PagedArgs) error {
	if len(m.planes) == 0 || a.NPairs == 0 {
		return nil
	}
	stride := device.ReadPlaneSums(planes).Stride
	leaves := uint64(0)
	for i := range m.planes {
		leaves += m.planes[i].Bytes / device.LeafBytes
	}
	if leaves == stride { // contiguous words
		words, err := m.array(call, a.Sums, a.NPairs*stride, 8)
		if err != nil {
			return fmt.Errorf("sums: %w", err)
		}
		for ; len(words) > 0; words = words[8:] {
			binary.LittleEndian.PutUint64(words, zeroSum)
		}
		return nil
	}
	for i := range m.planes {
		n, where := m.planes[i].Bytes/device.LeafBytes, device.ReadPlaneSums(planes[i*device.PlaneSumDescBytes:])
		for pair := range a.NPairs {
			words, err := m.array(call, a.Sums+mem.DevAddr(8*(pair*where.Stride+where.Off)), n, 8)
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

// copySummed moves one piece and stores the sums of its whole leaves from address sums on, if both
// sides are aligned. It copies leaf by leaf, so that each leaf is still in the CPU's cache when it
// is summed.
func (m *Machine) copySummed(call string, p Piece, sums mem.DevAddr) error {
	if (p.Dst|p.Src)%device.LeafAlign != 0 {
		return m.copy(call, p)
	}
	words, err := m.array(call, sums, p.N/device.LeafBytes, 8)
	if err != nil {
		return fmt.Errorf("sums: %w", err)
	}
	for ; len(words) > 0; words = words[8:] {
		leaf := Piece{Dst: p.Dst, Src: p.Src, N: device.LeafBytes}
		if err := m.copy(call, leaf); err != nil {
			return err
		}
		sum, err := m.leafSum(call, leaf.Dst)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(words, sum)
		p = Piece{Dst: p.Dst + device.LeafBytes, Src: p.Src + device.LeafBytes, N: p.N - device.LeafBytes}
	}
	return m.copy(call, p)
}

// leafSum returns the sum of the leaf at addr.
func (m *Machine) leafSum(call string, addr mem.DevAddr) (uint64, error) {
	if m.Still {
		return zeroSum, nil
	}
	b, err := m.Memory.Bytes(call, addr, device.LeafBytes)
	if err != nil {
		return 0, fmt.Errorf("read leaf: %w", err)
	}
	return xxh3.Hash(b), nil
}

func runCopyListSum(m *Machine, a *Args) error {
	const call = device.KernelCopyListSum
	sums := device.ListArgsOf(a).Sums
	return m.eachPiece(call, a, func(m *Machine, i uint64, p Piece) error {
		if p.N != device.LeafBytes {
			return m.copy(call, p)
		}
		return m.copySummed(call, p, sums+mem.DevAddr(8*i))
	})
}

func runCopyPagedSum(m *Machine, a *Args) error {
	const call = device.KernelCopyPagedSum
	p := device.PagedArgsOf(a)
	if err := checkDirection(call, p.Direction); err != nil {
		return err
	}
	planes, err := m.array(call, p.Planes, p.NPlanes, device.PlaneSumDescBytes)
	if err != nil {
		return fmt.Errorf("read planes: %w", err)
	}
	if m.Still {
		if _, err := m.prepare(call, p.Planes, p.NPlanes, device.PlaneSumDescBytes, p.Pairs, p.NPairs); err != nil {
			return err
		}
		return m.sumZeros(call, planes, &p)
	}
	return m.copyPlanesSummed(call, a, planes, p.Sums)
}

// copyPlanesSummed copies the planes with the given descriptors, and stores the sums of their
// leaves.
func (m *Machine) copyPlanesSummed(call string, a *Args, planes []byte, sums mem.DevAddr) error {
	return m.eachPlane(call, a, device.PlaneSumDescBytes, func(m *Machine, piece Piece, pair, plane uint64) error {
		where := device.ReadPlaneSums(planes[plane*device.PlaneSumDescBytes:])
		return m.copySummed(call, piece, sums+mem.DevAddr(8*(pair*where.Stride+where.Off)))
	})
}

// sum stores the sum of one leaf of p, as written, at address at. Only whole, aligned leaves have a
// sum.
func (m *Machine) sum(call string, p Piece, leaf uint64, at mem.DevAddr) error {
	if (leaf+1)*device.LeafBytes > p.N || (p.Dst|p.Src)%device.LeafAlign != 0 {
		return nil
	}
	word, err := m.View(call, at, 8)
	if err != nil {
		return fmt.Errorf("sum: %w", err)
	}
	sum, err := m.leafSum(call, p.Dst+mem.DevAddr(leaf*device.LeafBytes))
	if err == nil {
		binary.LittleEndian.PutUint64(word, sum)
	}
	return err
}

func resumList(m *Machine, a *Args, i, leaf uint64) error {
	p := listPiece(m, a, i)
	if p.N != device.LeafBytes {
		return nil
	}
	return m.sum(device.KernelCopyListSum, p, leaf, device.ListArgsOf(a).Sums+mem.DevAddr(8*i))
}

func resumPaged(m *Machine, a *Args, i, leaf uint64) error {
	const call = device.KernelCopyPagedSum
	p := device.PagedArgsOf(a)
	b, err := m.View(call, p.Planes+mem.DevAddr(i%p.NPlanes*device.PlaneSumDescBytes), device.PlaneSumDescBytes)
	if err != nil {
		return err
	}
	where := device.ReadPlaneSums(b)
	return m.sum(call, pagedPiece(m, a, i), leaf, p.Sums+mem.DevAddr(8*(i/p.NPlanes*where.Stride+where.Off+leaf)))
}

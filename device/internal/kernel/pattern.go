package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// planeShift separates the pattern words of one plane from those of the next.
const planeShift = 40

func runPatternFill(m *Machine, a *Args) error {
	return m.eachPage(device.KernelPatternFill, a, func(page []byte, seed uint64, _ uint32) error {
		fillPattern(page, seed)
		return nil
	})
}

func runPatternCheck(m *Machine, a *Args) error {
	const call = device.KernelPatternCheck
	return m.eachPage(call, a, func(page []byte, seed uint64, index uint32) error {
		counter, err := m.View(call, device.PatternArgsOf(a).Counts+mem.DevAddr(index)*8, 8)
		if err != nil {
			return fmt.Errorf("counter: %w", err)
		}
		binary.LittleEndian.PutUint64(counter, u64(counter)+mismatchedBytes(page, seed))
		return nil
	})
}

// eachPage calls f with every plane of every page of the kernel, and the plane's seed.
func (m *Machine) eachPage(call string, a *Args, f func(page []byte, seed uint64, index uint32) error) error {
	p := device.PatternArgsOf(a)
	pairs, err := m.prepare(call, p.Planes, p.NPlanes, device.PlaneDescBytes, p.Pairs, p.NPairs)
	if err != nil {
		return err
	}
	for ; len(pairs) > 0; pairs = pairs[device.PairBytes:] {
		page, index := device.ReadPair(pairs)
		seed, err := m.View(call, p.Seeds+mem.DevAddr(index)*8, 8)
		if err != nil {
			return fmt.Errorf("seed %d: %w", index, err)
		}
		for i := range m.planes {
			pl := &m.planes[i]
			if pl.Bytes == 0 {
				continue
			}
			b, err := m.Memory.Bytes(call, pageOf(pl, page), pl.Bytes)
			if err == nil {
				err = f(b, u64(seed)+uint64(i)<<planeShift, index)
			}
			if err != nil {
				return fmt.Errorf("page %d, plane %d: %w", page, i, err)
			}
		}
	}
	return nil
}

func fillPattern(b []byte, seed uint64) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, device.Mix64(seed))
		seed++
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], device.Mix64(seed))
		copy(b, last[:])
	}
}

func mismatchedBytes(b []byte, seed uint64) (mismatched uint64) {
	for len(b) > 0 {
		want := device.Mix64(seed)
		seed++
		if len(b) >= 8 && u64(b) == want {
			b = b[8:]
			continue
		}
		n := min(len(b), 8)
		for _, v := range b[:n] {
			if v != byte(want) {
				mismatched++
			}
			want >>= 8
		}
		b = b[n:]
	}
	return mismatched
}

func patternPiece(m *Machine, a *Args, i uint64) Piece {
	p := device.PatternArgsOf(a)
	page, _, pl := m.pair(p.Pairs, p.NPlanes, i)
	if pl == nil {
		return Piece{}
	}
	return Piece{Dst: pageOf(pl, page), N: pl.Bytes}
}

func counterPiece(m *Machine, a *Args, i uint64) Piece {
	p := device.PatternArgsOf(a)
	b, err := m.View(device.KernelPatternCheck, p.Pairs+mem.DevAddr(i*device.PairBytes), device.PairBytes)
	if err != nil {
		return Piece{}
	}
	_, index := device.ReadPair(b)
	return Piece{Dst: p.Counts + mem.DevAddr(index)*8, N: 8}
}

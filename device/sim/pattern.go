package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// planeShift keeps the words of one plane's pattern apart from the next plane's.
const planeShift = 40

func runPatternFill(x *executor, a *kernelArg) error {
	return x.eachPage(device.KernelPatternFill, a, func(page []byte, seed uint64, _ uint32) error {
		fillPattern(page, seed)
		return nil
	})
}

func runPatternCheck(x *executor, a *kernelArg) error {
	const call = device.KernelPatternCheck
	return x.eachPage(call, a, func(page []byte, seed uint64, index uint32) error {
		counter, err := x.view(call, device.PatternArgsOf(a).Counts+mem.DevAddr(index)*8, 8)
		if err != nil {
			return fmt.Errorf("counter: %w", err)
		}
		binary.LittleEndian.PutUint64(counter, u64(counter)+wrongBytes(page, seed))
		return nil
	})
}

// eachPage calls f with every plane of every page that the kernel names, and the plane's seed.
func (x *executor) eachPage(call string, a *kernelArg, f func(page []byte, seed uint64, index uint32) error) error {
	p := device.PatternArgsOf(a)
	pairs, err := x.prepare(call, p.Planes, p.NPlanes, p.Pairs, p.NPairs)
	if err != nil {
		return err
	}
	for ; len(pairs) > 0; pairs = pairs[device.PairBytes:] {
		page, index := device.ReadPair(pairs)
		seed, err := x.view(call, p.Seeds+mem.DevAddr(index)*8, 8)
		if err != nil {
			return fmt.Errorf("seed %d: %w", index, err)
		}
		for i := range x.planes {
			pl := &x.planes[i]
			if pl.Bytes == 0 {
				continue
			}
			b, err := x.bytes(call, pageOf(pl, page), pl.Bytes, &x.lastDst)
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

func wrongBytes(b []byte, seed uint64) (wrong uint64) {
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
				wrong++
			}
			want >>= 8
		}
		b = b[n:]
	}
	return wrong
}

func patternPiece(x *executor, a *kernelArg, i uint64) piece {
	p := device.PatternArgsOf(a)
	page, _, pl := x.pair(p.Pairs, p.NPlanes, i)
	if pl == nil {
		return piece{}
	}
	return piece{dst: pageOf(pl, page), n: pl.Bytes}
}

func counterPiece(x *executor, a *kernelArg, i uint64) piece {
	p := device.PatternArgsOf(a)
	b, err := x.view(device.KernelPatternCheck, p.Pairs+mem.DevAddr(i*device.PairBytes), device.PairBytes)
	if err != nil {
		return piece{}
	}
	_, index := device.ReadPair(b)
	return piece{dst: p.Counts + mem.DevAddr(index)*8, n: 8}
}

package kvcache

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
)

// Two families of seeds that share no member in practice: the content of a block, and the poison of a page.
const (
	contentSalt = 0x6b766c616e65_0001
	poisonSalt  = 0x6b766c616e65_0002
)

// ContentSeed returns the seed of the pattern that the block with this hash id holds.
func ContentSeed(hashID int64) uint64 {
	return device.Mix64(uint64(hashID) ^ device.Mix64(contentSalt))
}

// PoisonSeed returns the seed of the nth poison; no two allocations of a page have the same.
func PoisonSeed(n uint64) uint64 { return device.Mix64(n ^ device.Mix64(poisonSalt)) }

// planeSeed returns the seed with which a kernel that counts planes from zero writes what plane first+p of seed holds.
func planeSeed(seed uint64, first int) uint64 { return seed + uint64(first)<<40 }

// pattern writes into b what plane p of the pattern holds from its start on, as device.KernelPatternFill defines it.
func pattern(b []byte, seed uint64, plane int) {
	base := planeSeed(seed, plane)
	var word [8]byte
	for o := 0; o < len(b); o += 8 {
		if len(b)-o >= 8 {
			binary.LittleEndian.PutUint64(b[o:], device.Mix64(base+uint64(o/8)))
			continue
		}
		binary.LittleEndian.PutUint64(word[:], device.Mix64(base+uint64(o/8)))
		copy(b[o:], word[:])
	}
}

// wrongBytes counts the bytes of b that differ from the pattern and returns the offset of the first, or -1.
func wrongBytes(b []byte, seed uint64, plane int) (wrong int64, first int64) {
	base := planeSeed(seed, plane)
	first = -1
	var want [8]byte
	for o := 0; o < len(b); o += 8 {
		binary.LittleEndian.PutUint64(want[:], device.Mix64(base+uint64(o/8)))
		for i := o; i < min(o+8, len(b)); i++ {
			if b[i] != want[i-o] {
				wrong++
				if first < 0 {
					first = int64(i)
				}
			}
		}
	}
	return wrong, first
}

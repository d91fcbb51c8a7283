package kvcache

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
)

// contentSalt and poisonSalt make the seeds of contents and of poison patterns different.
const (
	contentSalt = 0x6b766c616e65_0001
	poisonSalt  = 0x6b766c616e65_0002
)

// ContentSeed returns the seed of the pattern for the block with a hash ID.
func ContentSeed(hashID int64) uint64 {
	return device.Mix64(uint64(hashID) ^ device.Mix64(contentSalt))
}

// PoisonSeed returns the seed of the nth poison pattern.
func PoisonSeed(n uint64) uint64 { return device.Mix64(n ^ device.Mix64(poisonSalt)) }

// planeSeed returns the seed with which a kernel that counts planes from 0 writes plane first+p of
// the pattern to plane p.
func planeSeed(seed uint64, first int) uint64 { return seed + uint64(first)<<40 }

// pattern fills b with the start of a plane of the pattern, as defined by device.KernelPatternFill.
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

// mismatchedBytes returns the number of bytes of b that differ from the pattern, and the offset of
// the first one or -1.
func mismatchedBytes(b []byte, seed uint64, plane int) (mismatched int64, first int64) {
	base := planeSeed(seed, plane)
	first = -1
	var want [8]byte
	for o := 0; o < len(b); o += 8 {
		binary.LittleEndian.PutUint64(want[:], device.Mix64(base+uint64(o/8)))
		for i := o; i < min(o+8, len(b)); i++ {
			if b[i] != want[i-o] {
				mismatched++
				if first < 0 {
					first = int64(i)
				}
			}
		}
	}
	return mismatched, first
}

package mem_test

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/mem"
)

// entry24 is a Buffer without the device address.
type entry24 struct {
	addr     mem.CPUAddr
	len, key uint32
	slot, _  uint32
}

// BenchmarkSubBatch copies and reads the scatter-gather lists of sub-batches, with entries of 24
// bytes and with a device address of 8 more bytes. It also lends, checks and releases their
// buffers.
func BenchmarkSubBatch(b *testing.B) {
	for _, n := range []int{2, 110, 256} {
		pool := (&bufferRig{kind: mem.KindHostPinned}).open(b, int64(n), 4160)
		lent := make([]mem.Buffer, n)
		narrow := make([]entry24, n)
		for i := range lent {
			lent[i] = lend(b, pool, 4160)
			narrow[i] = entry24{addr: lent[i].CPU, len: lent[i].Len, key: lent[i].Key, slot: lent[i].Index()}
		}
		var sum uint64
		b.Run(fmt.Sprintf("entries=%d/bytes=24", n), func(b *testing.B) {
			list := make([]entry24, 0, n)
			for b.Loop() {
				list = append(list[:0], narrow...)
				for i := range list {
					sum += uint64(list[i].addr) + uint64(list[i].len) + uint64(list[i].key) + uint64(list[i].slot)
				}
			}
		})
		b.Run(fmt.Sprintf("entries=%d/bytes=32", n), func(b *testing.B) {
			list := make([]mem.Buffer, 0, n)
			for b.Loop() {
				list = append(list[:0], lent...)
				for i := range list {
					sum += uint64(list[i].Dev) + uint64(list[i].Len) + uint64(list[i].Key) + uint64(list[i].Index())
				}
			}
		})
		b.Run(fmt.Sprintf("entries=%d/lend", n), func(b *testing.B) {
			for _, x := range lent {
				if err := pool.Release(x); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				for i := range lent {
					lent[i] = lend(b, pool, 4160)
					if err := lent[i].CheckReady(); err != nil {
						b.Fatal(err)
					}
				}
				for i := range lent {
					if err := pool.Release(lent[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		closeBuffers(b, pool)
		_ = sum
	}
}

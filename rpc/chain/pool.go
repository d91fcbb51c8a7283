package chain

import (
	"math/bits"
	"sync"
)

// Blocks of Get have the length of a class: powers of two from minPooled to maxPooled bytes.
const (
	minPooled = 4 << 10
	maxPooled = MaxBytes
)

// MaxBytes is the length of the longest block of Get.
const MaxBytes = 4 << 20

var pools [11]sync.Pool // pools of *pooled, one for each class

// pooled is a block with its memory, reused by Get.
type pooled struct {
	Block
	memory []byte
}

// Get returns a block of host memory of at least min(n, MaxBytes) bytes. The memory is not cleared.
// Release makes it available to later calls. A block that is not released is garbage collected.
func Get(n int) *Block {
	class := bits.Len(uint(min(max(n, minPooled), maxPooled)-1)) - bits.Len(uint(minPooled-1))
	p, _ := pools[class].Get().(*pooled)
	if p == nil {
		p = &pooled{memory: make([]byte, minPooled<<class)}
		p.bytes = p.memory
		p.free = func() { pools[class].Put(p) }
	}
	p.refs.Store(1)
	return &p.Block
}

// Memory returns the bytes of a block of host or pinned memory, for its owner to fill before other
// code reads them. It returns nil for device memory.
func (b *Block) Memory() []byte { return b.bytes }

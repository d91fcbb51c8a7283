package file

import (
	"encoding/binary"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// proofs remembers files that this process has verified, by writing or reading them, and whether it
// has synced them. Inode and time identify a file. It is a table of fixed size: a key may displace
// another, whose file is then verified again.
type proofs struct {
	mu    sync.Mutex
	table []proof
}

type proof struct {
	key    uint64
	file   uint64
	synced bool
}

// proofCount is the number of slots, a power of two. The table has 1.5 MiB. It covers 16 GiB of
// blocks of 256 KiB.
const proofCount = 1 << 16

func (p *proofs) init() { p.table = make([]proof, proofCount) }

func (p *proofs) slot(key block.Key) (*proof, uint64) {
	return &p.table[binary.LittleEndian.Uint32(key[8:])%proofCount], binary.LittleEndian.Uint64(key[16:])
}

// fileOf returns a hash that distinguishes files that have had the same name.
func fileOf(info dirfs.Info) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], info.Inode)
	binary.LittleEndian.PutUint64(b[8:], uint64(info.Modified.UnixNano()))
	return xxh3.Hash(b[:])
}

// add records that the file is sound.
func (p *proofs) add(key block.Key, info dirfs.Info, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	f := fileOf(info)
	if e.key == tag && e.file == f {
		synced = synced || e.synced
	}
	*e = proof{key: tag, file: f, synced: synced}
}

// has reports whether the file is known to be sound, and to be durable.
func (p *proofs) has(key block.Key, info dirfs.Info) (whole, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	if e.key != tag || e.file != fileOf(info) {
		return false, false
	}
	return true, e.synced
}

// drop forgets the block's file.
func (p *proofs) drop(key block.Key) { p.take(key) }

// take is drop. It reports whether the file was known.
func (p *proofs) take(key block.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	if e.key != tag {
		return false
	}
	*e = proof{}
	return true
}

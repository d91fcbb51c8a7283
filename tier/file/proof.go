package file

import (
	"encoding/binary"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// proofs remembers of which files this process has itself seen that they are whole, by writing or by reading them, and
// whether it has made them durable. A file is told by its inode and time, so that one in its place proves nothing. It is a
// table of fixed size in which a key may displace another's proof: then the file is looked at again.
type proofs struct {
	mu    sync.Mutex
	table []proof
}

type proof struct {
	key    uint64
	file   uint64
	synced bool
}

// proofCount is the number of places of the table, a power of two: 1.5 MiB, for 16 GiB of blocks of 256 KiB.
const proofCount = 1 << 16

func (p *proofs) init() { p.table = make([]proof, proofCount) }

func (p *proofs) at(key block.Key) (*proof, uint64) {
	return &p.table[binary.LittleEndian.Uint32(key[8:])%proofCount], binary.LittleEndian.Uint64(key[16:])
}

// fileOf tells a file from others that had or get its name.
func fileOf(info dirfs.Info) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], info.Inode)
	binary.LittleEndian.PutUint64(b[8:], uint64(info.Modified.UnixNano()))
	return xxh3.Hash(b[:])
}

// add notes that the file is the whole block.
func (p *proofs) add(key block.Key, info dirfs.Info, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.at(key)
	f := fileOf(info)
	if e.key == tag && e.file == f {
		synced = synced || e.synced
	}
	*e = proof{key: tag, file: f, synced: synced}
}

// has says whether the file is known to be the whole block, and to be durable.
func (p *proofs) has(key block.Key, info dirfs.Info) (whole, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.at(key)
	if e.key != tag || e.file != fileOf(info) {
		return false, false
	}
	return true, e.synced
}

// drop forgets what was known of the block's file.
func (p *proofs) drop(key block.Key) { p.take(key) }

// take is drop, and reports whether anything was known.
func (p *proofs) take(key block.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.at(key)
	if e.key != tag {
		return false
	}
	*e = proof{}
	return true
}

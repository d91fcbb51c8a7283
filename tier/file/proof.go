package file

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// proofs records files that this process has verified, by writing or reading them, and whether it
// has synced them. Inode and modification time identify a file. The table has a fixed size: a key
// may displace another, whose file is then verified again.
type proofs struct {
	mu    sync.Mutex
	table []proof
}

type proof struct {
	key    uint64
	file   uint64
	before uint64 // same file before its last renewal, or 0
	synced bool
}

func (e *proof) knows(key, file uint64) bool {
	return e.key == key && (e.file == file || e.before == file)
}

// proofCount is the number of slots, a power of two. The table takes 2 MiB and covers 16 GiB of
// blocks of 256 KiB.
const proofCount = 1 << 16

func (p *proofs) init() { p.table = make([]proof, proofCount) }

func (p *proofs) slot(key block.Key) (*proof, uint64) {
	return &p.table[binary.LittleEndian.Uint32(key[8:])%proofCount], binary.LittleEndian.Uint64(key[16:])
}

// fileOf returns a hash that distinguishes different files with the same name.
func fileOf(info dirfs.Info) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], info.Inode)
	binary.LittleEndian.PutUint64(b[8:], uint64(info.Modified.UnixNano()))
	return xxh3.Hash(b[:])
}

// add records that the file is intact.
func (p *proofs) add(key block.Key, info dirfs.Info, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	if f := fileOf(info); !e.knows(tag, f) {
		*e = proof{key: tag, file: f, synced: synced}
	} else if synced {
		e.synced = true
	}
}

// has reports whether the file is known to be intact, and whether it is known to be durable.
func (p *proofs) has(key block.Key, info dirfs.Info) (whole, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	if !e.knows(tag, fileOf(info)) {
		return false, false
	}
	return true, e.synced
}

// renew records that the time of an intact file is about to change to when. Until the next renewal,
// has accepts the file with either time, because other goroutines may see both.
func (p *proofs) renew(key block.Key, info dirfs.Info, when time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, tag := p.slot(key)
	if f := fileOf(info); e.knows(tag, f) {
		info.Modified = when
		e.file, e.before = fileOf(info), f
	}
}

// drop forgets the block's file.
func (p *proofs) drop(key block.Key) { p.take(key) }

// take implements drop and reports whether the file was known.
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

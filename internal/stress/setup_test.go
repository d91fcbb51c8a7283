package stress

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/tier/file"
)

const (
	clients   = 32 // goroutines of a worker
	pagesEach = 16 // pages of each client
	maxBlocks = 8  // blocks of a request
	slots     = 48 // slots of the cache
	keySpace  = 2048

	writers = 4 // writers of the file tier

	// Limits of waits, and the extra time for slow machines.
	waitMax  = time.Second
	leaseMax = time.Second
	grace    = 2 * time.Minute
	// durableMax limits a dump that is not canceled. Each of its blocks may wait for a slot, and
	// its writes for earlier writes, each of which may wait for space in the lower tier.
	durableMax = (maxBlocks + slots/writers) * waitMax
)

// setup is the configuration of a round's workers. The parent passes it to them as JSON, with a
// seed for each.
type setup struct {
	Seed  uint64
	Model string // name of the model in the identity; empty: the default
	// User are the directories that a user would configure. Dirs are the folders named Folder in
	// them, which contain the blocks of this identity.
	User   []string
	Folder string
	Dirs   []string
	Leafy  bool  // planes are whole leaves, so that kernels compute their checksums
	Bytes  int64 // bound of the file tier; 0: no durable block may be lost
	Fsync  file.FsyncPolicy
	Alone  bool // one worker at a time, and no other process removes blocks, so that leased blocks stay
	// DeviceFaults and FileFaults enable faults. Corrupt also corrupts bytes of files of any block.
	DeviceFaults, FileFaults, Corrupt bool
}

func (s *setup) geometry() block.Geometry {
	g := block.Geometry{Model: "stress" + s.Model, Layers: 2, KVHeads: 1, HeadSize: 128, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	if !s.Leafy {
		g.BlockTokens = 8
	}
	return g
}

// shape is the format of blocks and the layout of their planes.
type shape struct {
	id     block.Identity
	layout *block.Layout
	planes int   // planes of each shard
	bytes  int64 // bytes of each plane
	keys   [keySpace]block.Key
	place  map[block.Key]int
}

func (s *setup) shape() (*shape, error) {
	g := s.geometry()
	layout, err := g.Layout()
	if err != nil {
		return nil, err
	}
	sh := &shape{id: g.Identity("", ""), layout: layout, planes: g.PlanesPerLayer(), bytes: g.PlaneBytes(), place: make(map[block.Key]int)}
	for n := range sh.keys {
		sh.keys[n] = sh.id.Key(binary.LittleEndian.AppendUint64(nil, uint64(n)))
		sh.place[sh.keys[n]] = n
	}
	return sh, nil
}

func (s *shape) format() block.Format { return block.Format{Layout: s.layout, Identity: s.id.Digest()} }

func (s *shape) blockBytes() int64 { return s.layout.DataBytes() }

// put writes the content of block n to b, plane by plane. It is the same in every process.
func (s *shape) put(b []byte, n int) {
	words := int(s.bytes / 8)
	for w := range len(b) / 8 {
		binary.LittleEndian.PutUint64(b[8*w:], device.Mix64(uint64(n)<<20|uint64(w/words)<<40|uint64(w%words)))
	}
}

// ghost blocks are never dumped.
func ghost(n int) bool { return n%16 == 15 }

// victim reports whether the parent may damage the files of block n. All other durable blocks must
// stay.
func victim(n int) bool { return n%16 < 4 }

// everything is a bound that no directory exceeds.
const everything = math.MaxInt64

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
	pagesEach = 16 // pages that a client has to itself
	maxBlocks = 8  // blocks of a request
	slots     = 48 // of the cache
	keySpace  = 2048

	writers = 4 // of blocks to the file tier

	// The bounds of waits, and what a slow machine may add to them.
	waitMax  = time.Second
	leaseMax = time.Second
	grace    = 2 * time.Minute
	// durableMax bounds a dump that nobody cancels: each of its blocks may wait for a slot, and its writes for those before
	// them, all of which may wait for room in the tier below.
	durableMax = (maxBlocks + slots/writers) * waitMax
)

// setup is what a round's workers have in common, and the seed of one. It travels as JSON.
type setup struct {
	Seed  uint64
	Model string // of another identity; empty: the first
	// User are the parents that a user would choose. The blocks of an identity lie in Dirs, a folder of that name in each.
	User   []string
	Folder string
	Dirs   []string
	Leafy  bool  // planes are whole leaves, which kernels sum
	Bytes  int64 // bound of the file tier; zero: nothing durable may be lost
	Fsync  file.FsyncPolicy
	Alone  bool // there is one worker at a time, and nobody else removes blocks: what is leased stays
	// DeviceFaults and FileFaults say what fails. Corrupt lets files go wrong on their way as well, of any block.
	DeviceFaults, FileFaults, Corrupt bool
}

func (s *setup) geometry() block.Geometry {
	g := block.Geometry{Model: "stress" + s.Model, Layers: 2, KVHeads: 1, HeadSize: 128, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	if !s.Leafy {
		g.BlockTokens = 8
	}
	return g
}

// shape is what blocks are, and where their bytes lie.
type shape struct {
	id     block.Identity
	layout *block.Layout
	planes int   // a shard
	bytes  int64 // a plane
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

// put writes what block n holds to b, plane by plane. It follows from n alone, in every process.
func (s *shape) put(b []byte, n int) {
	words := int(s.bytes / 8)
	for w := range len(b) / 8 {
		binary.LittleEndian.PutUint64(b[8*w:], device.Mix64(uint64(n)<<20|uint64(w/words)<<40|uint64(w%words)))
	}
}

// ghost blocks are never dumped.
func ghost(n int) bool { return n%16 == 15 }

// victim blocks are those whose files the parent harms: all other durable ones have to stay.
func victim(n int) bool { return n%16 < 4 }

// everything is what no directory is larger than.
const everything = math.MaxInt64

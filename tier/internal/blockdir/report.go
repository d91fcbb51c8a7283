package blockdir

import (
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Inspection is what a directory holds.
type Inspection struct {
	Marker Marker
	Held
	ByGroup     []Held // of each of Marker.Groups
	Temporary   int    // files being written, or left by processes that died
	Quarantined int
	// Of a log: its files, and their bytes.
	Segments     int
	SegmentBytes int64
}

// Held is blocks, and the bytes of their files, if each has the length that its layout says.
type Held struct{ Blocks, Bytes int64 }

// Entry is a block in a directory.
type Entry struct {
	Key      block.Key
	Bytes    int64     // of its file
	Modified time.Time // when it was written, or its hotness was last renewed
	Group    int       // of Marker.Groups, or -1 where the key is of none
	Shards   int       // as the group's layout says
}

// Collected says what GC did.
type Collected struct {
	Before, After int64 // bytes of blocks
	Removed       int64 // blocks
	Swept         int   // temporary files of processes that have died
	// Left says what could not be removed or looked at, and why: blocks, and temporary files of dead processes.
	Left error
}

// Problem is what is wrong with a file.
type Problem string

// The problems.
const (
	Damaged   Problem = "damaged"   // its kind, size, identity, key or a checksum is wrong
	Lost      Problem = "lost"      // the marker is not there
	Misplaced Problem = "misplaced" // a block in another folder than its key's
	Leftover  Problem = "leftover"  // a temporary file of a process that has died
	Foreign   Problem = "foreign"   // no file of a block directory
	Unjudged  Problem = "unjudged"  // it could not be looked at
	Newer     Problem = "newer"     // a block of another format version
)

// Finding is a file with a problem.
type Finding struct {
	Path    string
	Problem Problem
	Detail  string
	Key     block.Key // of a block; else zero
	MovedTo string    // where Repair moved the file, or the image; "" where it did not
	ByHand  bool      // a Foreign one that Clear leaves
}

// NoteByHand marks the foreign findings, below root, that are folders with something in them.
func NoteByHand(d dirfs.Dir, root string, found []Finding) {
	for i := range found {
		f := &found[i]
		if name, below := strings.CutPrefix(f.Path, root+"/"); below && f.Problem == Foreign {
			if in, err := d.ReadDir(name); err == nil && len(in) > 0 {
				f.ByHand = true
				f.Detail += ", a folder that is not empty"
			}
		}
	}
}

// Report is what Verify found.
type Report struct {
	// Marker is the directory's, or, where that is lost or damaged, what the blocks' headers agree on.
	Marker       Marker
	Blocks       int64 // that were checked, the damaged ones included
	Bytes        int64 // of them
	LiveSessions int   // of processes that have the directory open
	Quarantined  int   // files set aside earlier; not a finding: they are never read
	Findings     []Finding
	// Sums counts the sound blocks by the algorithm of their checksums. A directory may hold several.
	Sums map[block.SumAlgo]int64
}

// Clean says whether nothing was found.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

// Repaired says what Repair found and did.
type Repaired struct {
	Report          // of the directory as it is afterwards; Findings are those of before
	MarkerMade bool // from the blocks' headers; with another directory id, which matters where a tier has several directories
	SetAside   int  // damaged blocks, moved to quarantine
	Moved      int  // sound blocks that lay in another folder than their key's
	SweptFiles int  // temporary files of processes that have died
	Unrepaired []Finding
}

// Afterwards takes over what verifying the directory after the repair says.
func (r *Repaired) Afterwards(again Report) {
	before := r.Findings
	r.Report, r.Unrepaired = again, again.Findings
	r.Findings = before
}

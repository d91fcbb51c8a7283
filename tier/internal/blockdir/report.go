package blockdir

import (
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Inspection describes the contents of a directory.
type Inspection struct {
	Marker Marker
	Totals
	ByGroup     []Totals // in the order of Marker.Groups
	Pinned      Totals   // pinned blocks, which are stored
	Temporary   int      // files being written, or left by ended processes
	Quarantined int
	// the files of a log, and their bytes
	Segments     int
	SegmentBytes int64
}

// Totals counts blocks and the bytes of their files, as given by their layouts.
type Totals struct{ Blocks, Bytes int64 }

// Entry is a block in a directory.
type Entry struct {
	Key      block.Key
	Bytes    int64     // of its file
	Modified time.Time // time of the write, or of the last renewal by a use
	Group    int       // index into Marker.Groups, or -1 if the key belongs to no group
	Shards   int       // in the group's layout
	Pinned   bool      // neither evicted nor removed until it is unpinned
}

// Collected is the result of GC.
type Collected struct {
	Before, After int64 // bytes of blocks
	Removed       int64 // blocks
	Swept         int   // temporary files of ended processes
	// Left joins the errors of blocks and temporary files that could not be removed or examined.
	Left error
}

// Problem is a kind of finding.
type Problem string

// The kinds of findings.
const (
	Damaged   Problem = "damaged"   // kind, size, identity, key or a checksum is wrong
	Lost      Problem = "lost"      // the marker is missing
	Misplaced Problem = "misplaced" // a block in the folder of other keys
	Leftover  Problem = "leftover"  // a temporary file of an ended process
	Foreign   Problem = "foreign"   // not made by kvlane
	Unjudged  Problem = "unjudged"  // it could not be examined
	Newer     Problem = "newer"     // a block of another format version
)

// Finding is a file with a problem.
type Finding struct {
	Path    string
	Problem Problem
	Detail  string
	Key     block.Key // zero if the file is not a block
	MovedTo string    // new name given by Repair, or ""
	ByHand  bool      // a Foreign file that Clear does not remove
}

// NoteByHand sets ByHand in the foreign findings below root that are folders with contents, which
// Clear does not remove.
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

// Report is the result of Verify.
type Report struct {
	// Marker is the directory's marker. If that is lost or damaged, it is derived from the headers
	// of the blocks.
	Marker       Marker
	Blocks       int64 // number of checked blocks, including damaged ones
	Bytes        int64 // of the checked blocks
	LiveSessions int   // processes that have the directory open
	Quarantined  int   // quarantined files, which are not findings
	Findings     []Finding
	// Sums counts the intact blocks by checksum algorithm. A directory may have several algorithms.
	Sums map[block.SumAlgo]int64
}

// Add adds a finding about a file, named relative to the directory root. key is zero if the finding
// does not concern a single block.
func (r *Report) Add(root string, key block.Key, name string, p Problem, detail string) {
	path := root
	if name != "." {
		path += "/" + name
	}
	r.Findings = append(r.Findings, Finding{Path: path, Problem: p, Detail: detail, Key: key})
}

// Again returns progress for a second verification, which adds the totals of the first, or nil.
func (r *Report) Again(progress func(blocks, bytes int64)) func(blocks, bytes int64) {
	if progress == nil {
		return nil
	}
	first := Totals{Blocks: r.Blocks, Bytes: r.Bytes}
	return func(blocks, bytes int64) { progress(first.Blocks+blocks, first.Bytes+bytes) }
}

// Clean reports whether there are no findings.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

// Repaired is the result of Repair.
type Repaired struct {
	Report          // after the repair, except for Findings, which are from before it
	MarkerMade bool // the marker was derived from the headers, with a new directory id
	SetAside   int  // damaged blocks moved to quarantine
	Moved      int  // intact blocks moved to the folder of their key
	SweptFiles int  // temporary files of ended processes
	Unrepaired []Finding
}

// SetAfter replaces the report with the one after the repair, but keeps Findings.
func (r *Repaired) SetAfter(after Report) {
	before := r.Findings
	r.Report, r.Unrepaired = after, after.Findings
	r.Findings = before
}

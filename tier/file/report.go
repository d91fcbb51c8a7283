package file

import "github.com/kvlane/kvlane/tier/internal/blockdir"

// What is said of a directory and of what is wrong there.
type (
	// Marker is what a directory says about itself in kvlane.json.
	Marker = blockdir.Marker
	// Group is what a marker says of a page group's blocks.
	Group = blockdir.Group
	// Inspection is what a directory holds.
	Inspection = blockdir.Inspection
	// Held is blocks, and their bytes.
	Totals = blockdir.Totals
	// Entry is a block in a directory.
	Entry = blockdir.Entry
	// Collected says what GC did.
	Collected = blockdir.Collected
	// Problem is what is wrong with a file.
	Problem = blockdir.Problem
	// Finding is a file with a problem.
	Finding = blockdir.Finding
	// Report is what Verify found.
	Report = blockdir.Report
	// Repaired says what Repair found and did.
	Repaired = blockdir.Repaired
	// Unwanted selects what Clear removes.
	Unwanted = blockdir.Unwanted
	// Cleared says what Clear did.
	Cleared = blockdir.Cleared
)

// The problems.
const (
	Damaged   = blockdir.Damaged
	Lost      = blockdir.Lost
	Misplaced = blockdir.Misplaced
	Leftover  = blockdir.Leftover
	Foreign   = blockdir.Foreign
	Unjudged  = blockdir.Unjudged
	Newer     = blockdir.Newer
)

package file

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Types of reports about a directory.
type (
	// Marker is the content of kvlane.json.
	Marker = blockdir.Marker
	// Group describes the blocks of a page group.
	Group = blockdir.Group
	// Inspection describes the contents of a directory.
	Inspection = blockdir.Inspection
	// Totals counts blocks and their bytes.
	Totals = blockdir.Totals
	// Entry is a block in a directory.
	Entry = blockdir.Entry
	// Collected is the result of GC.
	Collected = blockdir.Collected
	// Problem is a kind of finding.
	Problem = blockdir.Problem
	// Finding is a file with a problem.
	Finding = blockdir.Finding
	// Report is the result of Verify.
	Report = blockdir.Report
	// Repaired is the result of Repair.
	Repaired = blockdir.Repaired
	// Unwanted selects files for Clear.
	Unwanted = blockdir.Unwanted
	// Cleared is the result of Clear.
	Cleared = blockdir.Cleared
)

// Problems.
const (
	Damaged   = blockdir.Damaged
	Lost      = blockdir.Lost
	Misplaced = blockdir.Misplaced
	Leftover  = blockdir.Leftover
	Foreign   = blockdir.Foreign
	Unjudged  = blockdir.Unjudged
	Newer     = blockdir.Newer
)

// PublicIdentity returns an identity as it is in markers, with a fingerprint of its salt.
func PublicIdentity(id block.Identity) block.Identity { return blockdir.PublicIdentity(id) }

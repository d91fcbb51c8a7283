package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
)

// errUnclean means that a verification has found problems.
var errUnclean = errors.New("the directory is not clean")

// dirFinding is a problem that "kvlane store verify" found.
type dirFinding struct {
	Path    string `json:"path"`
	Problem string `json:"problem"`
	Detail  string `json:"detail"`
	Key     string `json:"key,omitempty"` // key of the block
	// Done is the action of --repair for the file. MovedTo is the new path if the file was moved.
	Done    string `json:"done,omitempty"`
	MovedTo string `json:"moved_to,omitempty"`
	// ByHand means that "kvlane store gc" does not remove the file.
	ByHand bool `json:"by_hand,omitempty"`
}

// dirVerdict is the output of "kvlane store verify" for a directory.
type dirVerdict struct {
	Directory string `json:"directory"`
	Clean     bool   `json:"clean"`
	Blocks    int64  `json:"blocks"`
	Bytes     int64  `json:"bytes"`
	// Checksums counts the sound blocks by checksum algorithm.
	Checksums    map[string]int64 `json:"checksums"`
	Findings     []dirFinding     `json:"findings"`
	Quarantined  int              `json:"quarantined_files"` // including files moved by --repair
	LiveSessions int              `json:"live_sessions"`
	// Repaired is the result of --repair.
	Repaired *dirRepair `json:"repaired,omitempty"`
	// Next lists the next steps.
	Next []string `json:"next,omitempty"`
}

// dirRepair is the result of "kvlane store verify --repair".
type dirRepair struct {
	MarkerMade bool         `json:"marker_made"`
	SetAside   int          `json:"set_aside"`
	Moved      int          `json:"moved"`
	SweptFiles int          `json:"swept_files"`
	Left       []dirFinding `json:"left"`
}

func newStoreVerifyCommand() *cobra.Command {
	var asJSON, repair bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read and check every block; exit code 1 if problems are left",
		Long: `Read every block and check its length, identity, key and every checksum; look for foreign files
and for files left by dead processes. Files that cannot be read are listed as unjudged, and blocks of another format version as newer; both
stay. Nothing is changed, and a read-only mount is enough. A damaged block is a miss for its next reader, which removes it.

With --repair, damaged blocks are moved to the directory's quarantine, and misplaced ones to their folder. Files left by dead processes are
removed. A lost or damaged kvlane.json is made again from the blocks' headers if all of them agree. The report states each change and
the new place of each file, and counts the blocks after the repair. Foreign files stay. The exit code is 1 if problems are left.`,
		Example: `  kvlane store verify /var/cache/kvlane
  kvlane store verify --repair /var/cache/kvlane`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			bucket := accessOf(cmd)
			dirs, err := foldersOf(cmd.Context(), bucket, args[0])
			if err != nil {
				return err
			}
			return printFolders(cmd.Context(), cmd.OutOrStdout(), dirs, asJSON, func(dir string) (folderResult, error) {
				shown := newProgress(cmd.ErrOrStderr(), "verify "+dir, false)
				defer shown.end()
				v, err := verdict(cmd.Context(), bucket, dir, repair, shown)
				if err != nil {
					return folderResult{}, err
				}
				if !v.Clean {
					err = fmt.Errorf("verify %s: %w: %s", dir, errUnclean, countProblems(v.remaining()))
				}
				return folderResult{v, v.rows()}, err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonOfFolders)
	cmd.Flags().BoolVar(&repair, "repair", false, "move damaged files to the quarantine, and repair the rest")
	return cmd
}

// verdict verifies a directory. It repairs it if repair is true.
func verdict(ctx context.Context, b bucketAccess, dir string, repair bool, shown *progress) (*dirVerdict, error) {
	k := keeperOf(b, dir)
	all, err := k.inspect(ctx, dir)
	if err != nil {
		all.Blocks = 0 // unknown
	}
	if !repair {
		r, err := k.verify(ctx, dir, func(blocks, _ int64) { shown.show(blocks, all.Blocks, "") })
		if err != nil {
			return nil, err
		}
		v := newVerdict(dir, &r)
		v.Next = v.next()
		return v, nil
	}
	// A repair verifies the blocks before and after it.
	r, err := k.repair(ctx, dir, func(blocks, _ int64) { shown.show(blocks, 2*all.Blocks, "") })
	if err != nil {
		return nil, err
	}
	v := newVerdict(dir, &r.Report)
	v.Clean = len(r.Unrepaired) == 0
	v.Repaired = &dirRepair{
		MarkerMade: r.MarkerMade, SetAside: r.SetAside, Moved: r.Moved, SweptFiles: r.SweptFiles, Left: findings(r.Unrepaired),
	}
	for i := range v.Findings {
		f := &v.Findings[i]
		f.Done = v.done(f)
	}
	v.Next = v.next()
	return v, nil
}

// Actions of --repair for a file.
const (
	didSetAside = "set aside"
	didMove     = "moved to its folder"
	didRemove   = "removed"
	didMakeAnew = "made anew"
	didRepair   = "repaired"
	didLeave    = "left as it is"
)

// done returns the action of --repair for a finding.
func (v *dirVerdict) done(f *dirFinding) string {
	marker := filepath.Base(f.Path) == "kvlane.json"
	switch {
	case f.MovedTo != "" && filepath.Base(filepath.Dir(f.MovedTo)) == "quarantine":
		return didSetAside
	case f.MovedTo != "":
		return didMove
	case f.among(v.Repaired.Left):
		return didLeave
	case marker && v.Repaired.MarkerMade:
		return didMakeAnew
	case f.Problem == string(file.Leftover):
		return didRemove
	}
	return didRepair
}

// among reports whether all contains a finding with the same file, problem and key.
func (f *dirFinding) among(all []dirFinding) bool {
	return slices.ContainsFunc(all, func(o dirFinding) bool { return o.Path == f.Path && o.Problem == f.Problem && o.Key == f.Key })
}

// next returns the next steps for the remaining problems.
func (v *dirVerdict) next() (next []string) {
	count, byHand := map[file.Problem]int{}, 0
	for _, f := range v.remaining() {
		if f.ByHand {
			byHand++
		} else {
			count[file.Problem(f.Problem)]++
		}
	}
	dir := shellWord(v.Directory)
	if n := count[file.Foreign]; n > 0 {
		next = append(next, fmt.Sprintf("%s: if %s can go, kvlane store gc --foreign %s, or --remove FILE for one", counted(n, "foreign file", "foreign files"), plural(n, "it", "them"), dir))
	}
	delete(count, file.Foreign)
	if byHand > 0 {
		next = append(next, fmt.Sprintf("%s that kvlane store gc keeps: if %s can go, remove %[2]s by hand", counted(byHand, "foreign file", "foreign files"), plural(byHand, "it", "them")))
	}
	if n := count[file.Unjudged]; n > 0 {
		next = append(next, counted(n, "file", "files")+" could not be read: see the reason above, and verify again as a user with permission")
	}
	delete(count, file.Unjudged)
	if n := count[file.Newer]; n > 0 {
		next = append(next, counted(n, "file", "files")+" of another format version, unchanged: verify with the build that wrote "+plural(n, "it", "them"))
	}
	delete(count, file.Newer)
	if v.markerIsLost() {
		next = append(next, fmt.Sprintf("kvlane.json is damaged, and no block is left to rebuild it from: if the files are not needed, remove the directory: rm -r %s", dir))
		if count[file.Damaged]--; count[file.Damaged] == 0 {
			delete(count, file.Damaged)
		}
	}
	what := countProblemsOf(count)
	switch {
	case what == "":
	case v.Repaired == nil:
		next = append(next, fmt.Sprintf("%s: run kvlane store verify --repair %s", what, dir))
	default:
		next = append(next, what+" could not be repaired: see the reason above; the directory must be writable")
	}
	return append(next, inQuarantine(v.Directory, v.Quarantined)...)
}

// markerIsLost reports whether kvlane.json is damaged and there are no blocks from which it can be
// restored.
func (v *dirVerdict) markerIsLost() bool {
	damaged := false
	for _, f := range v.remaining() {
		switch p := file.Problem(f.Problem); {
		case p == file.Damaged && filepath.Base(f.Path) == "kvlane.json":
			damaged = true
		case p == file.Misplaced || p == file.Unjudged || p == file.Newer:
			return false // a block may remain
		}
	}
	return damaged && v.Blocks == 0
}

// countProblems returns a text with the number of findings for each problem.
func countProblems(found []dirFinding) string {
	count := map[file.Problem]int{}
	for _, f := range found {
		count[file.Problem(f.Problem)]++
	}
	return countProblemsOf(count)
}

func countProblemsOf(count map[file.Problem]int) string {
	var texts []string
	for _, p := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, counted(count[p], string(p)+" file", string(p)+" files"))
	}
	return strings.Join(texts, ", ")
}

func newVerdict(dir string, r *file.Report) *dirVerdict {
	v := &dirVerdict{
		Directory: dir, Clean: r.Clean(), Blocks: r.Blocks, Bytes: r.Bytes, Findings: findings(r.Findings),
		Quarantined: r.Quarantined, LiveSessions: r.LiveSessions, Checksums: map[string]int64{},
	}
	for algo, n := range r.Sums {
		v.Checksums[algo.String()] = n
	}
	return v
}

func findings(from []file.Finding) []dirFinding {
	out := []dirFinding{}
	for _, f := range from {
		found := dirFinding{Path: f.Path, Problem: string(f.Problem), Detail: f.Detail, MovedTo: f.MovedTo, ByHand: f.ByHand}
		if f.Key != (block.Key{}) {
			found.Key = f.Key.String()
		}
		out = append(out, found)
	}
	return out
}

// remaining returns the findings that remain after a repair, or all findings.
func (v *dirVerdict) remaining() []dirFinding {
	if v.Repaired != nil {
		return v.Repaired.Left
	}
	return v.Findings
}

func (v *dirVerdict) rows() [][2]string {
	verdict := [2]string{"clean", "every block is sound"}
	if !v.Clean {
		verdict = [2]string{"NOT clean", countProblems(v.remaining())}
	}
	rows := [][2]string{verdict, {"blocks", fmt.Sprintf("%d, %s", v.Blocks, present.Bytes(v.Bytes))}}
	for _, algo := range slices.Sorted(maps.Keys(v.Checksums)) {
		rows = append(rows, [2]string{"  " + algo, fmt.Sprint(v.Checksums[algo])})
	}
	rows = append(rows, [][2]string{
		{"quarantined files", fmt.Sprint(v.Quarantined)},
		{"processes using it", fmt.Sprint(v.LiveSessions)},
	}...)
	for _, f := range v.Findings {
		rows = append(rows, [2]string{f.Problem, f.Path + ": " + f.Detail})
		switch {
		case f.MovedTo != "":
			rows = append(rows, [2]string{"  " + f.Done, "to " + f.MovedTo})
		case f.Done == didMakeAnew:
			rows = append(rows, [2]string{"  " + f.Done, "from the blocks' headers"})
		case f.Done != "":
			rows = append(rows, [2]string{"  " + f.Done, filepath.Base(f.Path)})
		}
	}
	if r := v.Repaired; r != nil {
		rows = append(rows, [][2]string{
			{"set aside", fmt.Sprint(r.SetAside)},
			{"moved to their folder", fmt.Sprint(r.Moved)},
			{"files swept", fmt.Sprint(r.SweptFiles)},
		}...)
		for _, f := range r.Left {
			if f.among(v.Findings) {
				continue // already listed
			}
			rows = append(rows, [2]string{"left: " + f.Problem, f.Path + ": " + f.Detail})
		}
	}
	return append(rows, nextRows(v.Next)...)
}

// verifyDir returns the number of valid blocks in the directory and the number of findings.
func verifyDir(ctx context.Context, dir string) (sound, findings int64, err error) {
	r, err := keeperOf(bucketAccess{}, dir).verify(ctx, dir, nil)
	sound = r.Blocks
	for _, f := range r.Findings {
		if f.Problem == file.Damaged {
			sound--
		}
	}
	return sound, int64(len(r.Findings)), err
}

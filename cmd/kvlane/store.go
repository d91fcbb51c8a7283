package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// keeper is how blocks are kept in directories of a sort, as far as the commands below have to know.
type keeper struct {
	inspect func(ctx context.Context, dir string) (file.Inspection, error)
	list    func(ctx context.Context, dir string, yield func(file.Entry) error) error
	verify  func(ctx context.Context, dir string, progress func(blocks, bytes int64)) (file.Report, error)
	repair  func(ctx context.Context, dir string) (file.Repaired, error)
	gc      func(ctx context.Context, dir string, targetBytes int64) (file.Collected, error)
}

// keeperOf returns that of a directory. What is none is taken for one of files, which say what it lacks.
func keeperOf(dir string) keeper {
	if log.Recognises(dir) {
		return keeper{log.Inspect, log.List, log.Verify, log.Repair, log.GC}
	}
	return keeper{file.Inspect, file.List, file.Verify, file.Repair, file.GC}
}

// errUnclean is the error of a verification that found something.
var errUnclean = errors.New("the directory is not clean")

func newStoreCommand() *cobra.Command {
	cmd := newGroupCommand("store", "Look into the directories of a file or log tier, check them, make room in them",
		`The commands below work on a directory that "kvlane replay --file-dir" or a program with the library has made. What its
blocks are it says itself, in kvlane.json. Others may use the directory meanwhile, but that of a log, which belongs to one process,
for gc and verify --repair.`)
	cmd.AddCommand(newStoreListCommand(), newStoreStatCommand(), newStoreVerifyCommand(), newStoreGCCommand())
	for _, c := range cmd.Commands() {
		do := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error { return asUsage(do(cmd, args)) } // of DIR
	}
	return cmd
}

func newStoreListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls DIR",
		Short: "List the blocks, in the order of their keys",
		Example: `  kvlane store ls /var/cache/kvlane
  kvlane store ls /var/cache/kvlane --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listBlocks(cmd.Context(), cmd.OutOrStdout(), args[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func listBlocks(ctx context.Context, w io.Writer, dir string, asJSON bool) error {
	enc := json.NewEncoder(w)
	return keeperOf(dir).list(ctx, dir, func(e file.Entry) error {
		if !asJSON {
			_, err := fmt.Fprintf(w, "%s  %s  %d\n", e.Key, e.Modified.Format(time.RFC3339), e.Bytes)
			return err
		}
		return enc.Encode(struct {
			Key      string    `json:"key"`
			Bytes    int64     `json:"bytes"`
			Group    int       `json:"group"`
			Shards   int       `json:"shards"`
			Modified time.Time `json:"modified"`
		}{e.Key.String(), e.Bytes, e.Group, e.Shards, e.Modified})
	})
}

// dirStat is what "kvlane store stat" says of a directory.
type dirStat struct {
	Directory     string `json:"directory"`
	FormatVersion int    `json:"format_version"`
	*formatStat          // of the only page group
	heldStat
	Groups      []groupStat `json:"groups,omitempty"` // where there are several
	Temporary   int         `json:"temporary_files"`
	Quarantined int         `json:"quarantined_files"`
	// Of a log.
	Segments     int   `json:"segments,omitempty"`
	SegmentBytes int64 `json:"segment_bytes,omitempty"`
}

// formatStat is what the blocks of a page group are.
type formatStat struct {
	Digest     string          `json:"identity_digest"`
	Identity   *block.Identity `json:"identity,omitempty"`
	Shards     int             `json:"shards"`
	ImageBytes int64           `json:"image_bytes"`
}

type heldStat struct {
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
}

type groupStat struct {
	formatStat
	heldStat
}

func newStoreStatCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat DIR",
		Short: "Say whose blocks the directory holds, and how many",
		Example: `  kvlane store stat /var/cache/kvlane
  kvlane store stat /var/cache/kvlane --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := keeperOf(args[0]).inspect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s := statOf(args[0], &in)
			return printResult(cmd.OutOrStdout(), asJSON, s, s.rows())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func statOf(dir string, in *file.Inspection) dirStat {
	s := dirStat{
		Directory: dir, FormatVersion: in.Marker.Version, heldStat: heldStat(in.Held), Temporary: in.Temporary, Quarantined: in.Quarantined,
		Segments: in.Segments, SegmentBytes: in.SegmentBytes,
	}
	for i, g := range in.Marker.Groups {
		f := formatStat{Digest: g.Digest.String(), Identity: g.Identity, Shards: g.Layout.Shards(), ImageBytes: g.Layout.ImageBytes()}
		if len(in.Marker.Groups) == 1 {
			s.formatStat = &f
			break
		}
		s.Groups = append(s.Groups, groupStat{f, heldStat(in.ByGroup[i])})
	}
	return s
}

func (s *dirStat) rows() [][2]string {
	rows := [][2]string{{"directory", s.Directory}, {"format version", fmt.Sprint(s.FormatVersion)}}
	if s.formatStat != nil {
		rows = append(rows, s.formatStat.rows()...)
	}
	for i := range s.Groups {
		rows = append(append(rows, [2]string{"page group", fmt.Sprint(i)}), s.Groups[i].formatStat.rows()...)
		rows = append(rows, s.Groups[i].heldStat.rows()...)
	}
	if len(s.Groups) > 0 {
		rows = append(rows, [2]string{"all page groups", fmt.Sprint(len(s.Groups))})
	}
	rows = append(rows, s.heldStat.rows()...)
	if s.Segments > 0 {
		rows = append(rows, [2]string{"segments", fmt.Sprintf("%d, %s", s.Segments, replay.Size(s.SegmentBytes))})
	}
	return append(rows, [2]string{"temporary files", fmt.Sprint(s.Temporary)}, [2]string{"quarantined files", fmt.Sprint(s.Quarantined)})
}

func (s *heldStat) rows() [][2]string {
	return [][2]string{{"blocks", fmt.Sprint(s.Blocks)}, {"bytes", replay.Size(s.Bytes)}}
}

func (s *formatStat) rows() [][2]string {
	rows := [][2]string{{"identity", s.Digest}}
	if id := s.Identity; id != nil {
		if id.Group != "" {
			rows = append(rows, [2]string{"  page group", id.Group}, [2]string{"  its layers", id.Layers})
		}
		rows = append(rows,
			[2]string{"  model", id.Model}, [2]string{"  dtype", id.DType}, [2]string{"  layout", id.Layout},
			[2]string{"  layers", fmt.Sprintf("%d to %d", id.LayerFirst, id.LayerEnd-1)},
			[2]string{"  heads", fmt.Sprintf("%d to %d, of %d elements", id.HeadFirst, id.HeadEnd-1, id.HeadSize)},
			[2]string{"  tokens a block", fmt.Sprint(id.BlockTokens)})
		for _, o := range [][2]string{{"  revision", id.Revision}, {"  adapter", id.Adapter}, {"  salt", id.Salt}} {
			if o[1] != "" {
				rows = append(rows, o)
			}
		}
	}
	return append(rows, [2]string{"block", fmt.Sprintf("%s in %d shards", replay.Size(s.ImageBytes), s.Shards)})
}

// dirFinding is a file that "kvlane store verify" found wrong.
type dirFinding struct {
	Path    string `json:"path"`
	Problem string `json:"problem"`
	Detail  string `json:"detail"`
}

// dirVerdict is what "kvlane store verify" says of a directory.
type dirVerdict struct {
	Directory string `json:"directory"`
	Clean     bool   `json:"clean"`
	Blocks    int64  `json:"blocks"`
	Bytes     int64  `json:"bytes"`
	// Checksums counts the sound blocks by the algorithm of their checksums.
	Checksums    map[string]int64 `json:"checksums"`
	Findings     []dirFinding     `json:"findings"`
	Quarantined  int              `json:"quarantined_files"`
	LiveSessions int              `json:"live_sessions"`
	// Repaired says what was done about the findings, with --repair.
	Repaired *dirRepair `json:"repaired,omitempty"`
}

// dirRepair is what "kvlane store verify --repair" did.
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
		Short: "Read every block and check it; exit code 1 if anything is wrong",
		Long: `Read every block and check its length, identity, key and every checksum; look for files that do not belong there and
for what dead processes left. What cannot be looked at is listed as unjudged. Nothing is changed, and a read-only mount will do:
a damaged block is a miss for whoever loads it, who then removes it.

With --repair, damaged blocks are moved to the directory's quarantine, misplaced ones to their folder, what dead processes left is
removed, and a lost or damaged kvlane.json is made anew from the blocks' headers where all of them agree. What kvlane has not made
stays. The exit code is then 1 if anything wrong is left.`,
		Example: `  kvlane store verify /var/cache/kvlane
  kvlane store verify /var/cache/kvlane --repair`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := verdict(cmd.Context(), args[0], repair)
			if err != nil {
				return err
			}
			if err := printResult(cmd.OutOrStdout(), asJSON, v, v.rows()); err != nil {
				return err
			}
			if !v.Clean {
				return fmt.Errorf("verify %s: %w: %d files", args[0], errUnclean, v.wrong())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&repair, "repair", false, "set aside what is wrong, and mend what can be mended")
	return cmd
}

// verdict verifies the directory, and repairs it where asked to.
func verdict(ctx context.Context, dir string, repair bool) (*dirVerdict, error) {
	if !repair {
		r, err := keeperOf(dir).verify(ctx, dir, nil)
		if err != nil {
			return nil, err
		}
		return newVerdict(dir, &r), nil
	}
	r, err := keeperOf(dir).repair(ctx, dir)
	if err != nil {
		return nil, err
	}
	v := newVerdict(dir, &r.Report)
	v.Clean = len(r.Unrepaired) == 0
	v.Repaired = &dirRepair{
		MarkerMade: r.MarkerMade, SetAside: r.SetAside, Moved: r.Moved, SweptFiles: r.SweptFiles, Left: findings(r.Unrepaired),
	}
	return v, nil
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
		out = append(out, dirFinding{f.Path, string(f.Problem), f.Detail})
	}
	return out
}

// wrong is how many files are wrong now.
func (v *dirVerdict) wrong() int {
	if v.Repaired != nil {
		return len(v.Repaired.Left)
	}
	return len(v.Findings)
}

func (v *dirVerdict) rows() [][2]string {
	rows := [][2]string{
		{"blocks", fmt.Sprintf("%d, %s", v.Blocks, replay.Size(v.Bytes))},
	}
	for _, algo := range slices.Sorted(maps.Keys(v.Checksums)) {
		rows = append(rows, [2]string{"  " + algo, fmt.Sprint(v.Checksums[algo])})
	}
	rows = append(rows, [][2]string{
		{"quarantined files", fmt.Sprint(v.Quarantined)},
		{"processes using it", fmt.Sprint(v.LiveSessions)},
	}...)
	for _, f := range v.Findings {
		rows = append(rows, [2]string{f.Problem, f.Path + ": " + f.Detail})
	}
	if r := v.Repaired; r != nil {
		rows = append(rows, [][2]string{
			{"set aside", fmt.Sprint(r.SetAside)},
			{"moved to their folder", fmt.Sprint(r.Moved)},
			{"files swept", fmt.Sprint(r.SweptFiles)},
		}...)
		if r.MarkerMade {
			rows = append(rows, [2]string{"kvlane.json", "made anew from the blocks' headers"})
		}
		for _, f := range r.Left {
			rows = append(rows, [2]string{"left: " + f.Problem, f.Path + ": " + f.Detail})
		}
	}
	if v.Clean {
		rows = append(rows, [2]string{"clean", "every block is sound"})
	}
	return rows
}

// verifyDir returns how many blocks of the directory are sound, and how many files are not as they should be.
func verifyDir(ctx context.Context, dir string) (sound, wrong int64, err error) {
	r, err := keeperOf(dir).verify(ctx, dir, nil)
	sound = r.Blocks
	for _, f := range r.Findings {
		if f.Problem == file.Damaged {
			sound--
		}
	}
	return sound, int64(len(r.Findings)), err
}

// dirCollected is what "kvlane store gc" says it did.
type dirCollected struct {
	Directory   string `json:"directory"`
	BytesBefore int64  `json:"bytes_before"`
	BytesAfter  int64  `json:"bytes_after"`
	Removed     int64  `json:"removed_blocks"`
	Swept       int    `json:"swept_files"`
	// Left says what could not be removed or looked at.
	Left string `json:"left,omitempty"`
}

func newStoreGCCommand() *cobra.Command {
	var asJSON bool
	target := int64(-1)
	cmd := &cobra.Command{
		Use:   "gc DIR --max-bytes SIZE",
		Short: "Sweep what dead processes left, and remove the coldest blocks down to a size",
		Example: `  kvlane store gc /var/cache/kvlane --max-bytes 100GiB
  kvlane store gc /var/cache/kvlane --max-bytes 0 --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if target < 0 {
				return usagef("store gc needs --max-bytes: how much may be left, such as 10GiB")
			}
			c, err := keeperOf(args[0]).gc(cmd.Context(), args[0], target)
			if err != nil {
				return err
			}
			d := dirCollected{args[0], c.Before, c.After, c.Removed, c.Swept, ""}
			if c.Left != nil {
				d.Left = c.Left.Error()
			}
			err = printResult(cmd.OutOrStdout(), asJSON, d, [][2]string{
				{"before", replay.Size(d.BytesBefore)},
				{"after", replay.Size(d.BytesAfter)},
				{"blocks removed", fmt.Sprint(d.Removed)},
				{"files swept", fmt.Sprint(d.Swept)},
			})
			if err == nil && c.Left != nil {
				err = fmt.Errorf("collect %s: some of it stays: %w", args[0], c.Left)
			}
			return err
		},
	}
	cmd.Flags().Var(sizeValue{&target}, "max-bytes", "bytes of blocks that may be left")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// printResult writes v as one JSON object, or rows as a table for people.
func printResult(w io.Writer, asJSON bool, v any, rows [][2]string) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r[0], r[1])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

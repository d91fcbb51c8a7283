package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/object"
)

// dirCollected is the result of "kvlane store gc" for a directory. Parts that were not requested
// are absent.
type dirCollected struct {
	Directory string `json:"directory"`
	*collectedBlocks
	*clearedFiles
}

// collectedBlocks is the result of --max-bytes.
type collectedBlocks struct {
	BytesBefore int64 `json:"bytes_before"`
	BytesAfter  int64 `json:"bytes_after"`
	Removed     int64 `json:"removed_blocks"`
	Swept       int   `json:"swept_files"`
	// Left is the error for files that could not be removed or examined.
	Left string `json:"left,omitempty"`
	// PinnedBlocks and PinnedBytes are pinned, if more bytes than requested are left.
	PinnedBlocks int64 `json:"pinned_blocks,omitempty"`
	PinnedBytes  int64 `json:"pinned_bytes,omitempty"`
}

// clearedFiles is the result of --quarantine, --foreign and --remove.
type clearedFiles struct {
	Files     []string     `json:"removed_files"`
	FileBytes int64        `json:"removed_file_bytes"`
	FilesLeft []dirFinding `json:"left_files"`
	// Unasked are files in quarantine that kvlane has not put there. --quarantine does not remove
	// them.
	Unasked []string `json:"foreign_files,omitempty"`
}

func newStoreGCCommand() *cobra.Command {
	var asJSON bool
	var unwanted file.Unwanted
	var age time.Duration
	target := int64(-1)
	cmd := &cobra.Command{
		Use:   "gc DIR",
		Short: "Free space: remove the coldest blocks, files in quarantine, or files that are not kvlane's",
		Long: `Remove the given kinds of files, and nothing else:

  --max-bytes    the coldest blocks, until so many bytes of them are left, and files left by dead processes
  --quarantine   the files that were set aside, by a tier or by "kvlane store verify --repair"
  --foreign      the files that "kvlane store verify" finds foreign: kvlane has not made them; those in quarantine too
  --remove       one of either, by its name; repeatable

DIR may be the directory that a configuration names, with a folder for each identity: SIZE is then of all folders, and those that no
process has open give up blocks first, the one not used for the longest time before the others. A folder that cannot be read,
such as one without its kvlane.json, is passed over: the others are collected, and the exit code is 1.

In a log whole segments are removed, those with the least in them that is used first, and SIZE is of segments.

In a bucket whole runs of blocks are removed, those written longest ago first: a bucket has no times of reads. --max-age removes those older than a time.

A sound block stays wherever it lies, while its own place has none, unless --max-bytes makes it go; but a tier that has the
directory open keeps only the newest files in quarantine, 16 by default. Segments of another log, and folders that are not
empty, stay. The exit code is 1 if something could not be removed.`,
		Example: `  kvlane store gc /var/cache/kvlane --max-bytes 100GiB
  kvlane store gc /var/cache/kvlane --quarantine
  kvlane store gc /var/cache/kvlane --remove notes.txt`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			clears := unwanted.Quarantine || unwanted.Foreign || len(unwanted.Names) > 0
			if age > 0 && !object.IsURL(args[0]) {
				return usagef("store gc: --max-age is for buckets; directories have --max-bytes SIZE")
			}
			if target < 0 && age == 0 && !clears {
				return usagef("store gc: nothing selected: give --max-bytes SIZE, such as 10GiB, --quarantine, --foreign or --remove FILE; " +
					"kvlane store verify DIR lists the files")
			}
			bucket := accessOf(cmd)
			dirs, err := foldersOf(cmd.Context(), bucket, args[0])
			if err == nil && len(dirs) > 1 && len(unwanted.Names) > 0 {
				err = usagef("%s has several folders of blocks: give the folder of FILE, such as %s", args[0], dirs[0])
			}
			if err != nil {
				return err
			}
			var to targets
			switch {
			case target < 0 && age == 0:
			case target < 0 || len(dirs) == 1:
				to.bytes = make(map[string]int64)
				for _, d := range dirs {
					to.bytes[d] = target
				}
			default:
				to = targetsOf(cmd.Context(), bucket, dirs, target)
			}
			bucket.age = age
			return printFolders(cmd.Context(), cmd.OutOrStdout(), dirs, asJSON, func(dir string) (folderResult, error) {
				d := dirCollected{Directory: dir}
				shown := newProgress(cmd.ErrOrStderr(), "gc "+dir, false)
				shown.bytes = true
				defer shown.end()
				err := d.collect(cmd.Context(), bucket, to, clears, unwanted, shown)
				if d.collectedBlocks == nil && d.clearedFiles == nil {
					return folderResult{}, err
				}
				return folderResult{d, d.rows()}, err
			})
		},
	}
	cmd.Flags().Var(sizeValue{&target}, "max-bytes", "most bytes of blocks, or in a log of segments, to keep")
	cmd.Flags().DurationVar(&age, "max-age", 0, "in a bucket, remove runs of blocks that were last written longer ago, as 72h")
	cmd.Flags().BoolVar(&unwanted.Quarantine, "quarantine", false, "remove the files in quarantine")
	cmd.Flags().BoolVar(&unwanted.Foreign, "foreign", false, "remove the files that kvlane did not create")
	cmd.Flags().StringArrayVar(&unwanted.Names, "remove", nil, "remove this quarantined or foreign file, named as by verify or relative to DIR; repeatable")
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonOfFolders)
	return cmd
}

// collect removes the requested files and blocks and stores the result in d. The error describes
// the remaining files and blocks.
func (d *dirCollected) collect(ctx context.Context, b bucketAccess, to targets, clears bool, unwanted file.Unwanted, shown *progress) error {
	var left error
	if clears {
		c, err := keeperOf(b, d.Directory).clear(ctx, d.Directory, unwanted)
		if err == nil || len(c.Removed) > 0 {
			d.clearedFiles = &clearedFiles{Files: append([]string{}, c.Removed...), FileBytes: c.Bytes, FilesLeft: findings(c.Left), Unasked: c.Unasked}
		}
		if err != nil {
			return err
		}
		if n := len(c.Left); n > 0 {
			left = fmt.Errorf("clear %s: %s", d.Directory, counted(n, "file stays", "files stay"))
		}
	}
	if err := to.failed[d.Directory]; err != nil {
		return errors.Join(left, fmt.Errorf("skip %s: %w", d.Directory, err))
	}
	if target, ok := to.bytes[d.Directory]; ok {
		c, err := keeperOf(b, d.Directory).gc(ctx, d.Directory, target, func(done, total int64) { shown.show(done, total, "") })
		if err != nil {
			return errors.Join(left, err)
		}
		d.collectedBlocks = &collectedBlocks{BytesBefore: c.Before, BytesAfter: c.After, Removed: c.Removed, Swept: c.Swept}
		if target >= 0 && c.After > target {
			in, err := keeperOf(b, d.Directory).inspect(ctx, d.Directory)
			if err != nil {
				return errors.Join(left, err)
			}
			d.PinnedBlocks, d.PinnedBytes = in.Pinned.Blocks, in.Pinned.Bytes
		}
		if c.Left != nil {
			d.Left = c.Left.Error()
			left = errors.Join(left, fmt.Errorf("collect %s: not all could be removed: %w", d.Directory, c.Left))
		}
	}
	return left
}

// verdict returns the first row.
func (d *dirCollected) verdict() [2]string {
	var done []string
	left := 0
	if f := d.clearedFiles; f != nil {
		done, left = append(done, counted(len(f.Files), "file", "files")), len(f.FilesLeft)
	}
	if b := d.collectedBlocks; b != nil {
		done = append(done, counted(int(b.Removed), "block", "blocks"))
		if b.Left != "" {
			left++
		}
	}
	what := strings.Join(done, " and ") + " removed"
	if left > 0 {
		return [2]string{"incomplete", what + ", not all that was requested"}
	}
	return [2]string{"collected", what}
}

func (d *dirCollected) rows() (rows [][2]string) {
	rows = append(rows, d.verdict())
	if f := d.clearedFiles; f != nil {
		rows = append(rows, [2]string{"files removed", fmt.Sprintf("%d, %s", len(f.Files), present.Bytes(f.FileBytes))})
		for _, path := range f.Files {
			rows = append(rows, [2]string{"  removed", path})
		}
		for _, l := range f.FilesLeft {
			rows = append(rows, [2]string{"  left", l.Path + ": " + l.Detail})
		}
		for _, path := range f.Unasked {
			rows = append(rows, [2]string{"  stays", present.Name(path) + ": foreign; kvlane store gc --foreign " + shellWord(d.Directory) + " removes it"})
		}
	}
	if b := d.collectedBlocks; b != nil {
		rows = append(rows, [][2]string{
			{"before", present.Bytes(b.BytesBefore)},
			{"after", present.Bytes(b.BytesAfter)},
			{"blocks removed", fmt.Sprint(b.Removed)},
			{"files swept", fmt.Sprint(b.Swept)},
		}...)
		if b.PinnedBlocks > 0 {
			rows = append(rows, [2]string{"above SIZE", fmt.Sprintf("%s, %s, are pinned: kvlane store ls --pinned %s lists them",
				counted(int(b.PinnedBlocks), "block", "blocks"), present.Bytes(b.PinnedBytes), shellWord(d.Directory))})
		}
	}
	return rows
}

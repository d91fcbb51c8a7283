package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// eachFolder calls f for every directory of blocks that dir stands for, which may be the one that a configuration names: its folders
// then have an identity each. More than one are separated by an empty line, unless the output is JSON.
func eachFolder(ctx context.Context, w io.Writer, dir string, asJSON bool, f func(dir string, several bool) error) error {
	dirs, err := foldersOf(dir)
	if err != nil {
		return err
	}
	var errs []error
	for i, d := range dirs {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if i > 0 && !asJSON {
			fmt.Fprintln(w)
		}
		errs = append(errs, f(d, len(dirs) > 1))
	}
	return errors.Join(errs...)
}

func foldersOf(dir string) ([]string, error) {
	if log.Recognises(dir) {
		return []string{dir}, nil
	}
	return file.Folders(dir)
}

// folderUse is what a folder holds, and when it was last used.
type folderUse struct {
	dir   string
	bytes int64
	used  time.Time
	open  bool // a process has it open; of a log nothing is known
}

// targetsOf divides a size among folders: those that no process has open give up blocks first, the one not used for the longest time
// before the others, and then each of the others gives up as large a part of what it holds.
func targetsOf(ctx context.Context, dirs []string, target int64) (map[string]int64, error) {
	var all []folderUse
	var sum, kept int64
	for _, d := range dirs {
		in, err := keeperOf(d).inspect(ctx, d)
		if err != nil {
			return nil, err
		}
		u := folderUse{dir: d, bytes: in.Bytes, open: true}
		if log.Recognises(d) {
			u.bytes = in.SegmentBytes
		} else if u.used, u.open, err = file.LastUse(d); err != nil {
			return nil, err
		}
		all = append(all, u)
		sum += u.bytes
		if u.open {
			kept += u.bytes
		}
	}
	slices.SortStableFunc(all, func(a, b folderUse) int { return cmp.Compare(a.used.UnixNano(), b.used.UnixNano()) })
	out := make(map[string]int64)
	over := max(0, sum-target)
	for _, u := range all {
		if out[u.dir] = u.bytes; !u.open {
			out[u.dir] -= min(over, u.bytes)
			over -= min(over, u.bytes)
		}
	}
	for _, u := range all {
		if u.open && over > 0 {
			out[u.dir] = int64(float64(u.bytes) * (1 - float64(over)/float64(kept)))
		}
	}
	return out, nil
}

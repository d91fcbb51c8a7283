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
	"github.com/kvlane/kvlane/tier/object"
)

// eachFolder calls f for every directory of blocks. several reports whether there is more than one.
func eachFolder(ctx context.Context, dirs []string, f func(dir string, several bool) error) error {
	var errs []error
	for _, d := range dirs {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		errs = append(errs, f(d, len(dirs) > 1))
	}
	return errors.Join(errs...)
}

// folderResult is the output of a command for one directory of blocks.
type folderResult struct {
	json any // nil: print nothing
	rows [][2]string
}

// printFolders prints the result of f for every directory of blocks. The JSON output is an object
// for one directory and an array of objects for several. Tables are separated by an empty line.
func printFolders(ctx context.Context, w io.Writer, dirs []string, asJSON bool, f func(dir string) (folderResult, error)) error {
	objects := []any{}
	printed := false
	err := eachFolder(ctx, dirs, func(dir string, several bool) error {
		r, err := f(dir)
		switch {
		case r.json == nil:
			return err
		case several && asJSON:
			objects = append(objects, r.json)
			return err
		case several && r.rows[0][0] != directoryRow:
			r.rows = append([][2]string{{directoryRow, dir}}, r.rows...)
		}
		if printed {
			fmt.Fprintln(w)
		}
		printed = true
		return errors.Join(printResult(w, asJSON, r.json, r.rows), err)
	})
	if asJSON && len(dirs) > 1 {
		err = errors.Join(printResult(w, asJSON, objects, nil), err)
	}
	return err
}

// jsonOfFolders is the help text of --json.
const jsonOfFolders = "print one JSON object; for several folders one array of objects"

// directoryRow is the name of the row with a directory's path.
const directoryRow = "directory"

// foldersOf returns the directories of blocks for the argument dir. dir may be the parent of
// several directories, one for each identity, or a bucket.
func foldersOf(ctx context.Context, b bucketAccess, dir string) ([]string, error) {
	if object.IsURL(dir) {
		return object.Folders(ctx, b.config(dir))
	}
	if log.Recognises(dir) {
		return []string{dir}, nil
	}
	return file.Folders(dir)
}

// folderUse is the size and the time of last use of a directory of blocks.
type folderUse struct {
	dir   string
	bytes int64
	used  time.Time
	open  bool // a process has it open; unknown for a log and for a bucket
}

// targets are the sizes to which "kvlane store gc" reduces directories.
type targets struct {
	bytes  map[string]int64
	failed map[string]error // folders whose size is unknown
}

// targetsOf divides a total size among directories. First it reduces directories that no process
// has open, least recently used first. Then it reduces the others by the same fraction. Directories
// that cannot be inspected count as empty.
func targetsOf(ctx context.Context, b bucketAccess, dirs []string, target int64) targets {
	out := targets{map[string]int64{}, map[string]error{}}
	var all []folderUse
	var sum, kept int64
	for _, d := range dirs {
		u, err := useOf(ctx, b, d)
		if err != nil {
			out.failed[d] = err
			continue
		}
		all = append(all, u)
		sum += u.bytes
		if u.open {
			kept += u.bytes
		}
	}
	slices.SortStableFunc(all, func(a, b folderUse) int { return cmp.Compare(a.used.UnixNano(), b.used.UnixNano()) })
	over := max(0, sum-target)
	for _, u := range all {
		if out.bytes[u.dir] = u.bytes; !u.open {
			out.bytes[u.dir] -= min(over, u.bytes)
			over -= min(over, u.bytes)
		}
	}
	for _, u := range all {
		if u.open && over > 0 {
			out.bytes[u.dir] = int64(float64(u.bytes) * (1 - float64(over)/float64(kept)))
		}
	}
	return out
}

func useOf(ctx context.Context, b bucketAccess, dir string) (folderUse, error) {
	in, err := keeperOf(b, dir).inspect(ctx, dir)
	if err != nil {
		return folderUse{}, err
	}
	u := folderUse{dir: dir, bytes: in.Bytes, open: true}
	if log.Recognises(dir) {
		u.bytes = in.SegmentBytes
	}
	if log.Recognises(dir) || object.IsURL(dir) {
		return u, nil
	}
	u.used, u.open, err = file.LastUse(dir)
	return u, err
}

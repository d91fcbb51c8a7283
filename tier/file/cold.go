package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// listBuckets says which folders <2 hex> a directory has.
func listBuckets(d dirfs.Dir) (there [buckets]bool, err error) {
	all, err := d.ReadDir(".")
	for _, n := range all {
		if b, ok := parseBucket(n); ok {
			there[b] = true
		}
	}
	return there, err
}

func parseBucket(name string) (b byte, ok bool) {
	if len(name) != 2 {
		return 0, false
	}
	hi, lo := strings.IndexByte(hexDigits, name[0]), strings.IndexByte(hexDigits, name[1])
	return byte(hi<<4 | lo), hi >= 0 && lo >= 0
}

// listBucket returns the blocks in a bucket's folder, by their names, and the names there that are none.
func listBucket(d dirfs.Dir, b byte) (keys []block.Key, others []string, err error) {
	all, err := blockdir.Names(d, bucketName(b))
	if err != nil {
		return nil, nil, err
	}
	keys = make([]block.Key, 0, len(all))
	for _, n := range all {
		if key, err := block.ParseKey(n); err == nil && key[0] == b {
			keys = append(keys, key)
		} else {
			others = append(others, n)
		}
	}
	return keys, others, nil
}

// candidate is a block that may be removed.
type candidate struct {
	key      block.Key
	dir      int // index of its directory
	modified time.Time
}

// blocksOf returns how many blocks have so many bytes, if all are as short as the shortest.
func blocksOf(formats block.Formats, bytes int64) int64 {
	shortest := formats[0].Layout.ImageBytes()
	for _, f := range formats {
		shortest = min(shortest, f.Layout.ImageBytes())
	}
	return (bytes + shortest - 1) / shortest
}

// coldest returns the n blocks, or fewer, that were not used for the longest time, the coldest first, over all directories.
// It leaves out those that eligible refuses. It keeps about 2n of them in memory. What it cannot look at it passes over, and
// returns why, beside what it found.
func coldest(ctx context.Context, dirs []dirfs.Dir, n int64, eligible func(block.Key) bool) ([]candidate, error) {
	var found []candidate
	var errs []error
	trim := func() {
		slices.SortFunc(found, func(a, b candidate) int {
			if c := a.modified.Compare(b.modified); c != 0 {
				return c
			}
			return bytes.Compare(a.key[:], b.key[:])
		})
		found = found[:min(int64(len(found)), n)]
	}
	for i, d := range dirs {
		there, err := listBuckets(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("look for cold blocks: %w", err))
		}
		for b := range buckets {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if !there[b] {
				continue
			}
			keys, _, err := listBucket(d, byte(b))
			if err != nil {
				errs = append(errs, fmt.Errorf("look for cold blocks: %w", err))
			}
			for _, key := range keys {
				if !eligible(key) {
					continue
				}
				info, err := d.Stat(blockName(key))
				if blockdir.Gone(err) {
					continue
				}
				if err != nil {
					errs = append(errs, fmt.Errorf("look for cold blocks: %w", err))
					continue
				}
				if found = append(found, candidate{key, i, info.Modified}); int64(len(found)) >= 2*n+1024 {
					trim()
				}
			}
		}
	}
	trim()
	return found, joinFew(errs)
}

// joinFew joins errors of which there may be one a file: the first few, and how many more.
func joinFew(errs []error) error {
	const most = 8
	if len(errs) <= most {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs[:most:most], fmt.Errorf("and %d more", len(errs)-most))...)
}

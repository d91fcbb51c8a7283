package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// listBuckets reports which bucket folders (<2 hex>) exist in a directory.
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

// listBucket returns the keys of the blocks in a bucket's folder, and all other names.
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

// candidate is a block that may be evicted.
type candidate struct {
	key      block.Key
	dir      int       // index of its directory
	modified time.Time // modification time of the file
	used     time.Time // modified, or now if that is in the future; orders candidates
}

// compare orders candidates by their last use, coldest first.
func compare(a, b candidate) int {
	if c := a.used.Compare(b.used); c != 0 {
		return c
	}
	return bytes.Compare(a.key[:], b.key[:])
}

// blocksOf returns the number of blocks of the shortest image that have this many bytes.
func blocksOf(formats block.Formats, bytes int64) int64 {
	shortest := formats[0].Layout.ImageBytes()
	for _, f := range formats {
		shortest = min(shortest, f.Layout.ImageBytes())
	}
	return (bytes + shortest - 1) / shortest
}

// coldest returns the n least recently used eligible blocks of all directories, coldest first. It
// may return fewer. It keeps about 2n candidates in memory. It skips files that it cannot examine,
// and returns their errors with the blocks.
//
// A file time in the future counts as now, and coldest corrects it. Otherwise the block would never
// be evicted, and blocks in use would be evicted instead. The clock may have been set back, or the
// clock of another host may differ.
func coldest(ctx context.Context, dirs []dirfs.Dir, now time.Time, n int64, eligible func(block.Key) bool) ([]candidate, error) {
	var found, ahead []candidate
	var errs []error
	correct := func() {
		slices.SortFunc(ahead, compare)
		for i, c := range ahead {
			c, err := correctTime(dirs[c.dir], c, now.Add(-step*time.Duration(len(ahead)-1-i)))
			if err != nil {
				errs = append(errs, err)
			}
			found = append(found, c)
		}
		ahead = ahead[:0]
	}
	trim := func() {
		slices.SortFunc(found, compare)
		found = found[:min(int64(len(found)), n)]
	}
	for i, d := range dirs {
		there, err := listBuckets(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("find cold blocks: %w", err))
		}
		for b := range buckets {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if !there[b] {
				continue
			}
			keys, _, err := listBucket(d, byte(b))
			if err != nil && !notFolder(d, bucketName(byte(b))) {
				errs = append(errs, fmt.Errorf("find cold blocks: %w", err))
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
					errs = append(errs, fmt.Errorf("find cold blocks: %w", err))
					continue
				}
				if c := (candidate{key, i, info.Modified, info.Modified}); c.used.After(now) {
					ahead = append(ahead, c)
				} else {
					found = append(found, c)
				}
				if len(ahead) == aheadMost {
					correct()
				}
				if int64(len(found)) >= 2*n+1024 {
					trim()
				}
			}
		}
	}
	correct()
	trim()
	return found, joinFew(errs)
}

// aheadMost is the number of files with times in the future that are corrected together, in their
// order.
const aheadMost = 1 << 16

// correctTime sets the time of a file to when, and returns the candidate with that time. If setting
// the time fails, the candidate is still used at when.
func correctTime(d dirfs.Dir, c candidate, when time.Time) (candidate, error) {
	c.used = when
	name := blockName(c.key)
	err := d.SetTime(name, when)
	var info dirfs.Info
	if err == nil {
		info, err = d.Stat(name)
	}
	if blockdir.Gone(err) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("correct the time of cold block %s: %w", c.key, err)
	}
	c.modified, c.used = info.Modified, info.Modified
	return c, nil
}

// joinFew joins the first errors and the number of the remaining ones, because there may be one
// error per file.
func joinFew(errs []error) error {
	const most = 8
	if len(errs) <= most {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs[:most:most], fmt.Errorf("and %d more", len(errs)-most))...)
}

// recentCandidates are blocks that were written since the last search but are as cold as its
// result, because a new block may get the time of the block before it in its prompt.
type recentCandidates struct {
	mu      sync.Mutex
	looking bool      // a search is running
	until   time.Time // the time of the last candidate
	blocks  []candidate
}

// begin starts a search.
func (l *recentCandidates) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking, l.blocks = true, nil
}

// end ends a search. until is the time of its last candidate, or zero without candidates.
func (l *recentCandidates) end(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking, l.until = false, until
	l.blocks = slices.DeleteFunc(l.blocks, func(c candidate) bool { return c.used.After(until) })
}

// add adds a block that was written.
func (l *recentCandidates) add(c candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks) < coldMost && (l.looking || !c.used.After(l.until)) {
		l.blocks = append(l.blocks, c)
	}
}

// join merges the collected blocks into the candidates of a search.
func (l *recentCandidates) join(cold []candidate) []candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks) == 0 {
		return cold
	}
	cold = append(slices.Clip(cold), l.blocks...)
	l.blocks = nil
	slices.SortFunc(cold, compare)
	return slices.CompactFunc(cold, func(a, b candidate) bool { return a.key == b.key })
}

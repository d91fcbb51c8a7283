package log

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// FsyncPolicy says when a block's bytes reach stable storage. Whatever it is, a block survives the death of the process
// that wrote it, and a block that did not survive a power failure whole is found out by its checksums: when the directory is opened, by
// FsyncNever when it is read, so that until then Lookup may find it.
type FsyncPolicy uint8

// The policies.
const (
	FsyncInterval FsyncPolicy = iota // within about SyncEvery after Put has returned
	FsyncAlways                      // before Put returns; Puts at the same time share a sync
	FsyncNever                       // when the system gets to it
)

// String returns the policy's name as options have it.
func (p FsyncPolicy) String() string {
	switch p {
	case FsyncInterval:
		return "interval"
	case FsyncAlways:
		return "always"
	case FsyncNever:
		return "never"
	}
	return fmt.Sprintf("fsync(%d)", uint8(p))
}

// ParseFsyncPolicy reads what String writes.
func ParseFsyncPolicy(s string) (FsyncPolicy, error) {
	for _, p := range []FsyncPolicy{FsyncInterval, FsyncAlways, FsyncNever} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("fsync policy %q is none of %s, %s, %s: %w", s, FsyncInterval, FsyncAlways, FsyncNever, errdefs.ErrInvalid)
}

// Config says where a tier keeps its blocks, and which.
type Config struct {
	// Dir is the directory. It is made if it does not exist; an existing one is empty or belongs to the same identities and layouts.
	Dir string
	// Formats are those of the blocks, one a page group.
	Formats block.Formats
	// Identities are what the formats' identities are the digests of, in the same order, to be written down in a new directory for
	// people to read. They may be left out.
	Identities []block.Identity
	// Fsync is the policy; FsyncInterval by default.
	Fsync FsyncPolicy
	// SyncEvery is the pause between two syncs of FsyncInterval; 100 ms by default.
	SyncEvery time.Duration
	// MaxBytes bounds the segment files together; zero is unbounded.
	MaxBytes int64
	// SegmentBytes is the length of a segment file, rounded up to a page: 256 MiB by default, or less where MaxBytes has not room for
	// 64 of them. The longest block fits into it.
	SegmentBytes int64
	// MoveBytesPerSecond bounds the rate at which blocks are moved in the background, while nobody waits for room; 256 MiB/s by default.
	MoveBytesPerSecond int64
	// QuarantineMax is how many files set aside are kept, the newest; 16 by default, none if negative.
	QuarantineMax int
	// ReadOnly changes nothing in the directory, which must be there and may lie on a read-only mount. Put and Delete return
	// ErrReadOnly. It takes no lock: it has what was there when it was opened, also while another process writes on.
	ReadOnly bool
	// Reader reads segments in place of calls that block and go through the page cache; nil: there is none.
	Reader dirfs.Reader
	// FS and Clock replace the operating system's, for tests.
	FS    dirfs.FS
	Clock clockwork.Clock

	groupBytes      int64 // what one write takes up at most, but for a block that is longer alone
	checkpointBytes int64 // what is written between two checkpoints at least
}

const (
	defaultSyncEvery     = 100 * time.Millisecond
	defaultSegmentBytes  = 256 << 20
	defaultMoveRate      = 256 << 20
	defaultQuarantineMax = 16
	// leastSegments is how many segments the bound has room for at least: one that is written, one kept back to move blocks to, and
	// two that are not both emptied at once.
	leastSegments = 4
	// segmentsOfBound is the number of segments within a small bound. A few are kept free for new
	// blocks.
	segmentsOfBound = 64
	groupBytes      = 4 << 20
	// besideBytes is how much must wait for a write before another begins beside it.
	besideBytes = 128 << 10
	// maxAppenders is how many segments are appended to at once at most; a bound has room for so many for each of them.
	maxAppenders        = 4
	segmentsForAppender = 8
)

func (c *Config) setDefaults() {
	if c.FS == nil {
		c.FS = dirfs.OS()
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.SyncEvery == 0 {
		c.SyncEvery = defaultSyncEvery
	}
	if c.MoveBytesPerSecond == 0 {
		c.MoveBytesPerSecond = defaultMoveRate
	}
	if c.QuarantineMax == 0 {
		c.QuarantineMax = defaultQuarantineMax
	}
	if c.groupBytes == 0 {
		c.groupBytes = groupBytes
	}
	if c.checkpointBytes == 0 {
		c.checkpointBytes = checkpointAfter
	}
	c.SegmentBytes = c.segmentBytes()
}

// appenders is how many segments are appended to at once at most.
func (c *Config) appenders() int64 {
	if c.MaxBytes == 0 {
		return maxAppenders
	}
	return min(max(1, c.MaxBytes/c.SegmentBytes/segmentsForAppender), maxAppenders)
}

// besideBytes is how much must wait for a write before another begins beside it: a whole group where each write has a sync, as those
// who wait share it.
func (c *Config) besideBytes() int64 {
	if c.Fsync == FsyncAlways {
		return c.groupBytes
	}
	return min(besideBytes, c.groupBytes)
}

// segmentBytes is the length of a segment, in whole pages.
func (c *Config) segmentBytes() int64 {
	n := c.SegmentBytes
	if n == 0 {
		n = defaultSegmentBytes
		if c.MaxBytes > 0 {
			n = min(n, c.MaxBytes/segmentsOfBound/page*page)
		}
	}
	return max(pages(n)*page, c.leastSegment())
}

// leastSegment is what the longest block takes up, with its group's header.
func (c *Config) leastSegment() int64 {
	var n int64
	for _, f := range c.Formats {
		n = max(n, page+headerFor(f)+f.Layout.ImageBytes())
	}
	return n
}

// Validate reports everything wrong with the configuration, joined. It does not look at the directory.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("log tier: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if c.Dir == "" {
		bad("no directory is given")
	}
	if err := blockdir.CheckPath(c.Dir); err != nil {
		errs = append(errs, fmt.Errorf("log tier: %w", err))
	}
	if c.Fsync > FsyncNever {
		bad("fsync policy %d is unknown", c.Fsync)
	}
	if err := c.Formats.Validate(); err != nil {
		return errors.Join(append(errs, fmt.Errorf("log tier: %w", err))...)
	}
	if n := len(c.Identities); n != 0 && n != len(c.Formats) {
		bad("%d identities are given for %d formats", n, len(c.Formats))
	} else {
		for i, id := range c.Identities {
			if id.Digest() != c.Formats[i].Identity {
				bad("the identity's digest is %s, the format has %s", id.Digest(), c.Formats[i].Identity)
			}
		}
	}
	if c.SegmentBytes < 0 || c.SegmentBytes > maxSegmentBytes {
		bad("segments of %d bytes are not between 0 and %d", c.SegmentBytes, maxSegmentBytes)
	} else if n := c.segmentBytes(); c.MaxBytes < 0 || c.MaxBytes > 0 && c.MaxBytes < leastSegments*n {
		bad("the bound of %d bytes does not hold %d segments of %d", c.MaxBytes, leastSegments, n)
	}
	if c.SyncEvery < 0 || c.MoveBytesPerSecond < 0 {
		bad("a pause of %v or a rate of %d bytes a second is negative", c.SyncEvery, c.MoveBytesPerSecond)
	}
	return errors.Join(errs...)
}

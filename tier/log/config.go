package log

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// FsyncPolicy defines when a block becomes durable. Under every policy a block survives the end of
// the process. If a power failure damages a block, checksums detect that when the directory is
// opened, or, under FsyncNever, when the block is read; Lookup may find such a block before.
type FsyncPolicy uint8

// The values of FsyncPolicy.
const (
	FsyncInterval FsyncPolicy = iota // within about SyncEvery after Put
	FsyncAlways                      // before Put returns; concurrent Puts share a sync
	FsyncNever                       // when the operating system writes the file back
)

// String returns the name of the policy in options.
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

// ParseFsyncPolicy parses a name returned by String.
func ParseFsyncPolicy(s string) (FsyncPolicy, error) {
	for _, p := range []FsyncPolicy{FsyncInterval, FsyncAlways, FsyncNever} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("fsync policy %q is not one of %s, %s, %s: %w", s, FsyncInterval, FsyncAlways, FsyncNever, errdefs.ErrInvalid)
}

// Name is the name of the tier in pipelines.
const Name = "log"

// Config configures a Tier. The tags are the keys of settings.
type Config struct {
	// Dir is the directory. A missing directory is created. An existing one must be empty or have
	// the same identities and layouts.
	Dir string `config:"log_dir"`
	// Formats has one format for each page group.
	Formats block.Formats
	// Identities are the identities of the formats, in the same order. They are written to a new
	// directory for information. They may be nil.
	Identities []block.Identity
	// Fsync is the policy. The default is FsyncInterval.
	Fsync FsyncPolicy `config:"log_fsync"`
	// SyncEvery is the interval between syncs with FsyncInterval. The default is 100 ms.
	SyncEvery time.Duration
	// MaxBytes bounds the total size of the segment files. Zero is unbounded.
	MaxBytes int64 `config:"log_bytes"`
	// SegmentBytes is the length of a segment file, rounded up to a page. The default is 256 MiB,
	// or a 64th of MaxBytes if that is less. It is at least the length of the longest block.
	SegmentBytes int64
	// MoveBytesPerSecond limits the rate at which blocks are moved in the background while no write
	// waits for space. The default is 256 MiB/s.
	MoveBytesPerSecond int64
	// QuarantineMax is the number of quarantined files to keep. The default is 16. A negative
	// number keeps none.
	QuarantineMax int
	// ReadOnly opens the directory without changing or locking it. It must exist and may be on a
	// read-only mount. Put and Delete return ErrReadOnly. The tier has the blocks that were stored
	// when it was opened, even if another process writes.
	ReadOnly bool `config:"read_only"`
	// Direct reads segments into device memory: see Tier.ReadDirect. It may be nil.
	Direct dirfs.Direct
	// Events receives the changes of the contents. It may be nil.
	Events *tier.Events
	// FS and Clock replace those of the operating system in tests.
	FS    dirfs.FS
	Clock clockwork.Clock

	groupBytes      int64 // maximum length of one write, unless a single block is longer
	checkpointBytes int64 // minimum number of bytes written between two checkpoints
}

const (
	defaultSyncEvery     = 100 * time.Millisecond
	defaultSegmentBytes  = 256 << 20
	defaultMoveRate      = 256 << 20
	defaultQuarantineMax = 16
	// leastSegments is the minimum number of segments in a bound: one for writes, one reserved for
	// moves, and two others, so that not all blocks are emptied at once.
	leastSegments = 4
	// segmentsOfBound is the number of segments within a small bound. A few of them are kept free
	// for new blocks.
	segmentsOfBound = 64
	groupBytes      = 4 << 20
	// concurrentBytes is the number of waiting bytes from which another concurrent write begins.
	concurrentBytes = 128 << 10
	// maxAppenders is the maximum number of concurrent appenders. Each needs space for
	// segmentsForAppender segments within the bound.
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

// appenders returns the maximum number of concurrent appenders.
func (c *Config) appenders() int64 {
	if c.MaxBytes == 0 {
		return maxAppenders
	}
	return min(max(1, c.MaxBytes/c.SegmentBytes/segmentsForAppender), maxAppenders)
}

// concurrentBytes returns the number of waiting bytes from which another concurrent write begins.
// If each write is synced, that is a whole group, because waiting writes share the sync.
func (c *Config) concurrentBytes() int64 {
	if c.Fsync == FsyncAlways {
		return c.groupBytes
	}
	return min(concurrentBytes, c.groupBytes)
}

// segmentBytes returns the length of a segment, a multiple of a page.
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

// leastSegment returns the length of a segment that fits the longest block with its group's header.
func (c *Config) leastSegment() int64 {
	var n int64
	for _, f := range c.Formats {
		n = max(n, page+headerFor(f)+f.Layout.ImageBytes())
	}
	return n
}

// Validate reports all errors of the configuration, joined. It does not access the directory.
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
	if err := blockdir.CheckIdentities(c.Formats, c.Identities); err != nil {
		errs = append(errs, fmt.Errorf("log tier: %w", err))
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

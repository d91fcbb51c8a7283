package file

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// FsyncPolicy says when a block's bytes reach stable storage. Whatever it is, a block survives the death of the process
// that wrote it, and a block that did not survive a power failure whole is found out by its checksums.
type FsyncPolicy uint8

// The policies.
const (
	FsyncNever FsyncPolicy = iota // when the system gets to it
	FsyncFile                     // before Put returns: the file before it gets its name, and the directory after
)

// String returns the policy's name as options have it.
func (p FsyncPolicy) String() string {
	switch p {
	case FsyncNever:
		return "never"
	case FsyncFile:
		return "file"
	}
	return fmt.Sprintf("fsync(%d)", uint8(p))
}

// ParseFsyncPolicy reads what String writes.
func ParseFsyncPolicy(s string) (FsyncPolicy, error) {
	for _, p := range []FsyncPolicy{FsyncNever, FsyncFile} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("fsync policy %q is neither %s nor %s: %w", s, FsyncNever, FsyncFile, errdefs.ErrInvalid)
}

// Config says where a tier keeps its blocks, and which.
type Config struct {
	// Dirs are the directories, at least one. They are made if they do not exist; an existing one is empty or belongs
	// to the same identities and layouts.
	Dirs []string
	// SharedBound makes MaxBytes and DirBytes bound all folders in the parent directory of each of
	// Dirs, of all identities and processes: see the package's comment. Each of Dirs has a parent
	// of its own then.
	SharedBound bool
	// Formats are those of the blocks, one a page group.
	Formats block.Formats
	// Identities are what the formats' identities are the digests of, in the same order. They are written down in new directories for
	// people to read, and make an error say in which field a directory's identity differs. They may be left out.
	Identities []block.Identity
	// Fsync is the policy; FsyncNever by default.
	Fsync FsyncPolicy
	// MaxBytes bounds the images in all directories together, but for those with a bound of their own; zero is unbounded. This tier does not write beyond it,
	// once it has counted what is there.
	// With several processes in one directory each recounts after it has written a sixteenth of the bound, so that
	// together they may exceed it by as much.
	MaxBytes int64
	// DirBytes bounds directories by themselves, in the order of Dirs: the images in one of them, of which the coldest there are removed.
	// Directories with zero, and those beyond its end, share MaxBytes.
	DirBytes []int64
	// HighBytes is where removing starts in the background, LowBytes where it stops. By default 95% and 90% of
	// MaxBytes.
	HighBytes, LowBytes int64
	// TouchAfter is the age from which a hit renews a block's hotness. A minute by default.
	TouchAfter time.Duration
	// QuarantineMax is how many files set aside each directory keeps, the newest; 16 by default, none if negative.
	QuarantineMax int
	// ReadOnly changes nothing in the directories, which must be there, and may lie on a read-only mount: no block is written,
	// removed, set aside or renewed, and no folder for temporary files is made. Put and Delete return ErrReadOnly.
	ReadOnly bool
	// Reader reads files in place of calls that block and go through the page cache; nil: there is none.
	Reader dirfs.Reader
	// FS and Clock replace the operating system's, for tests.
	FS    dirfs.FS
	Clock clockwork.Clock
	host  string // names the kernel
}

const (
	defaultTouchAfter    = time.Minute
	defaultQuarantineMax = 16
)

func (c *Config) setDefaults() {
	if c.FS == nil {
		c.FS = dirfs.OS()
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.host == "" {
		c.host = blockdir.ThisHost()
	}
	if c.TouchAfter == 0 {
		c.TouchAfter = defaultTouchAfter
	}
	if c.QuarantineMax == 0 {
		c.QuarantineMax = defaultQuarantineMax
	}
}

// Validate reports everything wrong with the configuration, joined. It does not look at the directories.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("file tier: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if len(c.Dirs) == 0 {
		bad("no directory is given")
	}
	seen, parents := make(map[string]bool), make(map[string]bool)
	for i, d := range c.Dirs {
		if d == "" {
			bad("directory %d has no name", i)
			continue
		}
		if err := blockdir.CheckPath(d); err != nil {
			errs = append(errs, fmt.Errorf("file tier: %w", err))
		}
		clean := filepath.Clean(d)
		parent, name := filepath.Dir(clean), filepath.Base(clean)
		switch {
		case seen[clean]:
			bad("directory %s is given twice", clean)
		case c.SharedBound && (name == "/" || name == "." || name == ".."):
			bad("directory %s has no parent to share a bound with: give the path of a folder below another directory", clean)
		case c.SharedBound && parents[parent]:
			bad("several directories are in %s, where all share a bound: give one of them", parent)
		}
		seen[clean], parents[parent] = true, true
	}
	if c.Fsync > FsyncFile {
		bad("fsync policy %d is unknown", c.Fsync)
	}
	if err := c.Formats.Validate(); err != nil {
		return errors.Join(append(errs, fmt.Errorf("file tier: %w", err))...)
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
	image := c.Formats.MaxImageBytes()
	switch {
	case c.MaxBytes < 0:
		bad("the bound of %d bytes is negative", c.MaxBytes)
	case c.MaxBytes > 0 && c.MaxBytes < image:
		bad("the bound of %d bytes does not hold one block of %d", c.MaxBytes, image)
	case c.HighBytes < 0 || c.HighBytes > c.MaxBytes:
		bad("the high watermark of %d bytes is not between 0 and the bound of %d", c.HighBytes, c.MaxBytes)
	case c.LowBytes < 0 || c.LowBytes > c.MaxBytes || c.HighBytes > 0 && c.LowBytes > c.HighBytes:
		bad("the low watermark of %d bytes is above the high one or the bound", c.LowBytes)
	}
	errs = append(errs, c.validateDirBytes(image))
	if c.TouchAfter < 0 {
		bad("the age of a touch, %v, is negative", c.TouchAfter)
	}
	return errors.Join(errs...)
}

func (c *Config) validateDirBytes(image int64) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("file tier: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if len(c.DirBytes) > len(c.Dirs) {
		bad("bounds of %d directories are given, and there are %d", len(c.DirBytes), len(c.Dirs))
		return errors.Join(errs...)
	}
	all := len(c.Dirs) > 0
	for i, d := range c.Dirs {
		if n := c.dirBytes(i); n != 0 && n < image {
			bad("the bound of %d bytes of directory %s does not hold one block of %d", n, d, image)
		}
		all = all && c.dirBytes(i) != 0
	}
	if all && c.MaxBytes > 0 {
		bad("the bound of %d bytes is for no directory: all of them have their own", c.MaxBytes)
	}
	return errors.Join(errs...)
}

// dirBytes is the bound that directory i has by itself; zero: none.
func (c *Config) dirBytes(i int) int64 {
	if i < len(c.DirBytes) {
		return c.DirBytes[i]
	}
	return 0
}

// limits are the bounds in bytes, each a multiple of the longest image.
type limits struct{ most, high, low int64 }

func (c *Config) limitsOf(bound, highBytes, lowBytes int64) limits {
	if bound == 0 {
		return limits{}
	}
	image := c.Formats.MaxImageBytes()
	most := bound / image // in images
	l := limits{most: most, high: most - most/20, low: most - max(1, most/10)}
	if highBytes > 0 {
		l.high = highBytes / image
	}
	if lowBytes > 0 {
		l.low = lowBytes / image
	}
	// A round must make room for one block at least.
	l.low = min(l.low, most-1, l.high)
	return limits{most: l.most * image, high: l.high * image, low: l.low * image}
}

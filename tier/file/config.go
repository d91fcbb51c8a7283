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
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// FsyncPolicy defines when a block becomes durable. Under every policy a block survives the end of
// the process, and checksums detect a block that was damaged by a power failure.
type FsyncPolicy uint8

// The values of FsyncPolicy.
const (
	FsyncNever FsyncPolicy = iota // when the operating system writes the file back
	// before Put returns: the file is synced before its rename, the directory after it
	FsyncFile
)

// String returns the name of the policy in options.
func (p FsyncPolicy) String() string {
	switch p {
	case FsyncNever:
		return "never"
	case FsyncFile:
		return "file"
	}
	return fmt.Sprintf("fsync(%d)", uint8(p))
}

// ParseFsyncPolicy parses a name returned by String.
func ParseFsyncPolicy(s string) (FsyncPolicy, error) {
	for _, p := range []FsyncPolicy{FsyncNever, FsyncFile} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("fsync policy %q: must be %s or %s: %w", s, FsyncNever, FsyncFile, errdefs.ErrInvalid)
}

// Name is the name of the tier in pipelines.
const Name = "file"

// Config configures a Tier. The tags are the keys of settings.
type Config struct {
	// Dirs are the directories, at least one. Missing ones are made. An existing one must be empty
	// or have the same identities and layouts.
	Dirs []string `config:"dirs"`
	// SharedBound makes MaxBytes and DirBytes bound all folders in the parent directory of each of
	// Dirs, of all identities and processes: see the package's comment. Each of Dirs must
	// then have a different parent.
	SharedBound bool `config:"shared_bound"`
	// OpenFolders has the sizes of the folders that share the bound and are open in this process, so
	// that their records are not read. All of its tiers have one directory each. Nil: the records of
	// all folders are read.
	OpenFolders *OpenFolders
	// Formats has one format for each page group.
	Formats block.Formats
	// Identities are the identities of the formats, in the same order. They are written to new
	// directories for information, and error messages name the fields that differ. They may be nil.
	Identities []block.Identity
	// Fsync is the policy. The default is FsyncNever.
	Fsync FsyncPolicy `config:"fsync"`
	// MaxBytes bounds the images in all directories without their own bound. Zero is unbounded. The
	// tier does not write beyond it after its first count. If several processes use a directory,
	// each recounts after it has written a sixteenth of the bound, so together they may exceed it
	// by that.
	MaxBytes int64 `config:"file_bytes"`
	// DirBytes bounds single directories, in the order of Dirs. Each evicts its own coldest blocks.
	// Directories with zero, and those without an element, share MaxBytes.
	DirBytes []int64 `config:"dir_bytes"`
	// TouchAfter is the age from which a hit renews the time of a block. The default is a minute.
	TouchAfter time.Duration
	// QuarantineMax is the number of quarantined files that each directory keeps. The default is
	// 16. A negative number keeps none.
	QuarantineMax int
	// ReadOnly never changes the directories, which must exist and may be on a read-only mount. Put
	// and Delete return ErrReadOnly.
	ReadOnly bool `config:"read_only"`
	// Direct reads files to memory of a device: see Tier.ReadDirect. It may be nil.
	Direct dirfs.Direct
	// Events receives the changes of the contents by this tier. It may be nil.
	Events *tier.Events
	// FS and Clock replace those of the operating system in tests.
	FS    dirfs.FS
	Clock clockwork.Clock
	host  string // identifies the kernel
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

// Validate reports all errors of the configuration, joined. It does not access the directories.
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
			bad("several directories are in %s and share its bound: give one of them", parent)
		}
		seen[clean], parents[parent] = true, true
	}
	if c.Fsync > FsyncFile {
		bad("fsync policy %d is unknown", c.Fsync)
	}
	if err := c.Formats.Validate(); err != nil {
		return errors.Join(append(errs, fmt.Errorf("file tier: %w", err))...)
	}
	if err := blockdir.CheckIdentities(c.Formats, c.Identities); err != nil {
		errs = append(errs, fmt.Errorf("file tier: %w", err))
	}
	image := c.Formats.MaxImageBytes()
	switch {
	case c.MaxBytes < 0:
		bad("the bound of %d bytes is negative", c.MaxBytes)
	case c.MaxBytes > 0 && c.MaxBytes < image:
		bad("the bound of %d bytes does not hold one block of %d", c.MaxBytes, image)
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
		bad("bounds of %d directories are given, expected %d", len(c.DirBytes), len(c.Dirs))
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

// dirBytes returns the bound of directory i alone, or zero.
func (c *Config) dirBytes(i int) int64 {
	if i < len(c.DirBytes) {
		return c.DirBytes[i]
	}
	return 0
}

// limits are bounds in bytes. Each is a multiple of the longest image. Eviction starts at high, 95%
// of the bound, and stops at low, 90%.
type limits struct{ most, high, low int64 }

func (c *Config) limitsOf(bound int64) limits {
	if bound == 0 {
		return limits{}
	}
	image := c.Formats.MaxImageBytes()
	most := bound / image // in images
	// A round must free space for at least one block.
	return limits{most: most * image, high: (most - most/20) * image, low: (most - max(1, most/10)) * image}
}

package file

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// dir is one open directory of a tier.
type dir struct {
	root    string
	id      string // from the marker
	session *session
	swept   int
	buckets [buckets]bucket
}

// buckets is the number of folders <2 hex> of a directory; a key's is its first byte.
const buckets = 256

// bucket counts the blocks in one folder.
type bucket struct {
	// scan keeps the count true: whoever adds or removes a file holds it shared until the file is counted, whoever counts
	// the files holds it exclusively until the count is noted. It is held across system calls, for there is no other
	// way to order them against the listing.
	scan   sync.RWMutex
	blocks int64 // guarded by space.mu
}

// openDir opens a directory, or makes it. The error names it.
func openDir(c *Config, root string) (*dir, error) {
	d := &dir{root: filepath.Clean(root)}
	if err := d.open(c); err != nil {
		if d.session != nil {
			err = errors.Join(err, d.session.close())
		}
		return nil, fmt.Errorf("directory %s: %w", d.root, err)
	}
	return d, nil
}

func (d *dir) open(c *Config) error {
	info, err := c.FS.Stat(d.root)
	if gone(err) {
		if err := mkdirAll(c.FS, d.root); err != nil {
			return writeError(err)
		}
		info, err = c.FS.Stat(d.root)
	}
	if errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("a part of its path is a file: %w: %w", errdefs.ErrInvalid, err)
	}
	if err != nil {
		return err
	}
	if !info.Dir {
		return fmt.Errorf("it is a file; give a directory: %w", errdefs.ErrInvalid)
	}
	// Looked at before anything is written: a directory given by mistake stays as it is.
	if _, err := d.readMarker(c); err != nil && !gone(err) {
		return err
	} else if err != nil {
		if err := checkEmpty(c.FS, d.root); err != nil {
			return err
		}
	}
	return writeError(withLock(c.FS, d.root, func() error { return d.openLocked(c) }))
}

func (d *dir) openLocked(c *Config) error {
	m, err := d.readMarker(c)
	if gone(err) {
		m = newMarker(c.Format, c.Identity)
		err = writeMarker(c.FS, d.root, m)
	}
	if err != nil {
		return err
	}
	d.id = m.Directory
	if d.swept, err = sweep(c.FS, d.root); err != nil {
		return err
	}
	d.session, err = openSession(c.FS, d.root)
	return err
}

func (d *dir) readMarker(c *Config) (Marker, error) {
	m, err := readMarker(c.FS, d.root)
	if err != nil {
		if errors.Is(err, errdefs.ErrMismatch) {
			return Marker{}, fmt.Errorf("it was made by another version of kvlane; give another directory, or use that version: %w", err)
		}
		if errors.Is(err, errdefs.ErrCorrupt) {
			return Marker{}, fmt.Errorf("whose blocks it holds cannot be read; give another directory, or remove this one: %w", err)
		}
		return Marker{}, err
	}
	return m, m.check(c.Format, c.Identity)
}

func mkdirAll(fsys FS, path string) error {
	err := mkdir(fsys, path)
	parent := filepath.Dir(path)
	if !gone(err) || parent == path {
		return err
	}
	if err := mkdirAll(fsys, parent); err != nil {
		return err
	}
	return mkdir(fsys, path)
}

const hexDigits = "0123456789abcdef"

func bucketPath(root string, b byte) string {
	return root + "/" + string([]byte{hexDigits[b>>4], hexDigits[b&15]})
}

func blockPath(root string, key block.Key) string {
	buf := make([]byte, 0, 256)
	buf = append(buf, root...)
	buf = append(buf, '/', hexDigits[key[0]>>4], hexDigits[key[0]&15], '/')
	return string(hex.AppendEncode(buf, key[:]))
}

// dirOf returns the directory that a key belongs to: the one that draws the highest number for it. Another directory
// can only win keys, never make the others exchange theirs.
func dirOf(dirs []*dir, key block.Key) *dir {
	if len(dirs) == 1 {
		return dirs[0]
	}
	var best *dir
	var most uint64
	for _, d := range dirs {
		var buf [64]byte
		// Equal numbers are decided by the id, so that the order of the directories never matters.
		n := xxh3.Hash(append(append(buf[:0], d.id...), key[:]...))
		if best == nil || n > most || n == most && strings.Compare(d.id, best.id) > 0 {
			best, most = d, n
		}
	}
	return best
}

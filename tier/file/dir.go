package file

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// dir is an open directory of a tier.
type dir struct {
	dirfs.Dir                         // the anchor, once it is set
	anchor    *anchor                 // replaced when the directory is created again
	root      string                  // path
	area      *area                   // area that counts the directory
	id        string                  // id in the marker
	renewing  chan struct{}           // holds an element while the session is being renewed
	session   atomic.Pointer[session] // nil in a read-only tier
	swept     int
	left      int                // files of dead sessions that could not be removed
	removals  *blockdir.Removals // nil in a read-only tier
	buckets   [buckets]bucket
	pins      *blockdir.Pins
	pinsErr   atomic.Pointer[error] // damage of the list of pins, or nil
}

// buckets is the number of folders <2 hex> in a directory. The first byte of a key selects the
// folder.
const buckets = 256

// bucket counts the blocks in one folder.
type bucket struct {
	// Guarded by space.mu.
	blocks   int64
	bytes    int64  // total length of their images
	changing int    // number of running operations that add or remove a file
	changes  uint64 // number of such operations that have ended
	lost     bool   // a counted file was missing; count the folder again

	// durable is the inode of the folder whose name this process has made durable, or zero.
	durable atomic.Uint64
}

// openTries is the number of attempts to open a directory that another process is removing.
const openTries = 4

// openDir opens or creates a directory. Its errors name the directory.
func openDir(ctx context.Context, c *Config, root string) (*dir, error) {
	for try := 1; ; try++ {
		d := &dir{root: filepath.Clean(root), renewing: make(chan struct{}, 1)}
		err := d.open(ctx, c)
		if err == nil {
			return d, nil
		}
		err = errors.Join(err, d.close())
		// A process that frees space may have removed the folder of an unused identity.
		if !blockdir.Gone(err) || c.ReadOnly || try == openTries {
			return nil, fmt.Errorf("directory %s: %w", d.root, err)
		}
	}
}

func (d *dir) open(ctx context.Context, c *Config) (err error) {
	root, err := d.openRoot(c)
	if err != nil {
		return err
	}
	d.anchor = newAnchor(root)
	d.Dir = d.anchor
	// Check the marker before writing: a wrong directory must not change.
	m, err := d.readMarker(c)
	if err != nil && !blockdir.Gone(err) {
		return err
	}
	if c.ReadOnly {
		if err != nil {
			return fmt.Errorf("it has no %s, and is opened for reading only: %w: %w", blockdir.MarkerName, errdefs.ErrNotFound, err)
		}
		d.id = m.Directory
		return nil
	}
	if err != nil {
		if err := blockdir.CheckEmpty(d); err != nil {
			if _, err = d.madeMeanwhile(c, err); err != nil {
				return err
			}
		}
	}
	return blockdir.WriteError(blockdir.WithLock(ctx, c.Clock, d, func() error { return d.openLocked(c) }))
}

// openRoot opens the directory, and creates a missing one.
func (d *dir) openRoot(c *Config) (dirfs.Dir, error) {
	root, err := c.FS.OpenDir(d.root)
	if blockdir.Gone(err) && !c.ReadOnly {
		if err := blockdir.MakeDir(c.FS, d.root); err != nil {
			return nil, blockdir.WriteError(err)
		}
		root, err = c.FS.OpenDir(d.root)
	}
	// Parents of a new directory may belong to another user and may not be durable.
	if err == nil && !c.ReadOnly && c.Fsync == FsyncFile {
		err = c.FS.SyncParents(d.root)
	}
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("it is a file, or a part of its path is a file; give a directory: %w: %w", errdefs.ErrInvalid, err)
	}
	if err != nil && root != nil {
		err = errors.Join(err, root.Close())
		root = nil
	}
	return root, err
}

func (d *dir) openLocked(c *Config) error {
	m, err := d.readMarker(c)
	if blockdir.Gone(err) {
		m = blockdir.NewMarker(blockdir.Files, c.Formats, c.Identities)
		err = blockdir.WriteMarker(d, m)
		// Another host has created the directory; locks may not work between hosts.
		if errors.Is(err, unix.EEXIST) || errors.Is(err, errdefs.ErrInvalid) {
			m, err = d.madeMeanwhile(c, err)
		}
	}
	if err == nil {
		// The process that wrote the marker may have ended before the marker was durable. Without a
		// marker new blocks would be lost.
		err = blockdir.SyncRoot(d)
	}
	if err != nil {
		return err
	}
	d.id = m.Directory
	if d.swept, d.left, err = sweep(d); err != nil {
		return err
	}
	s, err := openSession(d)
	d.session.Store(s)
	return err
}

// noteRemoval writes the removal of a block to the removal log.
func (d *dir) noteRemoval(now time.Time, key block.Key, cause tier.Cause) {
	d.removals.Add(now, key, cause)
	d.removals.Flush()
}

// close closes the session and the directory.
func (d *dir) close() error {
	if d.Dir == nil {
		return nil
	}
	var err error
	if s := d.session.Swap(nil); s != nil {
		err = s.close()
	}
	return errors.Join(err, d.Close())
}

// renew replaces the session old after its folder was removed. If the directory or its marker was
// removed too, renew creates them again with the same id.
func (d *dir) renew(ctx context.Context, c *Config, old *session) error {
	select {
	case d.renewing <- struct{}{}:
		defer func() { <-d.renewing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.session.Load() != old {
		return nil
	}
	if d.removed(c) {
		root, err := d.openRoot(c)
		if err != nil {
			return fmt.Errorf("directory %s was removed while open, and cannot be created again: %w", d.root, err)
		}
		d.anchor.exchange(root)
	}
	return blockdir.WithLock(ctx, c.Clock, d, func() error {
		if err := d.restoreMarker(c); err != nil {
			return err
		}
		s, err := openSession(d)
		if err != nil {
			return err
		}
		d.session.Store(s)
		for i := range d.buckets { // make the folders durable again
			d.buckets[i].durable.Store(0)
		}
		return old.lock.Close()
	})
}

// removed reports whether the path of the directory is missing or belongs to another directory.
func (d *dir) removed(c *Config) bool {
	named, err := c.FS.OpenDir(d.root)
	if err != nil {
		return blockdir.Gone(err)
	}
	now, err := named.Stat(".")
	mine, merr := d.Stat(".")
	return errors.Join(named.Close(), err, merr) == nil && (now.Inode != mine.Inode || now.Device != mine.Device)
}

// restoreMarker writes a removed marker again, with the same id, so that the keys stay in this
// directory.
func (d *dir) restoreMarker(c *Config) error {
	_, err := d.readMarker(c)
	if !blockdir.Gone(err) {
		return err
	}
	m := blockdir.NewMarker(blockdir.Files, c.Formats, c.Identities)
	m.Directory = d.id
	return blockdir.PutMarker(d, m)
}

// restore creates the directory or its marker again if it was removed. A read-only tier switches to
// the directory that has the path now.
func (d *dir) restore(ctx context.Context, c *Config) (removed bool, err error) {
	removed = d.removed(c)
	if c.ReadOnly {
		if removed {
			err = d.follow(c)
		}
		return removed, err
	}
	if _, err := d.Stat(blockdir.MarkerName); !removed && !blockdir.Gone(err) {
		return false, err
	}
	return true, d.renew(ctx, c, d.session.Load())
}

// follow switches to the directory that has the path now, if its formats are the same.
func (d *dir) follow(c *Config) error {
	root, err := c.FS.OpenDir(d.root)
	if err != nil {
		if blockdir.Gone(err) {
			return nil // there is nothing to read
		}
		return err
	}
	m, err := blockdir.ReadMarker(root, blockdir.Files)
	if err == nil {
		err = m.Check(c.Formats, c.Identities)
	}
	if err != nil {
		err = errors.Join(err, root.Close())
		if blockdir.Gone(err) {
			return nil
		}
		return fmt.Errorf("directory %s was replaced while open: %w", d.root, err)
	}
	d.anchor.exchange(root)
	return nil
}

// madeMeanwhile returns the marker that another process has written in the meantime, or err if
// there is none.
func (d *dir) madeMeanwhile(c *Config, err error) (Marker, error) {
	m, rerr := d.readMarker(c)
	if blockdir.Gone(rerr) {
		return m, err
	}
	return m, rerr
}

func (d *dir) readMarker(c *Config) (Marker, error) {
	m, err := blockdir.ReadMarker(d, blockdir.Files)
	if err != nil {
		if errors.Is(err, blockdir.ErrOtherKind) {
			return Marker{}, fmt.Errorf("give another directory, or open this one as a log: %w", err)
		}
		if errors.Is(err, errdefs.ErrMismatch) {
			return Marker{}, fmt.Errorf("it was created by another version of kvlane; give another directory, or use that version: %w", err)
		}
		if errors.Is(err, errdefs.ErrCorrupt) {
			return Marker{}, fmt.Errorf("the identity of its blocks cannot be read; give another directory, remove this one, or try \"kvlane store verify --repair\": %w", err)
		}
		return Marker{}, err
	}
	return m, m.Check(c.Formats, c.Identities)
}

// tmpName is the folder with the temporary files of all sessions.
const tmpName = "tmp"

const hexDigits = "0123456789abcdef"

func bucketName(b byte) string { return string([]byte{hexDigits[b>>4], hexDigits[b&15]}) }

// blockName returns the name of a block's file in its directory.
func blockName(key block.Key) string {
	buf := make([]byte, 0, 3+2*len(key))
	buf = append(buf, hexDigits[key[0]>>4], hexDigits[key[0]&15], '/')
	return string(hex.AppendEncode(buf, key[:]))
}

// dirOf returns the directory of a key: the one with the highest hash. An added directory takes
// keys from the others; they exchange no keys among themselves.
func dirOf(dirs []*dir, key block.Key) *dir {
	if len(dirs) == 1 {
		return dirs[0]
	}
	var best *dir
	var most uint64
	for _, d := range dirs {
		var buf [64]byte
		// The id decides between equal hashes, so that the order of the directories does not
		// matter.
		n := xxh3.Hash(append(append(buf[:0], d.id...), key[:]...))
		if best == nil || n > most || n == most && strings.Compare(d.id, best.id) > 0 {
			best, most = d, n
		}
	}
	return best
}

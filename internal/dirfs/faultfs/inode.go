package faultfs

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// inode is a file or a directory. It has the cached state, the durable state, and the changes
// between them.
type inode struct {
	number   uint64
	modified time.Time
	links    int       // number of names
	opens    int       // number of open files; the inode is freed when links is zero too
	locker   *diskFile // open file that has the lock

	// The contents of a file.
	data, synced []byte
	writes       []write // changes since the last sync

	// The entries of a directory. The maps are nil for a file.
	parent             *inode
	names, syncedNames map[string]*inode
	entries            []entry // changes since the last sync
}

// write is a change of a file's contents. If b is nil, it truncates the file.
type write struct {
	off  int64
	b    []byte
	size int64 // size of the file after the change
}

// entry is a change of a directory entry. now is the new inode, or nil if the name was removed.
type entry struct {
	name string
	now  *inode
}

func (d *Disk) newInode(isDir bool) *inode {
	d.last++
	n := &inode{number: d.last, modified: d.clock.Now()}
	if isDir {
		n.names, n.syncedNames = make(map[string]*inode), make(map[string]*inode)
	}
	return n
}

func (n *inode) isDir() bool { return n.names != nil }

func (n *inode) mustBeDir() error {
	if !n.isDir() {
		return unix.ENOTDIR
	}
	return nil
}

func (n *inode) info() dirfs.Info {
	i := dirfs.Info{Bytes: int64(len(n.data)), Modified: n.modified, Inode: n.number, Links: uint64(n.links)}
	if n.isDir() {
		i.Type = fs.ModeDir
	}
	return i
}

// list returns the sorted names in a directory.
func (n *inode) list() []string { return slices.Sorted(maps.Keys(n.names)) }

// walk returns the folder that contains name and the last part of name.
func (n *inode) walk(name string) (*inode, string, error) {
	for {
		part, rest, more := strings.Cut(name, "/")
		if part == "" || part == ".." || part == "." && more {
			return nil, "", unix.EINVAL
		}
		if !more {
			return n, part, nil
		}
		next := n.names[part]
		if next == nil {
			return nil, "", unix.ENOENT
		}
		if err := next.mustBeDir(); err != nil {
			return nil, "", err
		}
		n, name = next, rest
	}
}

// find returns the inode of name.
func (n *inode) find(name string) (*inode, error) {
	folder, base, err := n.walk(name)
	if err != nil {
		return nil, err
	}
	if base == "." {
		return folder, nil
	}
	if c := folder.names[base]; c != nil {
		return c, nil
	}
	return nil, unix.ENOENT
}

// set sets the inode of a name in the cache. A nil inode removes the name.
func (d *Disk) set(folder *inode, name string, c *inode) {
	old := folder.names[name]
	if c != nil {
		folder.names[name] = c
		c.links++
		if c.isDir() {
			c.parent = folder
		}
	} else {
		delete(folder.names, name)
	}
	if old != nil {
		old.links--
		d.dropUnused(old)
	}
	folder.entries = append(folder.entries, entry{name, c})
	folder.modified = d.clock.Now()
}

// dropUnused frees the space of a file without names that is not open.
func (d *Disk) dropUnused(n *inode) {
	if n.links == 0 && n.opens == 0 {
		d.used -= int64(len(n.data))
		n.data = nil // once
	}
}

// change applies w to the cached contents.
func (d *Disk) change(n *inode, w write) {
	d.used += w.size - int64(len(n.data))
	if grow := int(w.size) - len(n.data); grow > 0 {
		n.data = append(n.data, make([]byte, grow)...)
	}
	n.data = n.data[:w.size]
	w.apply(n.data, 0)
	n.writes = append(n.writes, w)
	n.modified = d.clock.Now()
}

// apply applies w to part, which is the file's contents from offset at.
func (w write) apply(part []byte, at int64) {
	if w.b == nil {
		clear(part[min(max(0, w.size-at), int64(len(part))):])
		return
	}
	from, to := max(w.off, at), min(w.off+int64(len(w.b)), at+int64(len(part)))
	if from < to {
		copy(part[from-at:to-at], w.b[from-w.off:])
	}
}

// sync makes the cached state durable.
func (n *inode) sync() {
	n.synced, n.writes = slices.Clone(n.data), nil
	n.syncedNames, n.entries = maps.Clone(n.names), nil
}

// survive sets the inode to its state after a power failure, as selected by s.
func (n *inode) survive(s Survival) {
	sector, reached := s.draw(n.number)
	if n.isDir() {
		n.surviveNames(reached)
	} else {
		n.surviveBytes(sector, reached)
	}
	n.sync()
}

func (n *inode) surviveNames(reached func(int) int) {
	changes := make(map[string][]*inode)
	var names []string // in order of their first change
	for _, e := range n.entries {
		if changes[e.name] == nil {
			names = append(names, e.name)
		}
		changes[e.name] = append(changes[e.name], e.now)
	}
	n.names = n.syncedNames
	for _, name := range names {
		k := reached(len(changes[name]))
		if k == 0 {
			continue
		}
		if now := changes[name][k-1]; now != nil {
			n.names[name] = now
		} else {
			delete(n.names, name)
		}
	}
}

func (n *inode) surviveBytes(sector int64, reached func(int) int) {
	size := int64(len(n.synced))
	k := reached(len(n.writes))
	if k > 0 {
		size = n.writes[k-1].size
	}
	if k < len(n.writes) {
		// a write that extends the file may be cut off at any byte
		size += int64(reached(int(max(0, n.writes[k].size-size))))
	}
	n.data = make([]byte, size)
	copy(n.data, n.synced)
	for at := int64(0); at < size; at += sector {
		part := n.data[at:min(at+sector, size)]
		for _, w := range n.writes[:reached(len(n.writes))] {
			w.apply(part, at)
		}
	}
}

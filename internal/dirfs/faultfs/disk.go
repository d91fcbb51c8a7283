package faultfs

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"sync"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/leak"
)

// Disk is a disk in memory that loses unsynced content when its power fails, by the strictest
// reading of POSIX:
//
//   - Bytes and length of a file are durable after the Sync of the file. Its name is not.
//   - Names in a directory are durable after the Sync of the directory. The content of its files,
//     and its own name, are not.
//   - Later changes are cached. The cache may be written back at any time, in any order, in part.
//     So each sector of a file, its length and each name in a directory survives independently, in
//     any state since the last Sync. A length may also be between two lengths of the file, and
//     missing bytes are zeros.
//   - Files without a name are lost.
//
// Consequently a rename over an existing name leaves the old file or the new one under that name.
// The old name may survive too, and neither may survive, even within one directory, unless both
// directories were synced. A file system without a journal does all of this. Times always survive,
// but code must not rely on them.
//
// Operations are atomic. A plan interrupts them: New(disk.Process(), plan, clock) crashes at an
// operation, with Partial after half of a write, and the test then calls Kill or PowerFail.
//
// A Disk is safe for concurrent use.
type Disk struct {
	clock clockwork.Clock

	mu        sync.Mutex
	root      *inode
	last      uint64 // the inode number that was given last
	limit     int64
	used      int64
	processes map[*Process]bool // living processes
}

// NewDisk returns an empty disk. Files get their times from clock; nil is the real one.
func NewDisk(clock clockwork.Clock) *Disk {
	if clock == nil {
		clock = clockwork.NewRealClock()
	}
	d := &Disk{clock: clock, processes: make(map[*Process]bool)}
	d.root = d.newInode(true)
	d.root.links = 1
	return d
}

// SetLimit bounds the total length of all files; zero is unbounded. Existing files stay.
func (d *Disk) SetLimit(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = bytes
}

// Used returns the total length of all files, including open files without a name.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// available returns the part of n more bytes that fits.
func (d *Disk) available(n int64) int64 {
	if d.limit == 0 {
		return n
	}
	return max(0, min(n, d.limit-d.used))
}

// Process returns a view of the disk for a new process.
func (d *Disk) Process() *Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &Process{disk: d, open: make(map[opened]bool)}
	d.processes[p] = true
	return p
}

// PowerFail kills all processes, and keeps the synced content and the other content that s picks.
func (d *Disk) PowerFail(s Survival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.processes {
		p.die()
	}
	d.used = 0
	d.restore(d.root, s, make(map[*inode]bool))
}

// restore sets n and everything below it to the content after a power failure.
func (d *Disk) restore(n *inode, s Survival, seen map[*inode]bool) {
	seen[n] = true
	n.links = 1
	n.survive(s)
	d.used += int64(len(n.data))
	for _, name := range n.list() {
		c := n.names[name]
		switch {
		case !seen[c]:
			c.parent = n
			d.restore(c, s, seen)
		case c.isDir(): // a rename left both names; keep one, like a file system check
			delete(n.names, name)
			delete(n.syncedNames, name)
		default:
			c.links++
		}
	}
}

// Survival decides which unsynced content survives a power failure.
type Survival struct {
	// draw is called for each file and directory, with its inode number. It returns the number of
	// bytes of a file that survive or perish together, and a function that returns how many of n
	// changes, oldest first, survive at a place.
	draw func(inode uint64) (sector int64, reached func(n int) int)
}

// KeepSynced keeps only synced content.
func KeepSynced() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(int) int { return 0 } }}
}

// KeepAll keeps all content, as if the cache had just been written back.
func KeepAll() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(n int) int { return n } }}
}

// KeepSome draws the surviving content from seed: of each file and directory nothing, all, or a
// part. Equal operations give equal results, regardless of names.
func KeepSome(seed uint64) Survival {
	return Survival{func(inode uint64) (int64, func(int) int) {
		rng := rand.New(rand.NewPCG(seed, inode))
		sector := []int64{512, 4096}[rng.IntN(2)]
		switch rng.IntN(4) {
		case 0:
			return sector, func(int) int { return 0 }
		case 1:
			return sector, func(n int) int { return n }
		}
		return sector, func(n int) int { return rng.IntN(n + 1) }
	}}
}

// Process is the view of a Disk from one process.
type Process struct {
	disk *Disk
	dead bool // guarded by disk.mu
	open map[opened]bool
}

// opened is an open file or directory, which the system closes when its process dies.
type opened interface{ release() }

func (p *Process) addOpen(o opened) {
	p.open[o] = true
	leak.Add(leak.Handles, 1)
}

func (p *Process) drop(o opened) {
	delete(p.open, o)
	o.release()
	leak.Add(leak.Handles, -1)
}

// Kill ends the process like SIGKILL. Its files are closed, its locks are released, and written
// content stays. Later operations except Close fail with ErrCrashed.
func (p *Process) Kill() {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	p.die()
}

func (p *Process) die() {
	p.dead = true
	delete(p.disk.processes, p)
	for o := range p.open {
		p.drop(o)
	}
}

// OpenDir opens a directory by its path from the root.
func (p *Process) OpenDir(name string) (dirfs.Dir, error) {
	d := &diskDir{process: p, path: name}
	err := p.do("open", name, func() error {
		// A path is relative to the root with and without a leading slash.
		clean := path.Clean("./" + path.Clean("/"+name))
		n, err := p.disk.root.find(clean)
		if err != nil {
			return err
		}
		d.inode = n
		if err = n.mustBeDir(); err == nil {
			p.addOpen(d)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// SyncParents implements dirfs.FS.
func (p *Process) SyncParents(name string) error {
	return p.do("sync", name, func() error {
		n, err := p.disk.root.find(path.Clean("./" + path.Clean("/"+name)))
		if err != nil {
			return err
		}
		for n = n.parent; n != nil; n = n.parent {
			n.sync()
		}
		return nil
	})
}

// do runs an operation, unless the process is dead.
func (p *Process) do(op, name string, run func() error) error {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	err := ErrCrashed
	if !p.dead {
		err = run()
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (p *Process) close(o opened, name string) error {
	err := p.do("close", name, func() error {
		if !p.open[o] {
			return unix.EBADF
		}
		p.drop(o)
		return nil
	})
	if errors.Is(err, ErrCrashed) {
		return nil
	}
	return err
}

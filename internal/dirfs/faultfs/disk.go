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

// Disk is a simulated disk that loses unsynced content at a power failure, to the full extent that
// POSIX permits:
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
// Therefore after a rename over an existing name, the name refers to the old or the new file. The
// source name may also still exist, or both names may be missing, even within one directory, unless
// both directories were synced. File systems without a journal behave like this. Times always
// survive, but code must not rely on this.
//
// Operations are atomic. To interrupt one, use New(disk.Process(), plan, clock) with a plan that
// crashes at an operation, or stops a write in the middle with Partial. Then call Kill or
// PowerFail.
//
// A Disk is safe for concurrent use.
type Disk struct {
	clock clockwork.Clock

	mu        sync.Mutex
	root      *inode
	last      uint64 // last assigned inode number
	limit     int64
	used      int64
	processes map[*Process]bool // running processes
}

// NewDisk returns an empty disk. clock provides file times. Nil: the system clock.
func NewDisk(clock clockwork.Clock) *Disk {
	if clock == nil {
		clock = clockwork.NewRealClock()
	}
	d := &Disk{clock: clock, processes: make(map[*Process]bool)}
	d.root = d.newInode(true)
	d.root.links = 1
	return d
}

// SetLimit limits the total length of all files; 0 removes the limit. Existing files are kept.
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

// available returns how many of n additional bytes fit.
func (d *Disk) available(n int64) int64 {
	if d.limit == 0 {
		return n
	}
	return max(0, min(n, d.limit-d.used))
}

// Process returns a new process that uses the disk.
func (d *Disk) Process() *Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &Process{disk: d, open: make(map[opened]bool)}
	d.processes[p] = true
	return p
}

// PowerFail kills all processes. It keeps the synced content, and the unsynced content that s
// selects.
func (d *Disk) PowerFail(s Survival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.processes {
		p.die()
	}
	d.used = 0
	d.restore(d.root, s, make(map[*inode]bool))
}

// restore sets n and all files below it to their state after a power failure.
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
		// an unsynced rename left two names of a directory; keep one, as a file system check does
		case c.isDir():
			delete(n.names, name)
			delete(n.syncedNames, name)
		default:
			c.links++
		}
	}
}

// Survival selects the unsynced content that survives a power failure.
type Survival struct {
	// draw is called for each file and directory. It returns a sector size and a function. The
	// bytes of a sector survive or are lost together. For a sector or name with n unsynced changes,
	// the function reached returns how many of them survive, oldest first.
	draw func(inode uint64) (sector int64, reached func(n int) int)
}

// KeepSynced keeps only synced content.
func KeepSynced() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(int) int { return 0 } }}
}

// KeepAll keeps all content, as if the cache had been written back before the failure.
func KeepAll() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(n int) int { return n } }}
}

// KeepSome selects the surviving content of each file and directory at random: none, all, or a
// part. The result depends only on seed and on the sequence of operations, not on names.
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

// Process is a process that uses a Disk.
type Process struct {
	disk *Disk
	dead bool // guarded by disk.mu
	open map[opened]bool
}

// opened is an open file or directory. It is closed when its process dies.
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

// Kill ends the process as SIGKILL does. Its files are closed and its locks are released. Written
// content is kept. Later operations except Close fail with ErrCrashed.
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

// OpenDir opens a directory by its path from the root of the disk.
func (p *Process) OpenDir(name string) (dirfs.Dir, error) {
	d := &diskDir{process: p, path: name}
	err := p.do("open", name, func() error {
		// The leading slash is optional.
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

// do runs an operation unless the process is dead.
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

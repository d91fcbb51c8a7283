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

// Disk is a disk in memory that loses what was not synced when its power fails, by the strictest reading of POSIX:
//
//   - Bytes and length of a file are durable as of the Sync of that file, which says nothing of its name.
//   - Names in a directory are durable as of the Sync of that directory, which says nothing of what the files contain, nor of
//     the directory's own name.
//   - What happened since is cached, and the cache may be written back at any time, in any order, in part. So each sector
//     of a file, its length and each name in a directory comes back, apart from all others, as it was at any moment since
//     the last Sync. A length may also lie between two that the file had, and bytes that never arrived are zeros.
//   - What has no name then is gone.
//
// It follows that a rename over an existing name leaves the old file or the new one under it; that the old name may survive
// beside it; and that neither may, even within one directory, unless both directories were synced. A file system without a
// journal does all of this. Times outlive everything: nobody may rely on them, and tests need not.
//
// Operations are atomic. A kill or a power failure in the midst of one is made by a plan: New(disk.Process(), plan, clock)
// crashes at it, with Partial after half of a write, and then Kill or PowerFail is called.
//
// A Disk is safe for concurrent use.
type Disk struct {
	clock clockwork.Clock

	mu        sync.Mutex
	root      *inode
	last      uint64 // the inode number that was given last
	limit     int64
	used      int64
	processes map[*Process]bool // those that live
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

// SetLimit bounds the lengths of all files together; zero, as in the beginning, is unbounded. What is there already stays.
func (d *Disk) SetLimit(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = bytes
}

// Used returns the length of all files together, of those without a name as well while somebody has them open.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// room returns how many of n more bytes there is room for.
func (d *Disk) room(n int64) int64 {
	if d.limit == 0 {
		return n
	}
	return max(0, min(n, d.limit-d.used))
}

// Process returns the disk as a process sees it that starts now.
func (d *Disk) Process() *Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &Process{disk: d, held: make(map[opened]bool)}
	d.processes[p] = true
	return p
}

// PowerFail kills all processes, and leaves on the disk what was synced and what else s picks. Processes that start later
// find it like that.
func (d *Disk) PowerFail(s Survival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.processes {
		p.die()
	}
	d.used = 0
	d.settle(d.root, s, make(map[*inode]bool))
}

// settle makes n, and what can be reached from it, what a power failure leaves.
func (d *Disk) settle(n *inode, s Survival, seen map[*inode]bool) {
	seen[n] = true
	n.links = 1
	n.survive(s)
	d.used += int64(len(n.data))
	for _, name := range n.list() {
		c := n.names[name]
		switch {
		case !seen[c]:
			c.parent = n
			d.settle(c, s, seen)
		case c.isDir(): // a rename left both names; as the check of a file system does, keep one
			delete(n.names, name)
			delete(n.syncedNames, name)
		default:
			c.links++
		}
	}
}

// Survival says what outlives a power failure of what was not synced.
type Survival struct {
	// draw is called for each file and directory, with its inode number. It returns how many bytes of a file survive or
	// perish together, and what decides how many of n changes, the oldest first, have reached a place.
	draw func(inode uint64) (sector int64, reached func(n int) int)
}

// KeepSynced lets survive what was synced and nothing else.
func KeepSynced() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(int) int { return 0 } }}
}

// KeepAll lets survive everything, as if the cache had been written back just before.
func KeepAll() Survival {
	return Survival{func(uint64) (int64, func(int) int) { return 4096, func(n int) int { return n } }}
}

// KeepSome draws from seed what survives: of each file and directory nothing, all, or some. After the same operations it is
// the same, whatever the names.
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

// Process is a Disk as one process sees it.
type Process struct {
	disk *Disk
	dead bool // guarded by disk.mu, as all is
	held map[opened]bool
}

// opened is what the system closes when a process dies.
type opened interface{ release() }

func (p *Process) hold(o opened) {
	p.held[o] = true
	leak.Add(leak.Handles, 1)
}

func (p *Process) drop(o opened) {
	delete(p.held, o)
	o.release()
	leak.Add(leak.Handles, -1)
}

// Kill ends the process as SIGKILL does: its files are closed, its locks released, and what it has written stays. All that
// it tries later fails with ErrCrashed, but for Close.
func (p *Process) Kill() {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	p.die()
}

func (p *Process) die() {
	p.dead = true
	delete(p.disk.processes, p)
	for o := range p.held {
		p.drop(o)
	}
}

// OpenDir opens a directory by its path from the root.
func (p *Process) OpenDir(name string) (dirfs.Dir, error) {
	d := &diskDir{process: p, path: name}
	err := p.do("open", name, func() error {
		// A path is relative to the root whether it begins with a slash or not.
		clean := path.Clean("./" + path.Clean("/"+name))
		n, err := p.disk.root.find(clean)
		if err != nil {
			return err
		}
		d.inode = n
		if err = n.mustBeDir(); err == nil {
			p.hold(d)
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
		if !p.held[o] {
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

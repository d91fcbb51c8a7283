package faultfs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// diskDir is an open directory of a Process.
type diskDir struct {
	process *Process
	inode   *inode
	path    string
}

// do calls run with the folder that contains name and the last part of name.
func (d *diskDir) do(op, name string, run func(folder *inode, base string) error) error {
	return d.process.do(op, d.path+"/"+name, func() error {
		if !d.process.open[d] {
			return unix.EBADF
		}
		folder, base, err := d.inode.walk(name)
		if err != nil {
			return err
		}
		return run(folder, base)
	})
}

// at calls run with the inode of name.
func (d *diskDir) at(op, name string, run func(n *inode) error) error {
	return d.do(op, name, func(folder *inode, base string) error {
		n, err := folder.find(base)
		if err != nil {
			return err
		}
		return run(n)
	})
}

// knownFlags are the flags that the disk implements.
const knownFlags = unix.O_ACCMODE | os.O_CREATE | os.O_EXCL | os.O_TRUNC | unix.O_DIRECTORY

func (d *diskDir) Open(name string, flag int) (dirfs.File, error) {
	f := &diskFile{process: d.process, path: d.path + "/" + name, flag: flag}
	err := d.do("open", name, func(folder *inode, base string) (err error) {
		if f.inode, err = d.process.disk.openInode(folder, base, flag); err == nil {
			f.inode.opens++
			d.process.addOpen(f)
		}
		return err
	})
	if errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("%w: %w", dirfs.ErrIrregular, err)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *Disk) openInode(folder *inode, base string, flag int) (*inode, error) {
	create, directory := flag&os.O_CREATE != 0, flag&unix.O_DIRECTORY != 0
	if flag&^knownFlags != 0 || create && directory {
		return nil, unix.EINVAL
	}
	n, err := folder.find(base)
	switch {
	case errors.Is(err, unix.ENOENT) && create && folder.links > 0:
		n = d.newInode(false)
		d.set(folder, base, n)
		return n, nil
	case err != nil:
		return nil, err
	case create && flag&os.O_EXCL != 0:
		return nil, unix.EEXIST
	case directory && !n.isDir():
		return nil, unix.ENOTDIR
	case n.isDir() && (!directory || flag&unix.O_ACCMODE != os.O_RDONLY || flag&os.O_TRUNC != 0):
		return nil, unix.EISDIR
	}
	if flag&os.O_TRUNC != 0 && len(n.data) > 0 {
		d.change(n, write{})
	}
	return n, nil
}

func (d *diskDir) Stat(name string) (i dirfs.Info, err error) {
	err = d.at("stat", name, func(n *inode) error {
		i = n.info()
		return nil
	})
	return i, err
}

func (d *diskDir) ReadDir(name string) (names []string, err error) {
	err = d.at("readdir", name, func(n *inode) error {
		names = n.list()
		return n.mustBeDir()
	})
	return names, err
}

func (d *diskDir) Mkdir(name string) error {
	return d.do("mkdir", name, func(folder *inode, base string) error {
		_, err := folder.find(base)
		switch {
		case err == nil:
			return unix.EEXIST
		case folder.links == 0: // the folder was removed
			return unix.ENOENT
		}
		disk := d.process.disk
		disk.set(folder, base, disk.newInode(true))
		return nil
	})
}

func (d *diskDir) Rename(oldname, newname string, replace bool) error {
	return d.do("rename", oldname, func(from *inode, oldbase string) error {
		to, newbase, err := d.inode.walk(newname)
		if err != nil {
			return err
		}
		n, err := from.find(oldbase)
		if err != nil {
			return err
		}
		if to.names[newbase] != nil && !replace {
			return unix.EEXIST
		}
		return d.process.disk.rename(from, oldbase, n, to, newbase)
	})
}

func (d *Disk) rename(from *inode, oldbase string, n *inode, to *inode, newbase string) error {
	if oldbase == "." || newbase == "." {
		return unix.EBUSY
	}
	for p := to; n.isDir() && p != nil; p = p.parent {
		if p == n {
			return unix.EINVAL // a folder cannot be moved into itself
		}
	}
	if over := to.names[newbase]; over != nil {
		switch {
		case over == n: // both names are links to one file: POSIX requires no change
			return nil
		case n.isDir() && !over.isDir():
			return unix.ENOTDIR
		case !n.isDir() && over.isDir():
			return unix.EISDIR
		case len(over.names) > 0:
			return unix.ENOTEMPTY
		}
	}
	d.set(to, newbase, n)
	d.set(from, oldbase, nil)
	return nil
}

func (d *diskDir) Remove(name string) error {
	return d.do("remove", name, func(folder *inode, base string) error {
		n, err := folder.find(base)
		switch {
		case err != nil:
			return err
		case base == ".":
			return unix.EINVAL
		case len(n.names) > 0:
			return unix.ENOTEMPTY
		}
		d.process.disk.set(folder, base, nil)
		return nil
	})
}

func (d *diskDir) SetTime(name string, t time.Time) error {
	return d.at("settime", name, func(n *inode) error {
		n.modified = t
		return nil
	})
}

func (d *diskDir) release() {}

// Close does nothing for a dead process, because its files are already closed.
func (d *diskDir) Close() error { return d.process.close(d, d.path) }

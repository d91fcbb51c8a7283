package dirfs

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxFolders is the maximum number of folders that a directory keeps open.
	maxFolders = 300
	// keptShare is the fraction of the process's limit on descriptors (RLIMIT_NOFILE) that kept
	// folders may use: one part in keptShare. The program needs the rest.
	keptShare = 8
)

// folder is an open direct subfolder of a directory.
type folder struct {
	fd   int
	uses int  // operations in progress that use fd; guarded by keeper.mu
	kept bool // stays open when unused; guarded by keeper.mu
}

// keeper limits the number of folders that all directories of this process keep open. It is global
// because descriptors are a resource of the process.
var keeper = folderKeeper{dirs: make(map[*osDir]struct{})}

type folderKeeper struct {
	mu   sync.Mutex
	dirs map[*osDir]struct{} // open directories
	kept int                 // number of folders in the maps of dirs
}

// open returns a directory for a descriptor.
func (k *folderKeeper) open(fd int, path string) *osDir {
	d := &osDir{fd: fd, path: path, kept: make(map[string]*folder)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirs[d] = struct{}{}
	return d
}

// mostKept returns the maximum number of kept folders for the current limit on descriptors.
func mostKept() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur/keptShare, 1<<20))
}

// closeIdle closes the kept folders that no operation uses. It reports whether it closed any.
func (k *folderKeeper) closeIdle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.kept
	for d := range k.dirs {
		for name, f := range d.kept {
			if f.uses == 0 {
				k.drop(d, name, f)
				_ = unix.Close(f.fd)
			}
		}
	}
	return k.kept < before
}

// drop removes a folder from d.kept. The caller holds k.mu.
func (k *folderKeeper) drop(d *osDir, name string, f *folder) {
	delete(d.kept, name)
	f.kept = false
	k.kept--
}

// acquire opens a direct subfolder of the directory, or returns one that is kept open. The caller
// must call release.
func (d *osDir) acquire(name string) (*folder, error) {
	keeper.mu.Lock()
	f := d.kept[name]
	if f != nil {
		f.uses++
	}
	keeper.mu.Unlock()
	if f != nil {
		return f, nil
	}
	fd, err := openFolder(d.fd, name)
	if err != nil {
		return nil, err
	}
	f, most := &folder{fd: fd, uses: 1}, mostKept()
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	if d.kept[name] == nil && len(d.kept) < maxFolders && keeper.kept < most {
		f.kept = true
		d.kept[name] = f
		keeper.kept++
	}
	return f, nil
}

// release ends a use of f, and closes it if it is not kept.
func (d *osDir) release(f *folder) {
	keeper.mu.Lock()
	f.uses--
	unused := f.uses == 0 && !f.kept
	keeper.mu.Unlock()
	if unused {
		_ = unix.Close(f.fd)
	}
}

// forget checks whether a folder was removed. If so, it is no longer kept, and forget returns true.
// The caller has acquired f.
func (d *osDir) forget(name string, f *folder) bool {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err == nil && st.Nlink > 0 {
		return false
	}
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	if f.kept {
		keeper.drop(d, name, f)
	}
	return true
}

func (d *osDir) Close() error {
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	for name, f := range d.kept {
		keeper.drop(d, name, f)
		_ = unix.Close(f.fd)
	}
	delete(keeper.dirs, d)
	return unix.Close(d.fd)
}

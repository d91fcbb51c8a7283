package file

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/owner"
)

const sessionLock = "lock"

// session is a tier's folder for temporary files in one directory. While the session's lock is
// held, other processes do not remove the folder.
type session struct {
	dir  dirfs.Dir
	name string
	lock dirfs.File
	next atomic.Uint64
}

// openSession creates the session's folder. The caller holds the directory's lock. Otherwise
// another process could remove the folder before its lock is held.
func openSession(d dirfs.Dir) (_ *session, err error) {
	if err := blockdir.Mkdir(d, tmpName); err != nil {
		return nil, err
	}
	s := &session{dir: d, name: tmpName + "/" + blockdir.NewID()}
	if err := d.Mkdir(s.name); err != nil {
		return nil, err
	}
	s.lock, err = d.Open(s.name+"/"+sessionLock, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, errors.Join(err, d.Remove(s.name))
	}
	if err := s.lock.Lock(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// temp returns a new name for a temporary file.
func (s *session) temp() string {
	buf := make([]byte, 0, 64)
	buf = append(append(buf, s.name...), '/')
	return string(strconv.AppendUint(buf, s.next.Add(1), 16))
}

// close releases the lock and then removes the folder, with the lock file last. On NFS a file that
// is removed while open keeps a name, and the folder could not be removed.
func (s *session) close() error {
	err := s.lock.Close()
	_, _, rerr := removeSession(s.dir, s.name)
	return errors.Join(err, rerr)
}

// sweep removes the sessions of ended processes. It returns the number of removed temporary files,
// and the number of files that it could not remove. The directory is usable in spite of the latter.
// The caller holds the directory's lock.
func sweep(d dirfs.Dir) (files, left int, err error) {
	sessions, err := blockdir.Names(d, tmpName)
	if err != nil {
		return 0, 0, fmt.Errorf("sweep the temporary files of sessions that have ended: %w", err)
	}
	for _, name := range sessions {
		n, l, err := sweepSession(d, tmpName+"/"+name)
		files += n
		if left += l; err != nil && l == 0 {
			left++
		}
	}
	return files, left, nil
}

func sweepSession(d dirfs.Dir, path string) (files, left int, err error) {
	lock, live, err := probeSession(d, path)
	if live || err != nil {
		return 0, 0, err
	}
	if lock != nil {
		// No other process can take the lock of an ended session. On NFS an open file could not be
		// removed.
		if err := lock.Close(); err != nil {
			return 0, 0, err
		}
	}
	return removeSession(d, path)
}

// probeSession reports whether the session's owner is running. If not, it returns the locked lock
// file, or nil if there is none. A lock that is not a regular file has no owner.
func probeSession(d dirfs.Dir, path string) (lock dirfs.File, live bool, err error) {
	lock, err = blockdir.OpenLock(d, path+"/"+sessionLock)
	if blockdir.Gone(err) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, dirfs.ErrIrregular) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if err := lock.Lock(); err != nil {
		if errors.Is(err, errdefs.ErrBusy) {
			return nil, true, lock.Close()
		}
		return nil, false, errors.Join(err, lock.Close())
	}
	return lock, false, nil
}

// removeSession removes a session's folder. It returns the number of removed files, and the number
// of files that it could not remove. Other processes may remove the folder concurrently.
func removeSession(d dirfs.Dir, path string) (files, left int, err error) {
	info, err := d.Stat(path)
	if blockdir.Gone(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 1, err
	}
	if !info.Type.IsDir() {
		if err := blockdir.Remove(d, path); err != nil {
			return 0, 1, err
		}
		return 1, 0, nil
	}
	all, err := blockdir.Names(d, path)
	errs := []error{err}
	for _, name := range all {
		if name == sessionLock {
			continue
		}
		if err := blockdir.Remove(d, path+"/"+name); err != nil {
			errs, left = append(errs, err), left+1
			continue
		}
		if name != owner.Name {
			files++
		}
	}
	if left > 0 {
		return files, left, errors.Join(errs...)
	}
	return files, 0, errors.Join(append(errs, blockdir.Remove(d, path+"/"+sessionLock), blockdir.Remove(d, path))...)
}

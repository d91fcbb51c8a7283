package file

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

const sessionLock = "lock"

// session is a tier's own folder for temporary files in one directory. As long as its lock is held, nobody sweeps it.
type session struct {
	fs   FS
	path string
	lock File
	next atomic.Uint64
}

func newSessionID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// openSession makes the session's folder. The caller holds the directory's lock, so that nobody takes the folder for
// one whose owner has died before its own lock is held.
func openSession(fsys FS, root string) (_ *session, err error) {
	if err := mkdir(fsys, root+"/"+tmpName); err != nil {
		return nil, err
	}
	s := &session{fs: fsys, path: root + "/" + tmpName + "/" + newSessionID()}
	if err := fsys.Mkdir(s.path); err != nil {
		return nil, err
	}
	s.lock, err = fsys.Open(s.path+"/"+sessionLock, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, errors.Join(err, fsys.Remove(s.path))
	}
	if err := s.lock.Lock(false); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// temp returns a name for a temporary file that nobody has used.
func (s *session) temp() string {
	buf := make([]byte, 0, 128)
	buf = append(append(buf, s.path...), '/')
	return string(strconv.AppendUint(buf, s.next.Add(1), 16))
}

// close removes the folder. The lock goes last: without its file the folder counts as a dead session's.
func (s *session) close() error {
	_, err := removeSession(s.fs, s.path)
	return errors.Join(err, s.lock.Close())
}

// sweep removes the folders of sessions whose owners have died and returns the number of temporary files in them. The
// caller holds the directory's lock.
func sweep(fsys FS, root string) (files int, err error) {
	names, err := fsys.ReadDir(root + "/" + tmpName)
	if err != nil {
		if gone(err) {
			return 0, nil
		}
		return 0, err
	}
	for _, name := range names {
		n, err := sweepSession(fsys, root+"/"+tmpName+"/"+name)
		if err != nil {
			return files, fmt.Errorf("sweep the temporary files of a session that has ended: %w", err)
		}
		files += n
	}
	return files, nil
}

func sweepSession(fsys FS, path string) (files int, err error) {
	lock, live, err := probeSession(fsys, path)
	if live || err != nil {
		return 0, err
	}
	if lock != nil {
		defer func() { err = errors.Join(err, lock.Close()) }()
	}
	return removeSession(fsys, path)
}

// probeSession says whether the session's owner lives. If not, it returns the lock, held, or nil where there is none.
func probeSession(fsys FS, path string) (lock File, live bool, err error) {
	lock, err = fsys.Open(path+"/"+sessionLock, os.O_RDWR)
	if gone(err) || errors.Is(err, unix.ENOTDIR) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if err := lock.Lock(false); err != nil {
		if errors.Is(err, errdefs.ErrBusy) {
			return nil, true, lock.Close()
		}
		return nil, false, errors.Join(err, lock.Close())
	}
	return lock, false, nil
}

// removeSession removes the folder and returns the number of temporary files that were in it. That others remove it at
// the same time does no harm.
func removeSession(fsys FS, path string) (files int, err error) {
	info, err := fsys.Stat(path)
	if gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !info.Dir {
		return 1, remove(fsys, path)
	}
	names, err := fsys.ReadDir(path)
	if err != nil {
		if gone(err) {
			return 0, nil
		}
		return 0, err
	}
	for _, name := range names {
		if name == sessionLock {
			continue
		}
		if err := remove(fsys, path+"/"+name); err != nil {
			return files, err
		}
		files++
	}
	return files, errors.Join(remove(fsys, path+"/"+sessionLock), remove(fsys, path))
}

// remove is FS.Remove that does not mind if the file has gone.
func remove(fsys FS, name string) error {
	if err := fsys.Remove(name); err != nil && !gone(err) {
		return err
	}
	return nil
}

// mkdir is FS.Mkdir that does not mind if the directory is there.
func mkdir(fsys FS, name string) error {
	if err := fsys.Mkdir(name); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

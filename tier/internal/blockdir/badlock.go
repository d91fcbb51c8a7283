package blockdir

import (
	"errors"
	"fmt"
	"os"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// BadLock describes a lock file that is not a regular file, such as a folder, a link or a FIFO,
// which prevents all processes from opening the directory. It returns "" if the lock file is
// regular or missing.
func BadLock(d dirfs.Dir) string {
	info, err := d.Stat(LockName)
	if err != nil || info.Regular() {
		return ""
	}
	return fmt.Sprintf("a %s where the lock file should be: no process can open the directory", info.Kind())
}

// RepairLock removes a lock file that is not a regular file from the directory path. A folder with
// contents is renamed instead. Processes may open the directory meanwhile.
func RepairLock(fsys dirfs.FS, path string) (err error) {
	d, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if BadLock(d) == "" {
		return nil
	}
	// After a rename, the file can be examined and removed while another process creates the lock
	// file.
	aside := LockName + "." + NewID()
	if err := d.Rename(LockName, aside, false); err != nil {
		if Gone(err) {
			return nil
		}
		return err
	}
	info, err := d.Stat(aside)
	switch {
	case err != nil:
		return err
	case info.Regular(): // another process has created the lock file meanwhile
		return d.Rename(aside, LockName, false)
	case info.Type.IsDir():
		if names, err := d.ReadDir(aside); err != nil || len(names) > 0 {
			return err
		}
	}
	return Remove(d, aside)
}

// openLockFile opens the lock file. It creates a missing one.
func openLockFile(d dirfs.Dir) (dirfs.File, error) {
	f, err := d.Open(LockName, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, dirfs.ErrIrregular) {
		return nil, fmt.Errorf("%w; kvlane store verify --repair removes it", err)
	}
	return f, err
}

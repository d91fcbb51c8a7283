package kept

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replace calls fill with a temporary file next to name, and renames it to name if fill returns
// nil. After an error, name is unchanged. If name is a symbolic link, its target is replaced. If
// name is not a regular file, for example a pipe or /dev/null, fill writes to it directly.
func Replace(name string, fill func(io.Writer) error) error {
	path, old, err := resolve(name)
	if err != nil {
		return err
	}
	if old != nil && !old.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(fill(f), f.Close())
	}
	f, err := temporary(path, old)
	if err != nil {
		return err
	}
	if err = fill(f); err == nil {
		err = f.Sync() // without it, a power failure could leave an empty file
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// CheckReplace returns the error that Replace would return before it calls fill, or nil. It does
// not modify name.
func CheckReplace(name string) error {
	path, old, err := resolve(name)
	if err != nil || old != nil && !old.Mode().IsRegular() {
		return err // opening and closing a pipe would send its reader an end of file
	}
	f, err := temporary(path, old)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// resolve follows symbolic links from name. old is nil if path does not exist.
func resolve(name string) (path string, old fs.FileInfo, err error) {
	if path, err = filepath.EvalSymlinks(name); err != nil {
		if _, missing := os.Lstat(name); errors.Is(missing, fs.ErrNotExist) {
			return name, nil, nil
		}
		return "", nil, fmt.Errorf("follow link %s: %w", name, err)
	}
	if old, err = os.Stat(path); err == nil && old.IsDir() {
		err = &fs.PathError{Op: "write", Path: name, Err: syscall.EISDIR}
	}
	return path, old, err
}

// temporary creates an empty file next to path. If old is not nil, the file gets the mode of old,
// and temporary fails if path is not writable.
func temporary(path string, old fs.FileInfo) (*os.File, error) {
	if old != nil {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	name := filepath.Join(filepath.Dir(path), ".kvlane-"+rand.Text())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			p.Path = path // the user's path instead of the temporary one
		}
		return nil, err
	}
	if old != nil {
		if err := f.Chmod(old.Mode().Perm()); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(name))
		}
	}
	return f, nil
}

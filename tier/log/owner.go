package log

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/owner"
)

// Serve lets commands reach o, which owns the tier, by a socket in the directory. Close the server
// before the tier. A read-only tier has none.
func (t *Tier) Serve(o owner.Owner) ([]*owner.Server, error) {
	if t.cfg.ReadOnly {
		return nil, nil
	}
	s, err := owner.Serve(t.dir, ".", o)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", t.cfg.Dir, err)
	}
	return []*owner.Server{s}, nil
}

// Owners connects to the process that has a directory open for writing, if there is one. It returns
// ErrBusy, and names the process, if it does not serve commands.
func Owners(ctx context.Context, path string) (owners []*owner.Client, err error) {
	path = filepath.Clean(path)
	d, err := dirfs.OS().OpenDir(path)
	if err != nil {
		return nil, fmt.Errorf("reach the owner of directory %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if !isOpen(d) {
		return nil, nil
	}
	c, err := owner.Dial(ctx, d, ".", blockdir.Holder(d, blockdir.LockName))
	if err != nil {
		return nil, fmt.Errorf("directory %s: %v: %w", path, err, errdefs.ErrBusy) //nolint:errorlint // its class is ErrBusy
	}
	return []*owner.Client{c}, nil
}

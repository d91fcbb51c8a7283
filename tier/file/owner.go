package file

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/owner"
)

// Serve lets commands reach o, which owns the tier, by a socket in each directory. Each process
// that has a directory open serves its own socket, in its folder of temporary files. Close the
// servers before the tier. A read-only tier has none.
func (t *Tier) Serve(o owner.Owner) (servers []*owner.Server, err error) {
	for _, d := range t.dirs {
		session := d.session.Load()
		if session == nil {
			continue
		}
		s, err := owner.Serve(d, session.name, o)
		if err != nil {
			for _, s := range servers {
				err = errors.Join(err, s.Close(context.Background())) // no operation is running
			}
			return nil, fmt.Errorf("directory %s: %w", d.root, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// Owners connects to the processes of this host that have a directory open for writing, if there
// are any. It returns ErrBusy, and names the process, if one of them does not serve commands.
func Owners(ctx context.Context, path string) (owners []*owner.Client, err error) {
	d, err := openExisting(dirfs.OS(), path)
	if err != nil {
		return nil, fmt.Errorf("reach the owner of %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	sessions, err := blockdir.Names(d, tmpName)
	for _, s := range sessions {
		folder := tmpName + "/" + s
		lock, live, perr := probeSession(d, folder)
		if lock != nil {
			perr = errors.Join(perr, lock.Close())
		}
		if !live {
			err = errors.Join(err, perr)
			continue
		}
		c, derr := owner.Dial(ctx, d, folder, blockdir.Holder(d, folder+"/"+sessionLock))
		if derr != nil {
			err = errors.Join(err, fmt.Errorf("directory %s: %v: %w", d.root, derr, errdefs.ErrBusy)) //nolint:errorlint // its class is ErrBusy
			continue
		}
		owners = append(owners, c)
	}
	if err != nil {
		for _, c := range owners {
			err = errors.Join(err, c.Close())
		}
		return nil, err
	}
	return owners, nil
}

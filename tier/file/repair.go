package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Repair is Verify that also mends: a lost or damaged marker is made anew from the blocks' headers where all of them agree;
// damaged blocks go to blockdir.Quarantine, where as many are kept as there are, until a tier next sets one aside; blocks in another
// folder than their key's are moved there if they are sound and none is there, and else set aside; what dead processes left is
// removed. What is not kvlane's, or of another format version, and what could not be looked at, stays as it is and is in Unrepaired, as is what could not be
// mended. Others may use the directory meanwhile.
func Repair(ctx context.Context, dir string) (Repaired, error) {
	return repair(ctx, dirfs.OS(), dir)
}

func repair(ctx context.Context, fsys dirfs.FS, path string) (r Repaired, err error) {
	v, err := openVerifier(ctx, fsys, path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if err := v.run(ctx); err != nil {
		return r, err
	}
	r.Report = v.report
	if err = blockdir.RepairLock(fsys, path); err == nil {
		err = blockdir.WithLock(ctx, clockwork.NewRealClock(), v, func() error { return v.mend(ctx, &r) })
	}
	if err != nil {
		return r, fmt.Errorf("repair directory %s: %w", v.root, blockdir.WriteError(err))
	}
	// What is left is what a second look finds.
	again, err := verify(ctx, fsys, path, nil)
	r.SetAfter(again)
	return r, err
}

// mend does what can be done about what was found. Failures of single files show when the directory is looked at again.
func (v *verifier) mend(ctx context.Context, r *Repaired) error {
	if v.markerBad && len(v.formats) > 0 {
		if err := blockdir.RepairMarker(v, time.Now(), v.report.Marker); err != nil {
			return err
		}
		r.MarkerMade = true
	}
	for _, b := range v.damaged {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v.setAside(r, b.found, blockName(b.key), b.key, b.info)
	}
	for _, m := range v.misplaced {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v.mendPlace(m, r)
	}
	var err error
	r.SweptFiles, _, err = sweep(v)
	return err
}

func (v *verifier) mendPlace(m misplacedBlock, r *Repaired) {
	from := bucketName(m.folder) + "/" + m.key.String()
	info, bad, err := v.check(from, m.key)
	if err != nil || errors.Is(bad, block.ErrVersion) {
		return
	}
	if bad == nil && blockdir.Mkdir(v, bucketName(m.key[0])) == nil && v.Rename(from, blockName(m.key), false) == nil {
		r.Moved++
		r.Findings[m.found].MovedTo = v.root + "/" + blockName(m.key)
		return
	}
	v.setAside(r, m.found, from, m.key, info)
}

func (v *verifier) setAside(r *Repaired, found int, name string, key block.Key, bad dirfs.Info) {
	if to, err := quarantineFrom(v, name, time.Now(), key, bad); err == nil {
		r.SetAside++
		r.Findings[found].MovedTo = v.root + "/" + to
	}
}

package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Repair verifies a directory like Verify and repairs it. It writes a lost or damaged marker from
// the headers of the blocks if these agree. It moves damaged blocks to quarantine, without a limit
// on their number. It moves intact blocks in a wrong folder to their place, or to quarantine if a
// block is there. It removes files of ended processes. Files not made by kvlane, files of another
// format version, and files that could not be examined stay and are in Unrepaired. Processes may
// use the directory during the call.
//
// progress may be nil. It is called after each block, as by Verify: before the repair, and again
// after it, with the totals so far of both.
func Repair(ctx context.Context, dir string, progress func(blocks, bytes int64)) (Repaired, error) {
	return repair(ctx, dirfs.OS(), dir, progress)
}

func repair(ctx context.Context, fsys dirfs.FS, path string, progress func(blocks, bytes int64)) (r Repaired, err error) {
	v, err := openVerifier(ctx, fsys, path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	v.progress = progress
	if err := v.run(ctx); err != nil {
		return r, err
	}
	r.Report = v.report
	if err = blockdir.RepairLock(fsys, path); err == nil {
		err = blockdir.WithLock(ctx, clockwork.NewRealClock(), v, func() error { return v.repair(ctx, &r) })
	}
	if err != nil {
		return r, fmt.Errorf("repair directory %s: %w", v.root, blockdir.WriteError(err))
	}
	// The second verification finds the remaining problems.
	after, err := verify(ctx, fsys, path, r.Again(progress))
	r.SetAfter(after)
	return r, err
}

// repair repairs the findings. It ignores errors of single files, because the next verification
// finds them.
func (v *verifier) repair(ctx context.Context, r *Repaired) error {
	if v.markerBad && len(v.formats) > 0 {
		if err := blockdir.RepairMarker(v, time.Now(), v.report.Marker); err != nil {
			return err
		}
		r.MarkerMade = true
	}
	v.removals = blockdir.NewRemovals(v, 0)
	defer v.removals.Flush()
	for _, b := range v.damaged {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v.setAside(r, b.found, blockName(b.key), b.key, b.info)
	}
	// Write a damaged list again, without the pins of damaged blocks.
	if _, err := blockdir.ChangePins(v, v.formats, func(set blockdir.PinSet) ([]block.Key, error) {
		for _, b := range v.damaged {
			delete(set, b.key)
		}
		return nil, nil
	}); err != nil {
		return err
	}
	for _, m := range v.misplaced {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v.repairPlace(m, r)
	}
	var err error
	r.SweptFiles, _, err = sweep(v)
	return err
}

func (v *verifier) repairPlace(m misplacedBlock, r *Repaired) {
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
		v.removals.Add(time.Now(), key, tier.CauseDamage)
	}
}

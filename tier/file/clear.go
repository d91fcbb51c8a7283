package file

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Clear removes files that are no blocks from the directory: those that were set aside, and those that kvlane has not made, as
// Verify's Foreign findings have them. A sound block stays, wherever it lies, while its own place has none: a tier that has the
// directory open keeps no more than its Config.QuarantineMax in quarantine all the same. Others may use the directory meanwhile.
// ErrInvalid where u names another file, and nothing is removed then; ErrNotFound where it is no directory of blocks, ErrCorrupt or
// ErrMismatch where its marker cannot be read.
func Clear(ctx context.Context, dir string, u Unwanted) (Cleared, error) {
	return clearOf(ctx, dirfs.OS(), dir, u)
}

func clearOf(ctx context.Context, fsys dirfs.FS, path string, u Unwanted) (c Cleared, err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return c, fmt.Errorf("clear %w", err)
	}
	v := &verifier{Dir: d.Dir, root: d.root, formats: d.formats, namesOnly: true}
	defer func() { err = errors.Join(err, v.Close()) }()
	if err = v.run(ctx); err == nil {
		c, err = blockdir.Clear(ctx, v, v.root, blockdir.Blocks{Formats: v.formats, Place: blockName}, v.report.Findings, u)
	}
	if err != nil {
		return c, fmt.Errorf("clear directory %s: %w", d.root, err)
	}
	return c, nil
}

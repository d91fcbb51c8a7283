package file

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Clear removes files that are not blocks from the directory: quarantined files, and files not made
// by kvlane (Foreign findings of Verify). An intact block stays, even in quarantine, unless the
// file in its proper place is intact too. Processes may use the directory during the call; a tier
// keeps at most Config.QuarantineMax files in quarantine. If u names another kind of file, Clear
// returns ErrInvalid and removes nothing. It returns ErrNotFound if this is not a directory of
// blocks, and ErrCorrupt or ErrMismatch if the marker cannot be read.
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

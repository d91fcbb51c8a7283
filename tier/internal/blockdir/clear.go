package blockdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Unwanted selects files of a directory that are no blocks.
type Unwanted struct {
	Quarantine bool     // all that were set aside
	Foreign    bool     // all that kvlane has not made
	Names      []string // some of either, as Report.Findings have them, or relative to the directory
}

// Cleared says what was removed.
type Cleared struct {
	Removed []string // paths
	Bytes   int64    // of them
	Left    []Finding
}

// Clear removes files of directory d, whose path is root: those of the quarantine, and of foreign, the findings about what kvlane has not
// made. A sound block stays wherever it lies, even in quarantine: a tier that meets another file there than the damaged one gives it back. What
// stays though it was asked for is in Left. Names that are neither are ErrInvalid, before anything is removed.
func Clear(ctx context.Context, d dirfs.Dir, root string, formats block.Formats, foreign []Finding, u Unwanted) (c Cleared, err error) {
	quarantined, err := Names(d, Quarantine)
	if err != nil {
		return c, err
	}
	can := map[string]bool{} // what may be removed, and whether that is asked for
	for _, n := range quarantined {
		_, _, ours := setAsideAt(n)
		can[Quarantine+"/"+n] = ours && u.Quarantine || !ours && u.Foreign
	}
	for _, f := range foreign {
		if name, below := strings.CutPrefix(f.Path, root+"/"); below && f.Problem == Foreign {
			can[name] = u.Foreign
		}
	}
	for _, given := range u.Names {
		name := strings.TrimPrefix(path.Clean(given), root+"/")
		if _, ok := can[name]; !ok {
			return c, fmt.Errorf("%q is neither in quarantine nor a file that verifying finds foreign, and stays: %w", given, errdefs.ErrInvalid)
		}
		can[name] = true
	}
	buf := make([]byte, formats.MaxImageBytes())
	for _, name := range slices.Sorted(maps.Keys(can)) {
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		if can[name] {
			c.remove(d, root, name, formats, buf)
		}
	}
	return c, nil
}

func (c *Cleared) remove(d dirfs.Dir, root, name string, formats block.Formats, buf []byte) {
	at := root + "/" + name
	leave := func(format string, args ...any) {
		c.Left = append(c.Left, Finding{Path: at, Problem: Foreign, Detail: fmt.Sprintf(format, args...)})
	}
	info, err := d.Stat(name)
	if err == nil && info.Regular() {
		var sound bool
		if sound, err = soundImage(d, name, info, formats, buf); sound {
			leave("a sound block of this directory: it stays; move it to its folder, or remove it by hand")
			return
		}
	}
	if err == nil {
		err = d.Remove(name)
	}
	switch {
	case Gone(err):
		return
	case err != nil && info.Type.IsDir():
		leave("%v; a folder that is not empty stays: remove it by hand", err)
		return
	case err != nil:
		leave("%v", err)
		return
	}
	c.Removed = append(c.Removed, at)
	if info.Regular() {
		c.Bytes += info.Bytes
	}
}

// soundImage says whether a file, whatever its name, is a block of these formats, every checksum right.
func soundImage(d dirfs.Dir, name string, info dirfs.Info, formats block.Formats, buf []byte) (sound bool, err error) {
	if !slices.ContainsFunc(formats, func(f block.Format) bool { return f.Layout.ImageBytes() == info.Bytes }) {
		return false, nil
	}
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	image := buf[:info.Bytes]
	_, err = io.ReadFull(io.NewSectionReader(f, 0, info.Bytes), image)
	if err = errors.Join(err, f.Close()); err != nil {
		return false, fmt.Errorf("whether it is a sound block: %w", err)
	}
	head, err := block.DecodeHeader(image)
	if err != nil {
		return false, nil
	}
	format, err := formats.Of(head.Key)
	return err == nil && format.Verify(image, head.Key) == nil, nil
}

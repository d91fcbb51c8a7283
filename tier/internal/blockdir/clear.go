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

// Unwanted selects files to remove that are not blocks of a directory.
type Unwanted struct {
	Quarantine bool     // all files in quarantine
	Foreign    bool     // all files not made by kvlane
	Names      []string // single files, named as in Report.Findings or relative to the directory
}

// Cleared is the result of Clear.
type Cleared struct {
	Removed []string // paths
	Bytes   int64    // of the removed files
	Left    []Finding
	// Unasked are files in quarantine that were not made by kvlane. They stay if
	// Unwanted.Quarantine is set and Foreign is not.
	Unasked []string
}

// Blocks describes how a kind of directory stores its blocks.
type Blocks struct {
	Formats block.Formats
	// Place returns the name of a block's file. It is nil if blocks are not separate files.
	Place func(block.Key) string
	// KeepReason examines a file with any name. It returns a reason to keep the file if it may hold
	// blocks of this directory, or "". It may be nil. Whole images are recognized without it.
	KeepReason func(f dirfs.File, bytes int64) (why string, err error)
}

// Clear removes quarantined files and the files in foreign from directory d, whose path is root.
// foreign are the findings about files that were not made by kvlane. An intact block stays, even in
// quarantine, unless the file in its proper place is intact too. Requested files that stay are in
// Left. If u names a file in neither list, Clear returns ErrInvalid and removes nothing.
func Clear(ctx context.Context, d dirfs.Dir, root string, blocks Blocks, foreign []Finding, u Unwanted) (c Cleared, err error) {
	quarantined, err := Quarantined(d)
	if err != nil {
		return c, err
	}
	can := map[string]bool{} // files that may be removed; true if requested
	for _, n := range quarantined {
		_, ours := parseQuarantined(n)
		can[Quarantine+"/"+n] = ours && u.Quarantine || !ours && u.Foreign
	}
	byHand := map[string]string{} // reason by file
	for _, f := range foreign {
		if name, below := strings.CutPrefix(f.Path, root+"/"); below && f.Problem == Foreign {
			can[name] = u.Foreign
			if f.ByHand {
				byHand[name] = f.Detail
			}
		}
	}
	for _, requested := range u.Names {
		name := strings.TrimPrefix(path.Clean(requested), root+"/")
		if _, ok := can[name]; !ok {
			return c, fmt.Errorf("%q is neither quarantined nor foreign, and is kept: %w", requested, errdefs.ErrInvalid)
		}
		can[name] = true
	}
	r := remover{d, root, blocks, make([]byte, blocks.Formats.MaxImageBytes()), &c}
	for _, name := range slices.Sorted(maps.Keys(can)) {
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		if u.Quarantine && !can[name] && strings.HasPrefix(name, Quarantine+"/") {
			c.Unasked = append(c.Unasked, root+"/"+name)
		}
		if why := byHand[name]; can[name] && why != "" {
			r.keep(name, "%s: remove it by hand", why)
		} else if can[name] {
			r.remove(name)
		}
	}
	return c, nil
}

// remover is the state of one call of Clear.
type remover struct {
	dirfs.Dir
	root   string
	blocks Blocks
	buf    []byte
	*Cleared
}

func (r *remover) keep(name, format string, args ...any) {
	r.Left = append(r.Left, Finding{Path: r.root + "/" + name, Problem: Foreign, Detail: fmt.Sprintf(format, args...)})
}

func (r *remover) remove(name string) {
	info, err := r.Stat(name)
	if err == nil && info.Regular() {
		var key block.Key
		var sound bool
		if key, sound, err = r.intactImage(name, info); sound {
			switch {
			case r.blocks.Place == nil:
				r.keep(name, "an intact block of this directory: kept; remove it by hand")
				return
			case !r.inPlace(key):
				r.keep(name, "an intact block that is missing at its place: kept; move it to %s/%s, or remove it by hand", r.root, r.blocks.Place(key))
				return
			}
		}
		if why := ""; err == nil {
			if why, err = r.keepReason(name, info); why != "" {
				r.keep(name, "%s: kept; remove it by hand", why)
				return
			}
		}
	}
	if err == nil {
		err = r.Remove(name)
	}
	switch {
	case Gone(err):
		return
	case err != nil && info.Type.IsDir():
		r.keep(name, "%v; folders that are not empty are kept: remove it by hand", err)
		return
	case err != nil:
		r.keep(name, "%v", err)
		return
	}
	r.Removed = append(r.Removed, r.root+"/"+name)
	if info.Regular() {
		r.Bytes += info.Bytes
	}
}

// keepReason calls Blocks.KeepReason for a file.
func (r *remover) keepReason(name string, info dirfs.Info) (why string, err error) {
	if r.blocks.KeepReason == nil {
		return "", nil
	}
	f, err := r.Open(name, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	why, err = r.blocks.KeepReason(f, info.Bytes)
	if err = errors.Join(err, f.Close()); err != nil {
		err = fmt.Errorf("check whether it holds blocks: %w", err)
	}
	return why, err
}

// inPlace reports whether the file with the proper name of a block is intact. It returns false if
// the file cannot be examined.
func (r *remover) inPlace(key block.Key) bool {
	info, err := r.Stat(r.blocks.Place(key))
	if err != nil || !info.Regular() {
		return false
	}
	has, sound, err := r.intactImage(r.blocks.Place(key), info)
	return err == nil && sound && has == key
}

// intactImage reports whether the file is an intact block of one of the formats, and returns the
// key in its header. It ignores the name of the file.
func (r *remover) intactImage(name string, info dirfs.Info) (key block.Key, sound bool, err error) {
	if !slices.ContainsFunc(r.blocks.Formats, func(f block.Format) bool { return f.Layout.ImageBytes() == info.Bytes }) {
		return key, false, nil
	}
	f, err := r.Open(name, os.O_RDONLY)
	if err != nil {
		return key, false, err
	}
	image := r.buf[:info.Bytes]
	_, err = io.ReadFull(io.NewSectionReader(f, 0, info.Bytes), image)
	if err = errors.Join(err, f.Close()); err != nil {
		return key, false, fmt.Errorf("check whether it is an intact block: %w", err)
	}
	head, err := block.DecodeHeader(image)
	if errors.Is(err, block.ErrVersion) {
		return key, false, fmt.Errorf("check whether it is an intact block: %w", err)
	}
	if err != nil {
		return key, false, nil
	}
	format, err := r.blocks.Formats.Of(head.Key)
	return head.Key, err == nil && format.Verify(image, head.Key) == nil, nil
}

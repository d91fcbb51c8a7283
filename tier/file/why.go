package file

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Answers explains blocks of a directory.
type Answers = blockdir.Answers

// Explain implements tier.Explainer. A block is Ready if its file has the right length, and a header
// with its key; the checksums of the shards are not verified.
func (t *Tier) Explain(ctx context.Context, keys []block.Key, out []tier.Explanation) error {
	if len(keys) != len(out) {
		return fmt.Errorf("explain %d blocks with space for %d: %w", len(keys), len(out), errdefs.ErrInvalid)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	of := make(map[*dir][]int)
	for i, key := range keys {
		d := dirOf(t.dirs, key)
		of[d] = append(of[d], i)
	}
	for d, at := range of {
		open := d.anchor.acquire()
		d.removals.Flush()
		_, err := explain(ctx, open.Dir, d.root, t.formats, keys, at, out)
		open.release()
		if err != nil {
			return t.fail(fmt.Errorf("explain blocks of directory %s: %w", d.root, err))
		}
	}
	for i, key := range keys {
		if _, op := t.locks.State(key); op == usage.Publishing || op == usage.Writing && out[i].State != tier.Ready {
			out[i].State = tier.Filling
		}
	}
	return nil
}

// Why explains the blocks of a directory with the keys that keysOf returns for its marker. It
// changes nothing, needs no Tier, and processes may use the directory during the call. It returns
// ErrNotFound if this is not a directory of blocks, and ErrCorrupt or ErrMismatch if the marker
// cannot be read.
func Why(ctx context.Context, dir string, keysOf func(m *Marker) ([]block.Key, error)) (Answers, error) {
	return why(ctx, dirfs.OS(), dir, keysOf)
}

func why(ctx context.Context, fsys dirfs.FS, path string, keysOf func(m *Marker) ([]block.Key, error)) (a Answers, err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return a, fmt.Errorf("explain blocks of %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	a.Marker = d.marker
	if a.Keys, err = keysOf(&a.Marker); err != nil {
		return a, err
	}
	a.Blocks = make([]tier.Explanation, len(a.Keys))
	at := make([]int, len(a.Keys))
	for i := range at {
		at[i] = i
	}
	l, err := explain(ctx, d.Dir, d.root, d.formats, a.Keys, at, a.Blocks)
	if err != nil {
		return a, fmt.Errorf("explain blocks of directory %s: %w", d.root, err)
	}
	a.Records, a.Damaged = l.Records, l.Damaged
	return a, nil
}

// explain explains the blocks keys[i] of a directory, for the indices i in at.
func explain(ctx context.Context, d dirfs.Dir, root string, formats block.Formats, keys []block.Key, at []int, out []tier.Explanation) (blockdir.RemovalLog, error) {
	for _, i := range at {
		if ctx.Err() != nil {
			return blockdir.RemovalLog{}, context.Cause(ctx)
		}
		out[i] = tier.Explanation{Place: root}
		if err := explainFile(d, formats, keys[i], &out[i]); err != nil {
			return blockdir.RemovalLog{}, err
		}
	}
	return blockdir.ExplainRemovals(d, keys, at, out)
}

func explainFile(d dirfs.Dir, formats block.Formats, key block.Key, e *tier.Explanation) error {
	name := blockName(key)
	info, err := d.Stat(name)
	if blockdir.Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e.State, e.Used, e.Stored = tier.Ready, info.Modified, dirfs.Born(d, name)
	bad := fmt.Errorf("it is a %s", info.Kind())
	if info.Regular() {
		bad = checkHeader(d, name, key, info.Bytes, formats.ImageBytes(key))
	}
	switch {
	case blockdir.Gone(bad):
		*e = tier.Explanation{Place: e.Place}
	case bad != nil:
		e.State, e.Reason = tier.Failed, "its file is no block that this build reads: "+bad.Error()
	}
	return nil
}

// checkHeader returns an error unless the file has the header of a block and the length of its
// image.
func checkHeader(d dirfs.Dir, name string, key block.Key, bytes, image int64) (err error) {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h, err := readHeader(f)
	switch {
	case err != nil:
		return err
	case h.Key != key:
		return fmt.Errorf("it is block %s", h.Key)
	case bytes != image:
		return fmt.Errorf("it has %d bytes, an image %d", bytes, image)
	}
	return nil
}

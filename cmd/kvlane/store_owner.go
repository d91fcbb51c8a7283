package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/owner"
)

// asking returns k with operations that ask the owners of a directory, the processes that have it
// open, if there are any.
func (k keeper) asking(owners func(ctx context.Context, dir string) ([]*owner.Client, error)) keeper {
	alone := k
	k.owners = owners
	k.remove = func(ctx context.Context, dir string, sel file.Selection) (r file.Removed, err error) {
		r, err = alone.remove(ctx, dir, sel)
		if errors.Is(err, errdefs.ErrBusy) {
			err = withOwners(ctx, owners, dir, err, func(all []*owner.Client) error {
				r, err = alone.askRemove(ctx, dir, &sel, all)
				return err
			})
		}
		return r, err
	}
	k.pin = func(ctx context.Context, dir string, sel file.Selection, boundBytes int64) (p file.Pinned, err error) {
		p, err = alone.pin(ctx, dir, sel, boundBytes)
		if errors.Is(err, errdefs.ErrBusy) {
			err = withOwners(ctx, owners, dir, err, func(all []*owner.Client) error {
				p, err = alone.askPins(ctx, dir, &sel, true, all[0].Pin)
				return err
			})
		}
		return p, err
	}
	k.unpin = func(ctx context.Context, dir string, sel file.Selection) (p file.Pinned, err error) {
		p, err = alone.unpin(ctx, dir, sel)
		if errors.Is(err, errdefs.ErrBusy) {
			err = withOwners(ctx, owners, dir, err, func(all []*owner.Client) error {
				p, err = alone.askPins(ctx, dir, &sel, false, all[0].Unpin)
				return err
			})
		}
		return p, err
	}
	return k
}

// withOwners calls f with the owners of a directory. It returns busy, the error of the operation
// without them, if there are none any more.
func withOwners(ctx context.Context, connect func(ctx context.Context, dir string) ([]*owner.Client, error), dir string, busy error, f func(all []*owner.Client) error) (err error) {
	all, err := connect(ctx, dir)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.Close())
		}
	}()
	if len(all) == 0 {
		return busy
	}
	if err := f(all); err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return nil
}

// askRemove removes the selected blocks through all owners, because each may have them in its
// memory. Blocks that are given by keys alone need not be in the directory.
func (k keeper) askRemove(ctx context.Context, dir string, sel *file.Selection, all []*owner.Client) (r file.Removed, err error) {
	keys := sel.Keys
	if keys == nil || sel.Identity != (block.Digest{}) || !sel.Before.IsZero() {
		entries, err := k.selected(ctx, dir, sel)
		if err != nil {
			return r, err
		}
		keys = keysOf(entries)
	}
	found := make(map[block.Key]bool)
	var left []error
	for _, c := range all {
		one, err := c.Remove(ctx, keys)
		if err != nil {
			return r, err
		}
		for _, key := range one.Keys {
			if !found[key] {
				found[key] = true
				r.Keys = append(r.Keys, key)
			}
		}
		r.Bytes = max(r.Bytes, one.Bytes) // usually the first owner removes all
		if one.Left != nil {
			left = append(left, fmt.Errorf("%s: %w", c.Process(), one.Left))
		}
	}
	r.Left = errors.Join(left...)
	return r, nil
}

// askPins pins or unpins the selected blocks through an owner. All owners see the change.
func (k keeper) askPins(ctx context.Context, dir string, sel *file.Selection, pin bool, ask func(ctx context.Context, keys []block.Key) error) (p file.Pinned, err error) {
	entries, err := k.selected(ctx, dir, sel)
	if err != nil {
		return p, err
	}
	var change []block.Key
	for _, e := range entries {
		if e.Pinned != pin {
			change, p.Bytes = append(change, e.Key), p.Bytes+e.Bytes
		}
		if pin || e.Pinned {
			p.Selected = append(p.Selected, e.Key)
		}
	}
	if err := ask(ctx, change); err != nil {
		return file.Pinned{}, err
	}
	p.Keys = change
	in, err := k.inspect(ctx, dir)
	p.Total = in.Pinned
	return p, err
}

// selected lists the selected blocks of a directory.
func (k keeper) selected(ctx context.Context, dir string, sel *file.Selection) (entries []file.Entry, err error) {
	in, err := k.inspect(ctx, dir)
	if err != nil {
		return nil, err
	}
	matches := sel.Matcher(&in.Marker)
	err = k.list(ctx, dir, func(e file.Entry) error {
		if matches(&e) {
			entries = append(entries, e)
		}
		return nil
	})
	return entries, err
}

func keysOf(entries []file.Entry) (keys []block.Key) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

// ownerWhy has the explanations of a process that has a directory open.
type ownerWhy struct {
	Process string            `json:"process"`
	Blocks  []json.RawMessage `json:"blocks,omitempty"` // as Engine.Why, in the order of the keys
	Error   string            `json:"error,omitempty"`

	answers []owner.Answer
}

// askWhy asks the owners of a directory why blocks are stored or not.
func askWhy(ctx context.Context, k keeper, dir string, keys []block.Key) (all []ownerWhy) {
	if k.owners == nil || len(keys) == 0 {
		return nil
	}
	err := withOwners(ctx, k.owners, dir, nil, func(owners []*owner.Client) error {
		for _, c := range owners {
			w := ownerWhy{Process: c.Process()}
			var err error
			if w.answers, err = c.Why(ctx, keys); err != nil {
				w.Error = err.Error()
			}
			for _, a := range w.answers {
				w.Blocks = append(w.Blocks, a.Why)
			}
			all = append(all, w)
		}
		return nil
	})
	if errors.Is(err, errdefs.ErrBusy) {
		all = append(all, ownerWhy{Process: "an owner", Error: err.Error()})
	}
	return all
}

// knows reports whether the owner has one of the blocks, or the reason why it did not store it.
func (w *ownerWhy) knows() bool {
	return slices.ContainsFunc(w.answers, func(a owner.Answer) bool {
		var why struct{ Tiers []struct{ Refused string } } // a part of tier.Why
		if a.Stored || json.Unmarshal(a.Why, &why) != nil {
			return a.Stored
		}
		return slices.ContainsFunc(why.Tiers, func(t struct{ Refused string }) bool { return t.Refused != "" })
	})
}

// text describes the first block that the owner does not find, or the only block.
func (w *ownerWhy) text() string {
	n := 0
	for n < len(w.answers)-1 && w.answers[n].Stored {
		n++
	}
	switch {
	case w.Error != "":
		return "does not answer: " + w.Error
	case len(w.answers) == 1:
		return "the block " + w.answers[0].Text
	}
	return fmt.Sprintf("of %d blocks, block %d %s", len(w.answers), n, w.answers[n].Text)
}

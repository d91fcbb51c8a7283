package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/kept"
)

// DefaultPatience is that of a Cache.
const DefaultPatience = kept.DefaultPatience

// Cache keeps profiles in a directory, one file a key. The zero value keeps them in the user's cache directory, under
// kvlane/profiles. Safe for concurrent use, by several processes too.
type Cache struct {
	Dir string
	// Patience bounds how long to wait for another process that measures; it may be stuck. Zero: DefaultPatience.
	Patience time.Duration
}

func (c Cache) dir() kept.Dir { return kept.Dir{Path: c.Dir, Patience: c.Patience} }

// File returns where the profile of k is kept, whether it is there or not.
func (c Cache) File(k Key) (string, error) { return c.dir().File(k.hash()) }

// Load returns the profile of k. The error wraps ErrNotFound where there is none, ErrCorrupt where the file is damaged
// and ErrMismatch where it is of another key or version.
func (c Cache) Load(k Key) (Profile, error) {
	name, err := c.File(k)
	if err != nil {
		return Profile{}, err
	}
	b, err := c.dir().Read(k.hash(), maxEncoded+1)
	var p Profile
	if err == nil {
		p, err = Decode(b)
	}
	if err == nil && p.Key != k {
		err = fmt.Errorf("it is of %s: %w", p.Key, errdefs.ErrMismatch)
	}
	if err != nil {
		return Profile{}, fmt.Errorf("load profile %s: %w", name, err)
	}
	return p, nil
}

// Store writes p, in place of what there was of its key. Readers see the old file or the new one.
func (c Cache) Store(p Profile) error {
	b, err := json.MarshalIndent(p, "", " ")
	if err == nil {
		err = c.dir().Write(p.Key.hash(), b)
	}
	if err != nil {
		return fmt.Errorf("store profile of %s: %w", p.Key, err)
	}
	return nil
}

// LoadOrMake returns the profile of k, and whether it was loaded. Where it cannot be loaded, make makes it: in one process
// of this host at a time, whatever the key, since two that measure at once measure one another; who had to wait finds
// what the other has stored. A file that is damaged or of another version is replaced. What make returns is stored if
// store agrees. A process that keeps others waiting beyond Patience is ErrBusy.
func (c Cache) LoadOrMake(ctx context.Context, k Key, make func(context.Context) (p Profile, store bool, err error)) (p Profile, loaded bool, err error) {
	return kept.LoadOrMake(ctx, c.dir(), func() (Profile, error) { return c.Load(k) }, func() (Profile, error) { return c.make(ctx, make) })
}

// Make makes and stores a profile as LoadOrMake does, whether there is one or not.
func (c Cache) Make(ctx context.Context, make func(context.Context) (p Profile, store bool, err error)) (p Profile, err error) {
	err = c.dir().Locked(ctx, func() (err error) {
		p, err = c.make(ctx, make)
		return err
	})
	return p, err
}

func (c Cache) make(ctx context.Context, make func(context.Context) (Profile, bool, error)) (Profile, error) {
	p, store, err := make(ctx)
	if err != nil || !store {
		return p, err
	}
	return p, c.Store(p)
}

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/kept"
)

// DefaultPatience is the default of Cache.Patience.
const DefaultPatience = kept.DefaultPatience

// Cache stores profiles in a directory, one file per key. The zero value uses kvlane/profiles in
// the user's cache directory. It is safe for concurrent use, also by several processes.
type Cache struct {
	Dir string
	// Patience bounds the wait for another process that is measuring, which may hang. Zero:
	// DefaultPatience.
	Patience time.Duration
}

func (c Cache) dir() kept.Dir { return kept.Dir{Path: c.Dir, Patience: c.Patience} }

// File returns the path of the profile of k. The file need not exist.
func (c Cache) File(k Key) (string, error) { return c.dir().File(k.hash()) }

// Load returns the profile of k. The error wraps ErrNotFound if there is none, ErrCorrupt if the
// file is damaged, and ErrMismatch if the file has another key or version.
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
		err = fmt.Errorf("it belongs to %s: %w", p.Key, errdefs.ErrMismatch)
	}
	if err != nil {
		return Profile{}, fmt.Errorf("load profile %s: %w", name, err)
	}
	return p, nil
}

// Store writes p and replaces the stored profile of its key. Concurrent readers see the old or the
// new file.
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

// LoadOrMake returns the profile of k, and whether it was loaded. If it cannot be loaded, because
// it is missing, damaged or of another version, LoadOrMake calls make. Only one process of this
// host makes a profile at a time, for any key, because concurrent measurements would disturb each
// other. A process that has waited loads the profile that the other process has stored. The new
// profile is stored if make returns store. The error wraps ErrBusy if the wait exceeds Patience.
func (c Cache) LoadOrMake(ctx context.Context, k Key, make func(context.Context) (p Profile, store bool, err error)) (p Profile, loaded bool, err error) {
	return kept.LoadOrMake(ctx, c.dir(), func() (Profile, error) { return c.Load(k) }, func() (Profile, error) { return c.make(ctx, make) })
}

// Make makes and stores a profile like LoadOrMake, even if one is already stored.
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

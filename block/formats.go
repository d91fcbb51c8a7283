package block

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// MaxGroups bounds the page groups of a store.
const MaxGroups = 64

// Formats holds the formats of all blocks of a store, one for each page group. A page group is a
// set of layers whose KV has one geometry and one page table. Its blocks have a separate identity,
// layout and keys. A model without groups has one format.
//
// If there are several groups, the last bytes of a key are the tag of its group, so that the key
// alone determines the group and the length of its block. Keys of a store with one group have no
// tag.
type Formats []Format

// tagBytes is the length of a tag: the last bytes of the group's identity digest.
const tagBytes = 4

func tagOf(b [32]byte) [tagBytes]byte { return [tagBytes]byte(b[32-tagBytes:]) }

// Validate reports all errors of the formats, joined. They wrap ErrInvalid.
func (fs Formats) Validate() error {
	if len(fs) == 0 || len(fs) > MaxGroups {
		return fmt.Errorf("blocks have %d formats: must be one per page group, 1 to %d: %w", len(fs), MaxGroups, errdefs.ErrInvalid)
	}
	var errs []error
	for i, f := range fs {
		if f.Layout == nil {
			errs = append(errs, fmt.Errorf("the format of page group %d has no layout: %w", i, errdefs.ErrInvalid))
		}
		for j, o := range fs[:i] {
			switch {
			case o.Identity == f.Identity:
				errs = append(errs, fmt.Errorf("page groups %d and %d have the same identity %s: %w", j, i, f.Identity, errdefs.ErrInvalid))
			case tagOf(o.Identity) == tagOf(f.Identity):
				errs = append(errs, fmt.Errorf("page groups %d and %d have keys of the same tag %x: name one of them differently: %w",
					j, i, tagOf(f.Identity), errdefs.ErrInvalid))
			}
		}
	}
	return errors.Join(errs...)
}

// Key returns the key of the group's block with this engine hash. group must be in range.
func (fs Formats) Key(group int, engineHash []byte) Key {
	key := fs[group].Identity.Key(engineHash)
	if len(fs) > 1 {
		tag := tagOf(fs[group].Identity)
		copy(key[KeyBytes-tagBytes:], tag[:])
	}
	return key
}

// Group returns the page group of a key, or -1 if the key belongs to none.
func (fs Formats) Group(key Key) int {
	if len(fs) == 1 {
		return 0
	}
	tag := tagOf(key)
	return slices.IndexFunc(fs, func(f Format) bool { return tagOf(f.Identity) == tag })
}

// Tagged reports whether the key has the tag of a group.
func (fs Formats) Tagged(key Key) bool {
	tag := tagOf(key)
	return slices.ContainsFunc(fs, func(f Format) bool { return tagOf(f.Identity) == tag })
}

// Untagged returns key without the tag of its group.
func (fs Formats) Untagged(key Key) Key {
	if len(fs) > 1 {
		clear(key[KeyBytes-tagBytes:])
	}
	return key
}

// Of returns the format of a key's block. It returns ErrInvalid if the key belongs to no group.
func (fs Formats) Of(key Key) (Format, error) {
	g := fs.Group(key)
	if g < 0 {
		return Format{}, fmt.Errorf("key %s does not belong to one of the %d page groups: %w", key, len(fs), errdefs.ErrInvalid)
	}
	return fs[g], nil
}

// ImageBytes returns the length of the image of a key's block, or zero if the key belongs to no
// group.
func (fs Formats) ImageBytes(key Key) int64 {
	g := fs.Group(key)
	if g < 0 {
		return 0
	}
	return fs[g].Layout.ImageBytes()
}

// MaxImageBytes returns the length of the longest image.
func (fs Formats) MaxImageBytes() int64 {
	var n int64
	for i := range fs {
		n = max(n, fs[i].Layout.ImageBytes())
	}
	return n
}

// MaxHeaderBytes returns the length of the longest header.
func (fs Formats) MaxHeaderBytes() int64 {
	var n int64
	for i := range fs {
		n = max(n, fs[i].Layout.HeaderBytes())
	}
	return n
}

// MaxShards returns the maximum number of shards of a block.
func (fs Formats) MaxShards() int {
	n := 0
	for i := range fs {
		n = max(n, fs[i].Layout.Shards())
	}
	return n
}

// Verify calls Format.Verify with the format of the key's group.
func (fs Formats) Verify(image []byte, key Key) error {
	f, err := fs.Of(key)
	if err != nil {
		return fmt.Errorf("verify block: %w", err)
	}
	return f.Verify(image, key)
}

// VerifyHeader calls Format.VerifyHeader with the format of the key's group.
func (fs Formats) VerifyHeader(image []byte, key Key) error {
	f, err := fs.Of(key)
	if err != nil {
		return fmt.Errorf("verify header: %w", err)
	}
	return f.VerifyHeader(image, key)
}

package kvlane

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Why states where a block is stored, or why it is not.
type Why = tier.Why

// Verdict describes the blocks of a prompt in one sentence: the length of the stored prefix, and
// why the next block is missing.
func Verdict(blocks []Why) string { return tier.Verdict(blocks) }

// Why states for each key which tiers have its block since when, or why they do not: it was removed
// (when, and by which cause and process), refused by a tier, damaged, never stored, or the key has
// another identity. The keys are in the order of a prompt. See store.Store.Why.
func (e *Engine) Why(ctx context.Context, keys []Key) ([]Why, error) { return e.store.Why(ctx, keys) }

// TokenKeys returns the keys of a page group's whole blocks of a prompt, for a program whose hashes
// are those of block.HashTokens. It returns ErrInvalid if the group does not exist.
func (e *Engine) TokenKeys(group int, tokens []int64) ([]Key, error) {
	if n := len(e.groups.ids); group < 0 || group >= n {
		return nil, fmt.Errorf("make keys of page group %d of %d: %w", group, n, errdefs.ErrInvalid)
	}
	return e.groups.formats.TokenKeys(group, tokens, e.groups.ids[group].BlockTokens)
}

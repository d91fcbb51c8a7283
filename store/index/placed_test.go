package index_test

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// placedTier is a tier that gets anchors and counts calls of Retain.
type placedTier struct {
	tier.Tier
	anchors *tier.Anchors
	retains int
	known   int // keys of Retain that had anchors
}

func (p *placedTier) SetAnchors(a *tier.Anchors) { p.anchors = a }

func (p *placedTier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	p.retains++
	for _, key := range keys {
		if _, ok := p.anchors.Of(key); ok {
			p.known++
		}
	}
	return p.Tier.Retain(ctx, keys)
}

// A tier that places blocks knows the anchors of a prompt before it is asked, and is asked once for
// a long prompt.
func TestPlacedTierKnowsAnchors(t *testing.T) {
	var p *placedTier
	r := newRig(t, 4, func(r *rig, c *index.Config) {
		p = &placedTier{Tier: r.file}
		c.Tiers[1] = p
	})
	const n = 300
	r.put(r.file, span(0, n)...)
	l, err := r.x.LeasePrefix(t.Context(), tiertest.Keys(span(0, n)...), 0)
	r.must(err)
	l.Release()
	if p.retains != 1 || p.known != n || l.Len() != n {
		t.Errorf("%d requests with %d anchors for %d blocks, want 1 with %d", p.retains, p.known, l.Len(), n)
	}
	if a, _ := p.anchors.Of(tiertest.Key(n - 1)); a != tiertest.Key((n-1)/tier.RunBlocks*tier.RunBlocks) {
		t.Errorf("the last block has anchor %s", a)
	}
	// A dump that continues the prompt names the block before.
	r.x.Use(tiertest.Key(n-1), tiertest.Keys(n))
	if a, ok := p.anchors.Of(tiertest.Key(n)); !ok || a != tiertest.Key(n/tier.RunBlocks*tier.RunBlocks) {
		t.Errorf("the next block has anchor %s", a)
	}
}

package stress

import (
	"errors"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// ownEach is the number of adjacent blocks that one client owns.
const ownEach = 4

// drawOwn returns some adjacent blocks to dump or to remove. If the worker is alone, only this
// client dumps and removes them.
func (c *client) drawOwn() []int {
	ns := c.draw()
	if !c.Alone {
		return ns
	}
	const round = ownEach * clients
	first := ns[0]/round*round + c.i*ownEach
	return []int{first, first + 1, first + 2, first + 3}[:1+c.rng.IntN(ownEach)]
}

// versionsOf returns the versions of blocks before a lookup or a load.
func (c *client) versionsOf(ns []int) []int64 {
	versions := make([]int64, len(ns))
	for i, n := range ns {
		versions[i] = c.versions[n].Load()
	}
	return versions
}

// stayedRemoved reports whether no tier had block n since its version was read.
func (c *client) stayedRemoved(n int, version int64) bool {
	return version%2 == 1 && c.versions[n].Load() == version
}

// dumpedAgain records that blocks may be found again.
func (c *client) dumpedAgain(ns []int) {
	for _, n := range ns {
		if c.versions[n].Load()%2 == 1 {
			c.versions[n].Add(1)
		}
	}
}

// remove removes blocks that no other client dumps, if the worker is alone. Other clients may load,
// lease and prefetch them.
func (c *client) remove() {
	if !c.Alone {
		return
	}
	ns := c.drawOwn()
	for len(c.dumps) > 0 {
		c.waitDurable()
	}
	ctx, cancel, most := c.within()
	defer cancel()
	var r tier.Removed
	var err error
	c.bounded(c.i, "Remove", most, func() { r, err = c.engine.Remove(ctx, c.keysOf(ns)) })
	if !c.begun("remove", err) {
		return
	}
	c.explain("removed block", r.Left)
	if errors.Is(r.Left, errdefs.ErrBusy) {
		c.tally.add("blocks not removed in use", 1)
	}
	for _, n := range ns {
		if removed := slices.Contains(r.Keys, c.keys[n]); removed || r.Left == nil {
			if c.versions[n].Load()%2 == 0 {
				c.versions[n].Add(1)
			}
			if removed {
				c.tally.add("blocks removed", 1)
			}
		}
	}
}

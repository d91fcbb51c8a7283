package capi

import (
	"encoding/json"

	"github.com/kvlane/kvlane"
)

// Remove removes blocks from all tiers, and returns the number of removed blocks. Blocks that stay,
// such as leased and pinned ones, are an error, after which other blocks may be removed.
func (l *Library) Remove(h Handle, keys []kvlane.Key, timeoutMillis int64) (removed int, err error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	r, err := e.Remove(ctx, keys)
	if err == nil {
		err = r.Left
	}
	return len(r.Keys), err
}

// Pin pins blocks in the tiers with directories, or unpins them.
func (l *Library) Pin(h Handle, keys []kvlane.Key, unpin bool, timeoutMillis int64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	if unpin {
		return e.Unpin(ctx, keys)
	}
	return e.Pin(ctx, keys)
}

// Why returns a JSON array that explains for each key why its block is stored or not.
func (l *Library) Why(h Handle, keys []kvlane.Key, timeoutMillis int64) ([]byte, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	all, err := e.Why(ctx, keys)
	if err != nil {
		return nil, err
	}
	type explained struct {
		Text string `json:"text"`
		*kvlane.Why
	}
	out := make([]explained, len(all))
	for i := range all {
		out[i] = explained{all[i].String(), &all[i]}
	}
	return json.Marshal(out)
}

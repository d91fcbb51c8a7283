package capi

import (
	"math"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// lease holds blocks where they are.
type lease struct {
	*kvlane.Lease
	engine *engine
}

func (*lease) kind() string  { return "lease" }
func (l *lease) of() *engine { return l.engine }

// Keys writes the keys of blocks of a page group: of as many hashes of hashBytes each as keys has room for.
func (l *Library) Keys(h Handle, group uint32, hashes []byte, hashBytes int, keys []kvlane.Key) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	if hashBytes < 1 || hashBytes > math.MaxInt/max(1, len(keys)) || len(hashes) != hashBytes*len(keys) {
		return invalid("%d bytes are not %d hashes of %d bytes", len(hashes), len(keys), hashBytes)
	}
	for i := range keys {
		if keys[i], err = e.GroupKey(int(group), hashes[i*hashBytes:(i+1)*hashBytes]); err != nil {
			return err
		}
	}
	return nil
}

// HashTokens writes the hashes of whole blocks of tokens: as many as hashes has room for, and tokens has.
func HashTokens(hashes [][block.HashBytes]byte, parent []byte, tokens []int64, blockTokens int) error {
	all, err := block.HashTokens(make([]byte, 0, block.HashBytes*len(hashes)), parent, tokens, blockTokens)
	for i := range hashes {
		if rest := all[min(len(all), i*block.HashBytes):]; len(rest) >= block.HashBytes {
			hashes[i] = [block.HashBytes]byte(rest)
		}
	}
	return err
}

// Lookup says of each key whether its block is there.
func (l *Library) Lookup(h Handle, keys []kvlane.Key, there []uint8, timeoutMillis int64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	hits, err := e.Lookup(ctx, keys)
	if err != nil {
		return err
	}
	for i := range hits {
		there[i] = 0
		if hits[i].State == tier.Ready {
			there[i] = 1
		}
	}
	return nil
}

// Lease holds the longest prefix of the keys whose blocks are all there, and says how long it is.
func (l *Library) Lease(h Handle, keys []kvlane.Key, ttlMillis, timeoutMillis int64) (Handle, int, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, 0, err
	}
	if ttlMillis < 0 {
		return 0, 0, invalid("a lease of %d ms is none", ttlMillis)
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	got, err := e.LeasePrefix(ctx, keys, time.Duration(min(ttlMillis, maxMillis))*time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	return l.handles.add(&lease{Lease: got, engine: e}), got.Len(), nil
}

// Release ends a lease, and frees its handle.
func (l *Library) Release(h Handle) error {
	got, err := find[*lease](&l.handles, h)
	if err != nil {
		return err
	}
	got.Release()
	l.handles.remove(h)
	return nil
}

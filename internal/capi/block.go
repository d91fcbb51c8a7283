package capi

import (
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/tier"
	tiercache "github.com/kvlane/kvlane/tier/cache"
)

// lease is a lease on blocks of an engine.
type lease struct {
	*kvlane.Lease
	engine *engine
}

func (*lease) kind() kind   { return leaseKind }
func (l *lease) of() object { return l.engine }

// Keys writes the keys for blocks of a page group to keys. Each hash has hashBytes bytes.
func (l *Library) Keys(h Handle, group uint32, hashes []byte, hashBytes int, keys []kvlane.Key) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	if hashBytes < 1 || hashBytes > math.MaxInt/max(1, len(keys)) || len(hashes) != hashBytes*len(keys) {
		return invalid("%d bytes of hashes, expected %d of %d bytes", len(hashes), len(keys), hashBytes)
	}
	for i := range keys {
		if keys[i], err = e.GroupKey(int(group), hashes[i*hashBytes:(i+1)*hashBytes]); err != nil {
			return err
		}
	}
	return nil
}

// HashTokens writes the hashes of complete blocks of tokens. The shorter of the slices limits their
// number.
func HashTokens(hashes [][block.HashBytes]byte, parent []byte, tokens []int64, blockTokens int) error {
	all, err := block.HashTokens(make([]byte, 0, block.HashBytes*len(hashes)), parent, tokens, blockTokens)
	for i := range hashes {
		if rest := all[min(len(all), i*block.HashBytes):]; len(rest) >= block.HashBytes {
			hashes[i] = [block.HashBytes]byte(rest)
		}
	}
	return err
}

// States of a block that Lookup writes. Zero means that the block is not stored.
const (
	InMemory uint8 = 1
	InFiles  uint8 = 2
)

// Lookup writes the state of the block of each key: InMemory, InFiles or zero.
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
		switch {
		case hits[i].State != tier.Ready:
			there[i] = 0
		case hits[i].Tier == tiercache.Name:
			there[i] = InMemory
		default:
			there[i] = InFiles
		}
	}
	return nil
}

// Lease leases the longest prefix of keys whose blocks are stored. It returns a handle and the
// number of leased blocks.
func (l *Library) Lease(h Handle, keys []kvlane.Key, ttlMillis, timeoutMillis int64) (Handle, int, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, 0, err
	}
	if ttlMillis < 0 {
		return 0, 0, invalid("lease of %d ms: must not be negative", ttlMillis)
	}
	ctx, cancel := l.looking(timeoutMillis)
	defer cancel()
	got, err := e.LeasePrefix(ctx, keys, time.Duration(min(ttlMillis, maxMillis))*time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	return l.handles.add(&lease{Lease: got, engine: e}), got.Len(), nil
}

// checkTokens refuses numbers of tokens that no prompts have.
func checkTokens(tokens, rest int64) error {
	if min(tokens, rest) < 0 || max(tokens, rest) > maxTokens {
		return invalid("%d tokens and %d others: out of range", tokens, rest)
	}
	return nil
}

// Worth returns the number of leased blocks for which loading is faster than computing their
// tokens. rest is the number of tokens that are computed in any case.
func (l *Library) Worth(h Handle, tokens, rest int64) (int, error) {
	got, err := find[*lease](&l.handles, h)
	if err != nil {
		return 0, err
	}
	if err := checkTokens(tokens, rest); err != nil {
		return 0, err
	}
	return got.engine.Worth(got.Lease, tokens, rest), nil
}

// maxTokens is the maximum number of tokens in a call.
const maxTokens = 1 << 40

// ReportComputed records the time in which the KV cache of a number of tokens was computed.
func (l *Library) ReportComputed(h Handle, tokens int64, seconds float64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	if tokens < 1 || tokens > maxTokens || !(seconds > 0 && seconds <= maxSeconds) {
		return invalid("%d tokens in %v s: out of range", tokens, seconds)
	}
	e.ReportComputed(tokens, time.Duration(seconds*float64(time.Second)))
	return nil
}

// ReportDelay records the time from the decision to load blocks until their use, without the
// duration of the load.
func (l *Library) ReportDelay(h Handle, seconds float64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	delay, err := duration(seconds)
	if err != nil {
		return err
	}
	e.ReportDelay(delay)
	return nil
}

// duration converts a reported number of seconds. It returns ErrInvalid if the number is out of
// range.
func duration(seconds float64) (time.Duration, error) {
	if !(seconds >= 0 && seconds <= maxSeconds) {
		return 0, invalid("%v s: out of range", seconds)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// maxSeconds is the maximum reported time.
const maxSeconds = 1e6

// Release releases a lease and frees its handle.
func (l *Library) Release(h Handle) error {
	got, err := find[*lease](&l.handles, h)
	if err != nil {
		return err
	}
	got.Release()
	l.handles.remove(h)
	return nil
}

// Event is an event in the library's format: a kvlane.Event, with the place of the tier in
// settings.Tiers.
type Event struct {
	Change, Tier uint8
	Key          kvlane.Key
}

// Events writes the oldest waiting events to events and returns their number. The first call of an
// engine begins the recording.
func (l *Library) Events(h Handle, events []Event) (int, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watcher == nil {
		e.watcher = e.WatchEvents()
	}
	taken := e.watcher.Take(len(events))
	for i, event := range taken {
		place := slices.IndexFunc(settings.Tiers, func(t settings.Tier) bool { return t.Name == event.Tier })
		events[i] = Event{uint8(event.Change), uint8(max(place, 0)), event.Key}
	}
	return len(taken), nil
}

package file_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/tier"
)

// retainOne retains a block and reads it. Meanwhile this process cannot delete it.
func (m *model) retainOne(i, k int) {
	l, b := m.lives[i], &m.blocks[k]
	keys := []block.Key{modelKey(k)}
	n, err := l.Retain(m.Context(), keys)
	ok := n == 1
	m.log("%d retains %d: %v, %v", i, k, ok, err)
	if m.crashed(l, err) {
		return
	}
	m.must(err)
	if ok != (b.state == whole) && b.state != torn { // a torn file may have the right length
		m.Fatalf("block %d is %+v, and retain returned %v", k, *b, ok)
	}
	if !ok {
		l.misses++
		return
	}
	if err := l.Delete(m.Context(), modelKey(k)); !errors.Is(err, errdefs.ErrBusy) && !m.crashed(l, err) {
		m.Fatalf("delete what is retained: %v", err)
	}
	m.getOne(i, k)
	l.Release(keys)
}

func (m *model) lookupAll(i int) {
	l := m.lives[i]
	keys, states := make([]block.Key, modelKeys), make([]tier.State, modelKeys)
	for k := range keys {
		keys[k] = modelKey(k)
	}
	err := l.Lookup(m.Context(), keys, states)
	m.log("%d looks up: %v, %v", i, states, err)
	if m.crashed(l, err) {
		return
	}
	m.must(err)
	for k, s := range states {
		b := &m.blocks[k]
		if want := map[blockState]tier.State{whole: tier.Ready, absent: tier.Absent, torn: tier.Failed}[b.state]; s != want {
			if b.state != torn || s != tier.Ready {
				m.Fatalf("block %d is %+v, and lookup returned %s", k, *b, s)
			}
		}
	}
}

func (m *model) deleteOne(i, k int) {
	l, b := m.lives[i], &m.blocks[k]
	err := l.Delete(m.Context(), modelKey(k))
	m.log("%d deletes %d: %v", i, k, err)
	switch {
	case b.pin != unpinned && errors.Is(err, errdefs.ErrBusy):
	case b.pin == pinned && err == nil:
		m.Fatalf("block %d is %+v, and delete succeeded", k, *b)
	case m.crashed(l, err):
		if b.state != absent {
			b.state, b.promised, b.unsynced = unknown, false, true
		}
	case b.state == absent && errors.Is(err, errdefs.ErrNotFound):
	case b.state != absent && err == nil:
		b.state, b.promised = absent, false
	default:
		m.Fatalf("block %d is %+v, and delete returned %v", k, *b, err)
	}
}

// collect evicts blocks down to a random number. If that is more than the stored number, GC only
// counts the blocks.
func (m *model) collect(i int) {
	l := m.lives[i]
	target := m.rng.Int64N(2 * modelKeys)
	stored := m.present()
	removed, err := l.GC(m.Context(), target*m.format.Layout.ImageBytes())
	m.log("%d collects %d to %d: %d, %v", i, stored, target, removed, err)
	if m.crashed(l, err) {
		return
	}
	m.must(err)
	target = max(target, m.pinnedPresent())
	if want := max(0, stored-target); int64(removed) != want {
		m.Fatalf("%d were removed, not %d", removed, want)
	}
	if st := l.Stats(); st.Blocks != min(stored, target) || st.Bytes != st.Blocks*m.format.Layout.ImageBytes() {
		m.Fatalf("%d blocks are left: %+v", min(stored, target), st)
	}
}

// counts checks the counters of a process.
func (m *model) counts(i int) {
	l := m.lives[i]
	st := l.Stats()
	if st.Retained != 0 || st.Waiting != 0 || st.ReadBytes%m.format.Layout.ImageBytes() != 0 {
		m.Fatalf("%d has counted %+v", i, st)
	}
	if l.inexact {
		return
	}
	if st.Hits != l.hits || st.Misses != l.misses || st.Puts != l.puts || st.Corrupt != l.corrupt || st.Errors != 0 ||
		st.WrittenBytes != l.puts*m.format.Layout.ImageBytes() || st.Paused != nil || st.Failure != nil {
		m.Fatalf("%d has counted %+v; it was %+v", i, st, *l)
	}
}

func (m *model) reopen(i int) {
	l := m.lives[i]
	err := l.Close(m.Context())
	m.log("%d closes: %v", i, err)
	if m.crashed(l, err) {
		return
	}
	m.must(err)
	l.dead = true
	m.counts(i)
	m.observe()
	m.start(i)
}

func (m *model) killOne(i int) {
	m.log("%d is killed", i)
	m.kill(m.lives[i].proc)
	m.counts(i)
	m.observe()
	m.start(i)
}

// arm makes a process crash during one of its next operations.
func (m *model) arm(i int) {
	ops := []string{"open", "stat", "fstat", "mkdir", "rename", "rename", "remove", "write", "write", "sync", "sync", "sync", "readdir"}
	op := ops[m.rng.IntN(len(ops))]
	n := m.rng.IntN(3)
	m.log("%d will crash at %s %d", i, op, n)
	m.lives[i].faults.Use(fault.New(m.rng.Uint64(), fault.Nth(op, n).Crash()))
	m.lives[i].inexact, m.lives[i].armed = true, true
}

// race lets both processes store the same block, or two blocks of which one may evict the other, at
// the same time.
func (m *model) race(k int) {
	other := k
	if m.rng.IntN(2) == 0 {
		other = (k + modelBuckets) % modelKeys // usually in the same folder
	}
	if m.full || m.lives[0].armed || m.lives[1].armed {
		return // the model cannot know which process caused an error
	}
	was := [2]blockState{m.blocks[k].state, m.blocks[other].state}
	second := make(chan error)
	go func() { second <- m.lives[1].store(m.Context(), modelKey(other), m.images[other]) }()
	first := m.lives[0].store(m.Context(), modelKey(k), m.images[k])
	m.raced = true
	m.stored(0, k, was[0], first)
	m.stored(1, other, was[1], <-second)
	// Either process may have written the block, or have found it before it was evicted.
	if k == other || m.c.bound > 0 {
		m.lives[0].inexact, m.lives[1].inexact = true, true
	}
}

// endCrashed ends the processes that have crashed. Sometimes the power fails instead.
func (m *model) endCrashed() {
	for i, l := range m.lives {
		switch {
		case !l.crashed:
		case m.rng.IntN(3) == 0:
			m.powerFails()
		default:
			m.killOne(i)
		}
	}
}

// powerFails simulates a power failure and compares the surviving files with the model.
func (m *model) powerFails() {
	synctest.Wait()
	s, seed := faultfs.KeepSynced(), uint64(0)
	switch m.rng.IntN(8) {
	case 0:
	case 1:
		s = faultfs.KeepAll()
	default:
		seed = m.rng.Uint64()
		s = faultfs.KeepSome(seed)
	}
	m.powerFail(s)
	for i := range m.lives {
		m.counts(i)
	}
	for k := range m.blocks {
		if b := &m.blocks[k]; b.mayRevert {
			b.pin = eitherPin
		}
	}
	m.observePins()
	found := m.states()
	m.log("the power fails, seed %d; left are %v", seed, found)
	for k, is := range found {
		b := &m.blocks[k]
		switch {
		case is != whole && b.promised:
			m.Fatalf("block %d is %d, and was promised: %+v", k, is, *b)
		case is == torn && !b.unsynced:
			m.Fatalf("block %d is torn without an unsynced write: %+v", k, *b)
		case is != absent && !b.tried:
			m.Fatalf("block %d exists but was never stored", k)
		}
		b.state, b.unsynced = is, is == torn // a torn file that is removed may reappear after the next failure
	}
	m.verify()
	for i := range m.lives {
		m.start(i)
	}
}

// fill limits the space on the disk, or removes the limit and waits until failed writers try again.
func (m *model) fill() {
	m.full = !m.full
	for _, l := range m.lives {
		if l != nil {
			l.inexact = true
		}
	}
	if m.full {
		room := m.rng.Int64N(3 * m.format.Layout.ImageBytes())
		m.log("the disk has room for %d bytes more", room)
		m.disk.SetLimit(m.disk.Used() + room + 1)
		return
	}
	m.log("the disk has room")
	m.disk.SetLimit(0)
	time.Sleep(time.Minute)
}

func modelSeeds(t *testing.T) []uint64 {
	t.Helper()
	number := func(name string) (uint64, bool) {
		v := os.Getenv(name)
		if v == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n, true
	}
	if seed, ok := number("KVLANE_FILE_SEED"); ok {
		return []uint64{seed}
	}
	n, ok := number("KVLANE_FILE_SEEDS")
	if !ok {
		// The seed is part of the test's name.
		return append(slices.Clone(fixedSeeds), rand.Uint64N(1<<32))
	}
	var seeds []uint64
	for i := range n {
		seeds = append(seeds, i+1)
	}
	return seeds
}

// fixedSeeds run always. Add a seed that has failed.
var fixedSeeds = []uint64{1, 2, 3}

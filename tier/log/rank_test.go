package log_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// prompts uses a log as a store does: prompts are used alternately and put in chunks.
type prompts struct {
	*testing.T
	c     log.Config
	tr    *log.Tier
	order *tier.Order
}

const promptBlocks, promptChunk = 80, 10

func prompt(n int) []block.Key { return keys(1000*n, 1000*n+promptBlocks) }

func newPrompts(t *testing.T) *prompts {
	c := config(t)
	c.SegmentBytes = 0
	c.MaxBytes = 100 * (28 << 10) // a block has 24 KiB, and its group a header
	p := &prompts{T: t, c: c}
	p.open()
	return p
}

func (p *prompts) open() {
	p.tr, p.order = open(p.T, p.c), tier.NewOrder(tier.OrderKeys)
	p.tr.SetOrder(p.order)
}

// found returns the length of the stored prefix of a prompt.
func (p *prompts) found(some []block.Key) int {
	p.Helper()
	n, err := p.tr.Retain(p.Context(), some)
	if err != nil {
		p.Fatal(err)
	}
	p.tr.Release(some[:n])
	return n
}

// request uses the stored prefix of a prompt and puts the other blocks.
func (p *prompts) request(some []block.Key) (found int) {
	p.Helper()
	found = p.found(some)
	p.order.Note(some[:found], tier.Place{})
	p.tr.Use(some[:found], tier.Place{})
	for at := found; at < len(some); at += promptChunk {
		chunk, place := some[at:min(at+promptChunk, len(some))], tier.Place{}
		if at > 0 {
			place = p.order.After(some[at-1], chunk[0])
		}
		p.order.Note(chunk, place)
		p.tr.Use(chunk, place)
		srcs, errs := make([]mem.Extent, len(chunk)), make([]error, len(chunk))
		for i, key := range chunk {
			srcs[i] = image(p.T, p.c.Formats[0], key)
		}
		p.tr.PutMany(p.Context(), chunk, srcs, errs)
		for _, err := range errs {
			if err != nil {
				p.Fatal(err)
			}
		}
	}
	return found
}

// Conversations continue between prompts that are used once. The log must find at least 99% of the
// blocks that an LRU cache with slightly less space would find. The beginning of a conversation
// that pauses for longer must also stay.
func TestRecencyBetweenPrompts(t *testing.T) {
	p := newPrompts(t)
	// Capacity of the LRU cache: the 100 blocks of the log without its free space.
	const recent = 70
	var used []block.Key
	hits, want, next := 0, 0, 10000
	request := func(some []block.Key) {
		hits += p.request(some)
		for _, key := range some {
			if !slices.Contains(used[max(0, len(used)-recent):], key) {
				break
			}
			want++
		}
		used = slices.DeleteFunc(used, func(key block.Key) bool { return slices.Contains(some, key) })
		used = append(used, some...)
	}
	resting := keys(0, 40)
	request(resting)
	for round := range 45 {
		for c := range 3 {
			first := 1000 * (1 + c + 3*(round/15)) // a conversation has 15 turns
			request(keys(first, first+round%15+1))
		}
		request(keys(next, next+8)) // a prompt that is used once
		next += 8
		if round == 5 {
			n, err := p.tr.Retain(t.Context(), resting) // retained until they are counted
			if err != nil {
				t.Fatal(err)
			}
			left := ready(t, p.tr, resting)
			p.tr.Release(resting[:n])
			if n != left || n == 0 || n == len(resting) {
				t.Errorf("%d blocks of a prompt are left, of which %d are its beginning", left, n)
			}
		}
	}
	if want == 0 || hits*100 < want*99 {
		t.Errorf("%d blocks were found, %d by recency", hits, want)
	}
}

// The beginning of a prompt was evicted before its end, although the end is useless without it. Two
// alternating prompts had no hits.
func TestDefectBeginningOfAPromptIsEvictedFirst(t *testing.T) {
	p, sum := newPrompts(t), 0
	for round := range 8 {
		if n := p.request(prompt(round % 2)); round >= 2 {
			sum += n
		}
	}
	if sum < 6*(100-promptBlocks)/2 {
		t.Errorf("%d blocks were found in 6 turns", sum)
	}
}

// The order of eviction survives a restart, both from a checkpoint and from the segments.
func TestEvictionOrderSurvivesARestart(t *testing.T) {
	for _, how := range []string{"checkpoint", "segments"} {
		t.Run(how, func(t *testing.T) {
			p := newPrompts(t)
			p.request(prompt(0))
			closeTier(t, p.tr)
			if how == "segments" {
				if err := os.Remove(filepath.Join(p.c.Dir, "index")); err != nil {
					t.Fatal(err)
				}
			}
			p.open()
			some := keys(5000, 5000+60) // these blocks belong to no prompt
			for _, key := range some {
				put(t, p.tr, p.c.Formats[0], key)
			}
			n, left := p.found(prompt(0)), ready(t, p.tr, keys(0, promptBlocks))
			if left == promptBlocks || n < left/2 || n < 5 {
				t.Errorf("%d blocks of a prompt are left, of which %d are its beginning", left, n)
			}
		})
	}
}

// A log with a single segment lost all blocks if it was opened with a bound below the segment's
// length.
func TestDefectLowerBoundDropsAllBlocks(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 8 << 20
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 100)...)
	used := log.Used(tr)
	closeTier(t, tr)
	c.SegmentBytes, c.MaxBytes = 0, 50*(28<<10)
	tr = open(t, c)
	for timeout := time.After(30 * time.Second); log.Used(tr) > c.MaxBytes; {
		select {
		case <-timeout:
			t.Fatalf("%d of %d bytes are used, the bound is %d", log.Used(tr), used, c.MaxBytes)
		case <-time.After(time.Millisecond):
		}
	}
	states := make([]tier.State, 100)
	if err := tr.Lookup(t.Context(), keys(0, 100), states); err != nil {
		t.Fatal(err)
	}
	left, first := 0, 100
	for i, s := range states {
		if s == tier.Ready {
			left, first = left+1, min(first, i)
		}
	}
	if left < 25 || first != 100-left {
		t.Errorf("%d blocks are left, from %d on", left, first)
	}
}

// Moving used blocks out of evicted segments writes at most as many bytes as are put.
func TestMovesNoMoreThanIsPut(t *testing.T) {
	c := config(t)
	c.MaxBytes = 16 * segmentBytes
	f := c.Formats[0]
	tr := open(t, c)
	used := keys(0, 40) // a third of the puts at first
	for i := range 600 {
		put(t, tr, f, tiertest.Key(1000+i))
		if i%2 == 0 && i/2 < len(used) {
			put(t, tr, f, used[i/2])
		}
		tr.Use(used, tier.Place{})
	}
	all := tr.Stats().Puts * (f.Layout.ImageBytes() - f.Layout.HeaderBytes())
	if got := log.Credit(tr); got < 0 || got == all {
		t.Errorf("%d bytes were put, %d more than were moved", all, got)
	}
	if n := ready(t, tr, used); n < len(used)/2 {
		t.Errorf("%d of %d used blocks are left", n, len(used))
	}
}

// ready returns the number of blocks that are found.
func ready(t *testing.T, tr *log.Tier, keys []block.Key) (n int) {
	t.Helper()
	states := make([]tier.State, len(keys))
	if err := tr.Lookup(t.Context(), keys, states); err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if s == tier.Ready {
			n++
		}
	}
	return n
}

package object_test

import (
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/tiertest"
)

const prompt = 1000 // blocks

// tripCounter holds requests back until no more arrive, and so counts the dependent round trips.
type tripCounter struct {
	mu       sync.Mutex
	trips    int
	requests int
	waiting  chan struct{} // closed at the end of the trip; nil: no request waits
}

func (c *tripCounter) fault(http.ResponseWriter, *http.Request) bool {
	c.mu.Lock()
	c.requests++
	if c.waiting == nil {
		c.trips++
		c.waiting = make(chan struct{})
		end := c.waiting
		time.AfterFunc(200*time.Millisecond, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.waiting = nil
			close(end)
		})
	}
	end := c.waiting
	c.mu.Unlock()
	<-end
	return false
}

// A lookup of 1,000 blocks is exact with holes, and takes at most 64 requests and 8 round trips,
// also if a thousand prompts branch from it.
func TestLookupOfALongPrompt(t *testing.T) {
	for _, tt := range []struct {
		name            string
		branches        []int // blocks after which other prompts follow
		requests, trips int
	}{
		{"alone", nil, 16, 1},
		{"branches in a run", []int{10}, 16 + 8 + 8, 3},
		{"branches in three runs", []int{70, 300, 650}, 16 + 3*(8+8), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, p, c := behind(t)
			tr, anchors := open(t, c), tier.NewAnchors(1<<20)
			tr.SetAnchors(anchors)
			keys := make([]block.Key, prompt)
			for i := range keys {
				keys[i] = tiertest.Key(i)
			}
			anchors.Prompt(keys)
			r := rand.New(rand.NewPCG(3, 4))
			want := make([]tier.State, prompt)
			stored := keys[:0:0]
			for i := range want {
				if r.IntN(5) > 0 {
					want[i] = tier.Ready
					stored = append(stored, keys[i])
				}
			}
			fill(t, s, c, anchors, stored)
			for _, at := range tt.branches {
				branch(t, s, c, anchors, keys[:at])
			}
			var count tripCounter
			p.Set(count.fault)
			states := make([]tier.State, prompt)
			must(t, tr.Lookup(t.Context(), keys, states))
			for i := range want {
				if states[i] != want[i] {
					t.Fatalf("block %d is %v, want %v", i, states[i], want[i])
				}
			}
			if count.requests > tt.requests || count.trips > tt.trips {
				t.Errorf("%d requests in %d round trips, want at most %d in %d", count.requests, count.trips, tt.requests, tt.trips)
			}
			t.Logf("%d requests in %d round trips", count.requests, count.trips)
		})
	}
}

// fill stores files of the right length for keys.
func fill(t *testing.T, s *s3test.Server, c object.Config, anchors *tier.Anchors, keys []block.Key) {
	t.Helper()
	for i, name := range object.Names(c, anchors, keys) {
		must(t, os.MkdirAll(filepath.Dir(s.Path(name)), 0o700))
		must(t, os.WriteFile(s.Path(name), nil, 0o600))
		must(t, os.Truncate(s.Path(name), c.Formats.ImageBytes(keys[i])))
	}
}

// branch stores the next blocks of other prompts that begin with keys, so that the part with the
// branch has more objects than a response.
func branch(t *testing.T, s *s3test.Server, c object.Config, anchors *tier.Anchors, keys []block.Key) {
	t.Helper()
	inPart := tier.PartBlocks - len(keys)%tier.PartBlocks
	var all []block.Key
	for n := range 1100 / inPart {
		other := append([]block.Key{}, keys...)
		for i := range inPart {
			other = append(other, tiertest.Key(1<<20*(len(keys)+1)+n*100+i))
		}
		anchors.Prompt(other)
		all = append(all, other[len(keys):]...)
	}
	fill(t, s, c, anchors, all)
}

// Two processes of one host or of several share blocks, also of one run.
func TestTwoTiersShareRuns(t *testing.T) {
	s3test.Setenv(t)
	for _, name := range []string{"versitygw", "moto"} {
		t.Run(name, func(t *testing.T) {
			s := s3test.Start(t, name)
			f := tiertest.NewFormat(t)
			c := config(s.URL(), "shared", f)
			one, two := open(t, c), open(t, c)
			keys := make([]block.Key, 3*tier.RunBlocks)
			for i := range keys {
				keys[i] = tiertest.Key(i)
			}
			for _, tr := range []*object.Tier{one, two} {
				a := tier.NewAnchors(1 << 10)
				a.Prompt(keys)
				tr.SetAnchors(a)
			}
			for i := range keys {
				must(t, put(t, []*object.Tier{one, two}[i%2], f, i, 0))
			}
			for _, tr := range []*object.Tier{one, two} {
				n, err := tr.Retain(t.Context(), keys)
				if must(t, err); n != len(keys) {
					t.Errorf("%d of %d blocks are found", n, len(keys))
				}
				for i := range n {
					must(t, get(t, tr, f, i))
				}
				tr.Release(keys[:n])
			}
		})
	}
}

// The URL, endpoint and encryption are checked before any request.
func TestConfigIsChecked(t *testing.T) {
	f := tiertest.NewFormat(t)
	good := object.Config{URL: "s3://bucket/a/b/", Endpoint: "https://host:1", Formats: block.Formats{f}}
	must(t, good.Validate())
	if bucket, prefix, err := object.ParseURL("s3://bucket/a/b/"); bucket != "bucket" || prefix != "a/b/" || err != nil {
		t.Errorf("parsed as %q, %q, %v", bucket, prefix, err)
	}
	for want, change := range map[string]func(*object.Config){
		"is not s3://":     func(c *object.Config) { c.URL = "bucket/prefix" },
		`"s3:///prefix"`:   func(c *object.Config) { c.URL = "s3:///prefix" },
		`"s3://b/../c"`:    func(c *object.Config) { c.URL = "s3://b/../c" },
		"is not http://":   func(c *object.Config) { c.Endpoint = "host:9000" },
		"encryption":       func(c *object.Config) { c.Encryption = "rot13" },
		"requires":         func(c *object.Config) { c.KMSKey = "k" },
		"negative":         func(c *object.Config) { c.Timeout = -1 },
		"at least 5242880": func(c *object.Config) { c.PartBytes = 1 },
		"formats":          func(c *object.Config) { c.Formats = nil },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want an error with %q", err, want)
		}
	}
}

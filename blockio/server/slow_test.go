package server

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/journal"
)

// The journal has the retrieves and stores that reach the limit, with their blocks and errors.
func TestSlowRequestsAreInTheJournal(t *testing.T) {
	var j journal.Journal
	plan := fault.New(1)
	r := newDiskRig(t, Options{Journal: &j, SlowAfter: time.Nanosecond}, 4, disks["file"](t.TempDir(), faultfs.New(dirfs.OS(), plan, nil)))
	c, f := r.client(t, blockio.ClientOptions{}), r.formats[0]
	_, err := c.Stat(t.Context())
	must(t, err)
	_, pieces := image(t, f, 0, 4096)
	_, more := image(t, f, 1, 4096)
	must(t, store(t, c, append(pieces, more...)))
	wantErr(t, "a missing block", r.retrieve(t, c, f, 9), errdefs.ErrNotFound)
	until(t, "the journal lacks a request", func() bool {
		_, slow := j.Read()
		return len(slow) == 2
	})
	_, slow := j.Read()
	for _, o := range slow {
		switch o.Name {
		case "store":
			if o.Blocks != 2 || o.Error != "" || o.Took <= 0 {
				t.Errorf("%+v, want 2 blocks without an error", o)
			}
		case "retrieve":
			if o.Blocks != 1 || o.Error == "" {
				t.Errorf("%+v, want 1 block and an error", o)
			}
		default:
			t.Errorf("%+v is in the journal", o)
		}
	}
}

func TestFastRequestsAreNotInTheJournal(t *testing.T) {
	var j journal.Journal
	r := newRig(t, Options{Journal: &j, SlowAfter: time.Hour}, 4)
	c, f := r.client(t, blockio.ClientOptions{}), r.formats[0]
	_, pieces := image(t, f, 0, 1<<20)
	must(t, store(t, c, pieces))
	must(t, r.retrieve(t, c, f, 0))
	r.close(t)
	if _, slow := j.Read(); len(slow) > 0 {
		t.Errorf("%+v is in the journal", slow)
	}
}

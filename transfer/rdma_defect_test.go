//go:build !nonic

package transfer

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// TestDefectKeysOfARefreshedBuffer: a part of a buffer that had no keys when it was cut does not go by NICs, though the buffer has some since.
func TestDefectKeysOfARefreshedBuffer(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{}, 4096)
	must(t, p.remote.RDMA(0))
	before := *p.remote.buffers[0]
	before.Keys = nil
	x := &part{op: Write, to: p.remote, buf: &before, shape: shape{pages: pageZero}}
	x.append(0, mem.All(here))
	g := newGroup(&Batch{e: p.initiator}, p.remote, nil)
	wantErr(t, "by NICs", g.beginRDMA(t.Context(), x, PathRDMA), errdefs.ErrNotSupported)
}

// TestDefectImpatienceTiresNICs: NICs do not rest because a batch ended while it connected queue pairs by them.
func TestDefectImpatienceTiresNICs(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{}, 4096)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 30 { // it may also find that it is over before it begins
		_, err := p.remote.p.queue(ended, p.remote, true)
		wantErr(t, "a queue pair for a batch that is over", err, context.Canceled)
	}
	wantPath(t, p.do(t, write(here)), PathRDMA, false)
}

// TestDefectClosedSegmentsAreReconnects: queue pairs that end with the segment that they were for did not die.
func TestDefectClosedSegmentsAreReconnects(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{Lanes: 1}, 4096)
	first := p.remote
	p.do(t, write(here))
	p.open(t, p.target.Address())
	must(t, first.Close())
	p.do(t, write(here))
	if s := p.initiator.Stats(); s.Reconnects != 0 {
		t.Errorf("%d connections were made again", s.Reconnects)
	}
}

//go:build !nonic

package transfer

import (
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

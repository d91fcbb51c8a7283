package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/blockiotest"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
)

// Each operation of a NIC fails once, on either side, and a connection ends. Calls succeed at a
// later attempt, with the right bytes, and nothing stays in use.
func TestEachOperationOfANICFails(t *testing.T) {
	for _, op := range []string{
		soft.OpQueryPort, soft.OpQueryGID, soft.OpCreateChannel, soft.OpCreateCQ, soft.OpCreateQP, soft.OpModifyQP, soft.OpPostSend, soft.OpPostRecv,
		soft.OpPoll, soft.OpNotify, soft.OpWaitChannel, soft.OpClose, soft.OpWrite, soft.OpRead, soft.OpSend,
	} {
		t.Run(op, func(t *testing.T) {
			hit := 0
			for n := range 6 {
				if failOnce(t, op, n) {
					hit++
				}
			}
			if hit < 2 {
				t.Errorf("the operation failed in %d runs: the test does not test", hit)
			}
		})
	}
}

// failOnce stores and retrieves while operation n fails, and reports whether it did.
func failOnce(t *testing.T, op string, n int) (hit bool) {
	t.Helper()
	t.Run(fmt.Sprint(n), func(t *testing.T) {
		plan := fault.New(1)
		f := softFabric(t, soft.Options{Faults: plan})
		s := blockiotest.NewServer(blockio.DefaultLimits())
		g := f.gateway(t, gateway.Options{})
		o := blockio.ClientOptions{
			Dial: listen(t, func(nc net.Conn) { s.Serve(t, g.Open(nc, true)) }), RDMA: f.client(t), Retries: 6, BatchEntries: 1,
			Timeout: min(testkit.Patience(), time.Minute), Formats: []blockio.Format{{Identity: block.Digest{identity}, ShardBytes: []int64{8192}}},
		}
		r := f.pinned(t, o.RDMA.NIC, 8192, blockio.PeerAccess)
		c, err := blockio.NewClient(o)
		must(t, err)
		t.Cleanup(func() { must(t, c.Close(context.Background())) })
		var pieces []blockio.Piece
		for i := range int64(2) {
			pieces = append(pieces, blockio.Piece{Key: block.Key{1}, Identity: identity, Offset: uint64(4096 * i), Mem: mem.Extent{Region: r, Off: 4096 * i, Len: 4096}})
		}
		t.Cleanup(plan.Clear)
		plan.Add(fault.Nth(op, int(plan.Seen(op))+n).Fail(nil))
		want := bytes.Repeat([]byte{7}, 8192)
		copy(r.Bytes(), want)
		errs := make([]error, 2)
		c.Store(t.Context(), pieces, errs)
		must(t, errors.Join(errs...))
		clear(r.Bytes())
		var lost atomic.Bool
		s.Behave(blockiotest.Behavior{Close: func(*blockio.Request) bool { return !lost.Swap(true) }})
		c.Retrieve(t.Context(), pieces, errs)
		must(t, errors.Join(errs...))
		if !bytes.Equal(r.Bytes(), want) {
			t.Error("the bytes differ")
		}
		hit = plan.Injected() > 0
	})
	return hit
}

package blockiotest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Transport sets ClientOptions.Dial to a function that opens connections to a server, which serves
// each by Server.Serve until the test ends. It may set ClientOptions.RDMA: the suite then registers
// the memory of calls.
type Transport func(tb testing.TB, s *Server, o *blockio.ClientOptions)

// Run runs the conformance suite over a transport.
func Run(t *testing.T, transport Transport) {
	for name, test := range map[string]func(*testing.T, Transport){
		"StoresAndRetrieves":       testStoresAndRetrieves,
		"KeepsCredits":             testKeepsCredits,
		"LeasesAndDeletes":         testLeasesAndDeletes,
		"OtherBatchesGoOn":         testOtherBatchesGoOn,
		"BusyIsRetried":            testBusyIsRetried,
		"LostConnectionIsReplaced": testLostConnectionIsReplaced,
		"CancelIsConfirmed":        testCancelIsConfirmed,
		"LateWritesChangeNothing":  testLateWritesChangeNothing,
		"QueuedCallsEnd":           testQueuedCallsEnd,
		"DamagedBytesAreCorrupt":   testDamagedBytesAreCorrupt,
		"WrongResultsEndIt":        testWrongResultsEndIt,
		"SilenceEndsIt":            testSilenceEndsIt,
		"CloseEndsCalls":           testCloseEndsCalls,
		"Refusals":                 testRefusals,
	} {
		t.Run(name, func(t *testing.T) { test(t, transport) })
	}
}

var id = block.Digest{7, 1, 2}

// rig is a server with a client.
type rig struct {
	*blockio.Client
	s      *Server
	layout *block.Layout
	rdma   *blockio.RDMAOptions // nil: without RDMA
}

func newRig(t *testing.T, transport Transport, l blockio.Limits, o blockio.ClientOptions) *rig {
	t.Helper()
	r := &rig{s: NewServer(l)}
	shards := []int64{9000, 4096, 20000}
	o.Formats = []blockio.Format{{Identity: id, ShardBytes: shards}}
	transport(t, r.s, &o)
	r.rdma = o.RDMA
	if o.Timeout == 0 {
		o.Timeout = min(testkit.Patience(), 5*time.Minute)
	}
	var err error
	r.layout, err = block.NewLayout(shards)
	must(t, err)
	r.Client, err = blockio.NewClient(o)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close(context.Background())) })
	return r
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}

func memory(tb testing.TB, n int64) mem.Extent {
	tb.Helper()
	b, err := hostmem.Alloc(n)
	must(tb, err)
	tb.Cleanup(func() { must(tb, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	must(tb, err)
	return mem.Extent{Region: r, Len: n}
}

func key(n int) block.Key { return block.Key{byte(n), byte(n >> 8), 1} }

func keys(n int) (all []blockio.KeyEntry) {
	for i := range n {
		all = append(all, blockio.KeyEntry{Key: key(i), Identity: blockio.IdentityHash(id)})
	}
	return all
}

// pieces returns the pieces of n images in new memory, 4 KiB each.
func (r *rig) pieces(tb testing.TB, n int, fill byte) (all []blockio.Piece, m mem.Extent) {
	tb.Helper()
	bytes := r.layout.ImageBytes()
	m = memory(tb, int64(n)*bytes)
	if r.rdma != nil {
		must(tb, r.rdma.NIC.Register(rdma.MROptions{Access: blockio.PeerAccess}, m.Region))
		tb.Cleanup(func() {
			must(tb, registry.Unregister(context.Background(), []*registry.Registry{r.rdma.NIC}, m.Region))
		})
	}
	for i, b := 0, m.Bytes(); i < len(b); i++ {
		b[i] = byte(i>>8) ^ byte(i) ^ byte(int64(i)/bytes) ^ fill
	}
	for i := range n {
		all = blockio.Split(all, key(i), id, r.layout, m.Sub(int64(i)*bytes, bytes), 4096)
	}
	return all, m
}

// stored stores n images and returns their bytes.
func (r *rig) stored(tb testing.TB, n int) []byte {
	tb.Helper()
	all, m := r.pieces(tb, n, 0x5a)
	errs := make([]error, len(all))
	r.Store(tb.Context(), all, errs)
	must(tb, errors.Join(errs...))
	return slices.Clone(m.Bytes())
}

func small() blockio.Limits {
	return blockio.Limits{Entries: 4, Keys: 3, EntryBytes: 4096, RequestBytes: 3 * 4096, Credits: 2, KeepAliveMillis: 60000}
}

func testStoresAndRetrieves(t *testing.T, transport Transport) {
	for _, o := range []blockio.ClientOptions{{}, {BatchEntries: 3}, {BatchBytes: 8192}, {BatchBytes: 1}} {
		r := newRig(t, transport, blockio.DefaultLimits(), o)
		want := r.stored(t, 5)
		all, m := r.pieces(t, 5, 0)
		errs := make([]error, len(all))
		r.Retrieve(t.Context(), all, errs)
		must(t, errors.Join(errs...))
		if !bytes.Equal(m.Bytes(), want) {
			t.Errorf("%+v: the bytes differ", o)
		}
		missing := all[0]
		missing.Key = key(99)
		r.Retrieve(t.Context(), []blockio.Piece{missing}, errs[:1])
		wantErr(t, "a missing block", errs[0], errdefs.ErrNotFound)
		if s := r.Stats(); s.Connections != 1 || s.Retries != 0 || s.Fences != 0 || r.rdma != nil && s.Remote != s.Batches {
			t.Errorf("statistics %+v", s)
		}
	}
}

func testKeepsCredits(t *testing.T, transport Transport) {
	r := newRig(t, transport, small(), blockio.ClientOptions{})
	r.stored(t, 8)
	if n := r.s.Peak(); n > 2 {
		t.Errorf("%d requests in progress, of 2 credits", n)
	}
	// 8 images of 11 pieces: at most 3 pieces fit a request.
	if n, want := r.s.Requests(blockio.OpStore), (8*int(r.layout.ImageBytes()/4096)+2)/3; n != want {
		t.Errorf("%d sub-batches, want %d", n, want)
	}
	got := make([]blockio.Presence, 10)
	must(t, r.Exist(t.Context(), keys(10), got)) // 3 keys fit a request
	for i, p := range got {
		if p.Present != (i < 8) {
			t.Errorf("key %d: %+v", i, p)
		}
	}
}

func testLeasesAndDeletes(t *testing.T, transport Transport) {
	ctx := t.Context()
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	r.stored(t, 2)
	l, err := r.Lease(ctx, keys(3), time.Minute)
	must(t, err)
	if l.Keys() != 2 || !l.Expires().After(time.Now()) {
		t.Errorf("%d keys are leased until %v", l.Keys(), l.Expires())
	}
	errs := make([]error, 3)
	r.Delete(ctx, keys(3), errs)
	wantErr(t, "delete a leased block", errs[0], errdefs.ErrBusy)
	wantErr(t, "delete a missing block", errs[2], errdefs.ErrNotFound)
	before := l.Expires()
	must(t, l.Renew(ctx, time.Hour))
	if !l.Expires().After(before) {
		t.Error("the lease was not extended")
	}
	must(t, l.Release(ctx))
	wantErr(t, "renew a released lease", l.Renew(ctx, time.Minute), errdefs.ErrExpired)
	wantErr(t, "release it again", l.Release(ctx), errdefs.ErrExpired)
	r.Delete(ctx, keys(2), errs[:2])
	must(t, errors.Join(errs[:2]...))
	must(t, r.Flush(ctx))
	stat, err := r.Stat(ctx)
	must(t, err)
	if stat != (blockio.Stat{}) {
		t.Errorf("figures of an empty server: %+v", stat)
	}
	none, err := r.Lease(ctx, keys(1), time.Minute)
	must(t, err)
	must(t, errors.Join(none.Renew(ctx, time.Minute), none.Release(ctx)))
	_, err = r.Lease(ctx, keys(1), 0)
	wantErr(t, "a lease of no time", err, errdefs.ErrInvalid)
}

func testOtherBatchesGoOn(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{BatchEntries: 2})
	want := r.stored(t, 3)
	r.s.Behave(Behavior{Refuse: func(q *blockio.Request, e *blockio.Entry) blockio.Status {
		if e.Key == key(1) && e.Offset == 4096 {
			return blockio.StatusCorrupt
		}
		return blockio.StatusOK
	}, Answer: func(q *blockio.Request, res *blockio.Result) {
		if q.Op == blockio.OpRetrieve && q.Entries[0].Key == key(2) && q.Entries[0].Offset == 0 {
			*res = blockio.Result{Op: q.Op, ID: q.ID, Phase: q.Phase, Status: blockio.StatusFailed, Credits: 1}
		}
	}})
	all, m := r.pieces(t, 3, 0)
	errs := make([]error, len(all))
	r.Retrieve(t.Context(), all, errs)
	failed := 0
	for i, err := range errs {
		p := &all[i]
		switch {
		case err == nil:
			if off := p.Mem.Off - m.Off; !bytes.Equal(p.Mem.Bytes(), want[off:][:p.Mem.Len]) {
				t.Errorf("piece %d differs", i)
			}
		case p.Key == key(1) && p.Offset == 4096:
			wantErr(t, "a refused piece", err, errdefs.ErrCorrupt)
			failed++
		default:
			wantErr(t, "a failed sub-batch", err, blockio.ErrFailed)
			failed++
		}
	}
	if failed < 2 || failed > 3 {
		t.Errorf("%d pieces failed", failed)
	}
}

func testBusyIsRetried(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	var refused atomic.Int64
	r.s.Behave(Behavior{Refuse: func(q *blockio.Request, e *blockio.Entry) blockio.Status {
		if e.Offset == 0 && !q.Phase && refused.Add(1) <= 2 {
			return blockio.StatusBusy
		}
		return blockio.StatusOK
	}})
	r.stored(t, 2)
	if s := r.Stats(); s.Retries != 2 {
		t.Errorf("%d pieces were sent again, want the 2 refused ones", s.Retries)
	}
	r.s.Behave(Behavior{Refuse: func(*blockio.Request, *blockio.Entry) blockio.Status { return blockio.StatusBusy }})
	all, _ := r.pieces(t, 1, 0)
	errs := make([]error, len(all))
	r.Retrieve(t.Context(), all, errs)
	wantErr(t, "a server that stays busy", errs[0], errdefs.ErrBusy)
	if n := r.s.Requests(blockio.OpRetrieve); n != 1+blockio.DefaultRetries {
		t.Errorf("%d attempts, want %d", n, 1+blockio.DefaultRetries)
	}
}

func testLostConnectionIsReplaced(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{BatchEntries: 2})
	want := r.stored(t, 4)
	l, err := r.Lease(t.Context(), keys(1), time.Hour)
	must(t, err)
	var n atomic.Int64
	r.s.Behave(Behavior{Close: func(q *blockio.Request) bool { return n.Add(1) == 3 }})
	all, m := r.pieces(t, 4, 0)
	errs := make([]error, len(all))
	r.Retrieve(t.Context(), all, errs)
	must(t, errors.Join(errs...))
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("the bytes differ")
	}
	<-l.Lost()
	wantErr(t, "renew a lease of a lost connection", l.Renew(t.Context(), time.Hour), errdefs.ErrExpired)
	if s := r.Stats(); s.Connections != 2 || s.Retries == 0 {
		t.Errorf("statistics %+v", s)
	}
}

func testDamagedBytesAreCorrupt(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	r.stored(t, 1)
	var n atomic.Int64
	r.s.Behave(Behavior{Change: func(b []byte) {
		if n.Add(1) == 2 {
			b[len(b)-1] ^= 1
		}
	}})
	all, _ := r.pieces(t, 1, 0)
	errs := make([]error, len(all))
	r.Retrieve(t.Context(), all, errs)
	for i, err := range errs {
		if (err != nil) != (i == 1) {
			t.Errorf("piece %d: %v", i, err)
		}
	}
	wantErr(t, "a piece with a flipped bit", errs[1], errdefs.ErrCorrupt)
	if s := r.Stats(); s.Corrupt != 1 {
		t.Errorf("statistics %+v", s)
	}
}

func testWrongResultsEndIt(t *testing.T, transport Transport) {
	for what, change := range map[string]func(q *blockio.Request, r *blockio.Result){
		"another id":        func(_ *blockio.Request, r *blockio.Result) { r.ID += 7 },
		"another phase":     func(_ *blockio.Request, r *blockio.Result) { r.Phase = !r.Phase },
		"too many credits":  func(_ *blockio.Request, r *blockio.Result) { r.Credits = blockio.MaxCredits },
		"less data":         func(_ *blockio.Request, r *blockio.Result) { r.Entries[0].Bytes--; r.Bytes-- },
		"fewer entries":     func(_ *blockio.Request, r *blockio.Result) { r.Bytes -= r.Entries[0].Bytes; r.Entries = r.Entries[1:] },
		"another operation": func(_ *blockio.Request, r *blockio.Result) { r.Op = blockio.OpStore },
		"results with others": func(_ *blockio.Request, r *blockio.Result) {
			r.Bytes -= r.Entries[0].Bytes
			r.Entries[0] = blockio.EntryResult{Status: blockio.StatusOK, Bytes: 1}
			r.Bytes++
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{Retries: -1})
			r.stored(t, 1)
			r.s.Behave(Behavior{Answer: func(q *blockio.Request, res *blockio.Result) {
				if q.Op == blockio.OpRetrieve {
					change(q, res)
				}
			}})
			all, _ := r.pieces(t, 1, 0)
			errs := make([]error, len(all))
			r.Retrieve(t.Context(), all, errs)
			for _, err := range errs {
				if err == nil {
					t.Error("the result was accepted")
				}
			}
			r.s.Behave(Behavior{})
			r.Retrieve(t.Context(), all, errs)
			must(t, errors.Join(errs...))
			if s := r.Stats(); s.Connections != 2 {
				t.Errorf("statistics %+v", s)
			}
		})
	}
}

func testSilenceEndsIt(t *testing.T, transport Transport) {
	l := blockio.DefaultLimits()
	l.KeepAliveMillis = 400
	r := newRig(t, transport, l, blockio.ClientOptions{Retries: -1})
	r.stored(t, 1)
	until(t, "the client sent no keep-alive", func() bool { return r.s.Requests(blockio.OpKeepAlive) > 1 })
	if s := r.Stats(); s.Connections != 1 {
		t.Errorf("statistics %+v", s)
	}
	r.s.Behave(Behavior{Silent: true})
	all, _ := r.pieces(t, 1, 0)
	errs := make([]error, len(all))
	r.Retrieve(t.Context(), all, errs)
	if errs[0] == nil || errors.Is(errs[0], errdefs.ErrCanceled) {
		t.Errorf("a silent server: %v", errs[0])
	}
}

func testCloseEndsCalls(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	r.stored(t, 1)
	release := r.hold(Behavior{})
	defer release()
	all, _ := r.pieces(t, 1, 0)
	errs := make([]error, len(all))
	go func() {
		until(t, "the server got no retrieve", func() bool { return r.s.Requests(blockio.OpRetrieve) > 0 })
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	r.Retrieve(t.Context(), all, errs)
	wantErr(t, "a retrieve of a closed client", errs[0], errdefs.ErrClosed)
	wantErr(t, "a later call", r.Flush(t.Context()), errdefs.ErrClosed)
}

func testRefusals(t *testing.T, transport Transport) {
	r := newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{Token: []byte("wrong")})
	wantErr(t, "a wrong token", r.Flush(t.Context()), blockio.ErrDenied)
	r = newRig(t, transport, blockio.DefaultLimits(), blockio.ClientOptions{})
	all, _ := r.pieces(t, 1, 0)
	errs := make([]error, len(all))
	all[0].Identity++
	r.Store(t.Context(), all[:1], errs)
	wantErr(t, "an identity that is not declared", errs[0], errdefs.ErrMismatch)
	all[0].Identity = 0
	r.Store(t.Context(), all[:1], errs)
	wantErr(t, "no identity", errs[0], errdefs.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Store(ctx, all[1:2], errs)
	if errs[0] == nil {
		t.Error("a store after the end of its context")
	}
	var remaining atomic.Int64
	r.s.Behave(Behavior{Answer: func(q *blockio.Request, _ *blockio.Result) { remaining.Store(int64(q.RemainingMillis)) }})
	ctx, cancel = context.WithTimeout(t.Context(), time.Hour/2)
	defer cancel()
	must(t, r.Flush(ctx))
	if n := remaining.Load(); n <= 0 || n > (time.Hour/2).Milliseconds() {
		t.Errorf("the request has %d ms", n)
	}
}

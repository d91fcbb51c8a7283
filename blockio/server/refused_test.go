package server

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/wire"
)

// result reads the result of a request.
func (c *raw) result(t *testing.T) *blockio.Result {
	t.Helper()
	b, _, err := c.r.Next()
	must(t, err)
	r, l := new(blockio.Result), blockio.DefaultLimits()
	must(t, r.Decode(b, &l))
	return r
}

// frame returns a request with its data.
func frame(t *testing.T, q *blockio.Request, data ...[]byte) []byte {
	t.Helper()
	l, p := blockio.DefaultLimits(), blockio.Packer{}
	body, err := p.Request(nil, q, &l)
	must(t, err)
	var b bytes.Buffer
	w := wire.NewFrameWriter(&b)
	must(t, errors.Join(w.Append(body, data...), w.Flush()))
	return b.Bytes()
}

// The bytes of a store that exceeds its deadline are not stored, whether the deadline ends before a
// piece or within it.
func TestStoreAfterItsDeadline(t *testing.T) {
	r := newRig(t, Options{}, 8)
	f := r.formats[0]
	c := r.raw(t)
	data := make([]byte, 4096)
	e := blockio.Entry{Key: key(1), Identity: blockio.IdentityHash(f.Identity), Length: 4096, Sum: xxh3.Hash(data)}
	second := e
	second.Offset, second.EndShard = 4096, 1
	b := frame(t, &blockio.Request{Op: blockio.OpStore, ID: 2, RemainingMillis: 20, Entries: []blockio.Entry{e, second}}, data, data)
	_, err := c.Write(b[:len(b)-4096-100])
	must(t, err)
	time.Sleep(40 * time.Millisecond)
	_, err = c.Write(b[len(b)-4096-100:])
	must(t, err)
	got := c.result(t)
	if got.Status != blockio.StatusPartial || got.Entries[0].Status != blockio.StatusTimeout || got.Entries[1].Status != blockio.StatusTimeout {
		t.Errorf("result %+v", got)
	}
}

// A refused store does not allocate memory for its bytes.
func TestRefusedStoreTakesNoMemory(t *testing.T) {
	r := newRig(t, Options{}, 8)
	c := r.raw(t)
	data := make([]byte, blockio.MaxEntryBytes)
	e := blockio.Entry{Key: key(1), Identity: 77, Length: blockio.MaxEntryBytes, Sum: xxh3.Hash(data)}
	b := frame(t, &blockio.Request{Op: blockio.OpStore, ID: 2, RemainingMillis: 60000, Entries: []blockio.Entry{e}}, data)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Write(b)
	must(t, err)
	got := c.result(t)
	runtime.ReadMemStats(&after)
	if got.Entries[0].Status != blockio.StatusMismatch {
		t.Errorf("result %+v", got)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("a refused piece of %d bytes allocated %d bytes", len(data), n)
	}
}

// Identities without blocks are removed when their connections end.
func TestIdentitiesEndWithTheirConnections(t *testing.T) {
	r := newRig(t, Options{}, 8)
	space, err := r.host.Space(t.Context(), "default", r.formats[0])
	must(t, err)
	for range 3 {
		must(t, r.raw(t).Close())
	}
	until(t, "the connections did not end", func() bool { return r.Server.Stats().Connections == 0 })
	space.Release()
	if n := r.host.Spaces(); n != 0 {
		t.Errorf("%d identities are left", n)
	}
}

// A client guesses keys, identities, lengths and leases: each guess is refused, and the refusals that
// are no misses are counted. The lease of another connection stays.
func TestGuessesAreRefusedAndCounted(t *testing.T) {
	r := newRig(t, Options{}, 8)
	f, c := r.formats[0], r.client(t, blockio.ClientOptions{})
	_, pieces := image(t, f, 1, 1<<20)
	must(t, store(t, c, pieces))
	l, err := c.Lease(t.Context(), entries(f, 2)[1:], time.Hour)
	must(t, err)
	id, n := blockio.IdentityHash(f.Identity), uint64(f.Layout.ImageBytes())
	piece := func(e blockio.Entry) []blockio.Entry { return []blockio.Entry{e} }
	hostile := r.raw(t)
	for at, guess := range []struct {
		q      blockio.Request
		want   blockio.Status
		counts int64
	}{
		{blockio.Request{Op: blockio.OpRetrieve, Entries: piece(blockio.Entry{Key: key(9), Identity: id, Length: 8})}, blockio.StatusNotFound, 0},
		{blockio.Request{Op: blockio.OpRetrieve, Entries: piece(blockio.Entry{Key: key(1), Identity: id + 100, Length: 8})}, blockio.StatusMismatch, 1},
		{blockio.Request{Op: blockio.OpRetrieve, Entries: piece(blockio.Entry{Key: key(1), Identity: id, Offset: n - 1, Length: 2, EndShard: 3, FirstShard: 2})}, blockio.StatusInvalid, 1},
		{blockio.Request{Op: blockio.OpRetrieve, Entries: piece(blockio.Entry{Key: key(1), Identity: id, Length: 8, EndShard: 9})}, blockio.StatusInvalid, 1},
		{blockio.Request{Op: blockio.OpDelete, Keys: []blockio.KeyEntry{{Key: key(1), Identity: id + 100}}}, blockio.StatusMismatch, 1},
		{blockio.Request{Op: blockio.OpDelete, Keys: []blockio.KeyEntry{{Key: key(1), Identity: id}}}, blockio.StatusLeased, 1},
		{blockio.Request{Op: blockio.OpRelease, IDs: []uint64{1}}, blockio.StatusNotFound, 0}, // a lease of the other connection
		{blockio.Request{Op: blockio.OpRenew, LeaseMillis: 1, IDs: []uint64{1}}, blockio.StatusNotFound, 0},
	} {
		before := r.Server.Stats().FailedEntries
		guess.q.ID, guess.q.RemainingMillis = uint64(at)+2, 60000
		_, err := hostile.Write(frame(t, &guess.q))
		must(t, err)
		got := hostile.result(t)
		var status blockio.Status
		if len(got.Entries) == 1 {
			status = got.Entries[0].Status
		} else if len(got.Statuses) == 1 {
			status = got.Statuses[0]
		}
		if n := r.Server.Stats().FailedEntries - before; status != guess.want || n != guess.counts || got.Bytes > 0 {
			t.Errorf("%v %d: %v with %d bytes, want %v; %d counted", guess.q.Op, at, status, got.Bytes, guess.want, n)
		}
	}
	must(t, l.Release(t.Context()))
}

// Clients end in mid-batch, with stores, retrieves and leases in progress: the server keeps nothing.
func TestKilledClientsLeaveNothing(t *testing.T) {
	r := newDiskRig(t, Options{}, 8, disks["file"](t.TempDir(), nil)) // it closes only if no block is in use
	f, c := r.formats[0], r.client(t, blockio.ClientOptions{Retries: 20})
	for i := range 12 {
		_, pieces := image(t, f, i, 1<<20)
		must(t, store(t, c, pieces))
	}
	must(t, c.Flush(t.Context()))
	id := blockio.IdentityHash(f.Identity)
	for round := range 20 {
		k := r.raw(t)
		var all []byte
		all = append(all, frame(t, &blockio.Request{Op: blockio.OpLease, ID: 2, RemainingMillis: 60000, LeaseMillis: 60000, Keys: entries(f, 12)})...)
		for i := range 12 {
			e := blockio.Entry{Key: key(i), Identity: id, Length: 4096}
			all = append(all, frame(t, &blockio.Request{Op: blockio.OpRetrieve, ID: uint64(i) + 3, RemainingMillis: 60000, Entries: []blockio.Entry{e}})...)
		}
		e := blockio.Entry{Key: key(100 + round), Identity: id, Length: 4096}
		all = append(all, frame(t, &blockio.Request{Op: blockio.OpStore, ID: 50, RemainingMillis: 60000, Entries: []blockio.Entry{e}}, make([]byte, 4096))...)
		_, err := k.Write(all[:len(all)-round*len(all)/25])
		must(t, err)
		must(t, k.Close())
	}
	until(t, "connections or leases are left", func() bool {
		return r.Server.Stats().Connections == 1 && r.host.Usage(auth.DefaultTenant).Leased == 0
	})
	must(t, r.retrieve(t, c, f, 3))
}

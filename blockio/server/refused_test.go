package server

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/blockio"
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

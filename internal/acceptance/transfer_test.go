package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/transfer"
)

func openTransfer(t *testing.T, e *kvlane.Engine, c kvlane.TransferConfig) *kvlane.Transfer {
	t.Helper()
	c.SocketDir = t.TempDir() + "/s"
	tr, err := e.OpenTransfer(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience())
		defer cancel()
		if err := errors.Join(tr.Close(ctx), tr.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func registered(t *testing.T, e *kvlane.Engine, m kvlane.CacheMemory) *kvlane.Cache {
	t.Helper()
	c, err := e.RegisterCache(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// handedOver are the pages that handOver and sendKV transfer.
var handedOver = []kvlane.PagePair{{Local: 0, Remote: 3}, {Local: 1, Remote: 0}, {Local: 4, Remote: 5}}

// handOver transfers three pages of every layer and returns the last event of the receiver.
func handOver(t *testing.T, from, to *kvlane.Transfer, name string, here *kvlane.Cache, layers int) (received kvlane.HandoverEvent) {
	t.Helper()
	sendKV(t, from, name, here, layers)
	var err error
	for range layers {
		if received, err = to.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return received
}

func sendKV(t *testing.T, from *kvlane.Transfer, name string, here *kvlane.Cache, layers int) {
	t.Helper()
	peer, err := from.Connect(t.Context(), name, here)
	if err != nil {
		t.Fatal(err)
	}
	request, err := peer.Begin([]byte("request 1"), handedOver)
	if err != nil {
		t.Fatal(err)
	}
	for k := range layers {
		if err := request.Layer(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	if err := request.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestTransferHandsKVOver transfers pages between the KV caches of two engines. Only the named
// pages may change. The receiver is found at an address and through a metadata server.
func TestTransferHandsKVOver(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver = kvlane.Host
	uri := metadataServer(t)
	for _, tc := range []kvlane.TransferConfig{{}, {Metadata: uri}} {
		a, b := c, c
		a.Store.Dirs, b.Store.Dirs = []string{t.TempDir()}, []string{t.TempDir()}
		bytesHere, here := ordinary(t, a)
		bytesThere, there := ordinary(t, b)
		clear(bytesThere)
		prefill, decode := openEngine(t, a), openEngine(t, b)
		ch, ct := registered(t, prefill, here), registered(t, decode, there)
		from, to := openTransfer(t, prefill, tc), openTransfer(t, decode, tc)
		if err := to.Offer(t.Context(), "decode", ct); err != nil {
			t.Fatal(err)
		}
		if err := to.Offer(t.Context(), "decode", ct); !errors.Is(err, errdefs.ErrExists) {
			t.Errorf("offer the same name again: %v", err)
		}
		name := "decode"
		if tc.Metadata == "" {
			name = to.Address() + "/decode"
		}
		if received := handOver(t, from, to, name, ch, c.Model.Layers); !received.Complete || string(received.Request) != "request 1" {
			t.Errorf("received %+v", received)
		}
		n := int(here.PageBytes)
		for p := range here.Planes {
			plane := func(b []byte, page int) []byte { return b[p*cachePages*n+page*n:][:n] }
			for page, want := range map[int][]byte{3: plane(bytesHere, 0), 0: plane(bytesHere, 1), 5: plane(bytesHere, 4), 1: make([]byte, n), 2: make([]byte, n)} {
				if !bytes.Equal(plane(bytesThere, page), want) {
					t.Errorf("plane %d page %d has wrong bytes", p, page)
				}
			}
		}
		if notes := strings.Join(to.Notes(), "\n"); !strings.Contains(notes, "sockets") {
			t.Errorf("notes %q", notes)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := ct.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("close a cache that is offered: %v", err)
		}
		cancel()
	}
}

// TestTransferShares checks that shareable device memory is transferred through a mapping. Other
// memory is sent over sockets, with a note.
func TestTransferShares(t *testing.T) {
	for _, shareable := range []bool{true, false} {
		a, b := testConfig(t), testConfig(t)
		prefill, decode := openEngine(t, a), openEngine(t, b)
		memory := func(e *kvlane.Engine, c kvlane.Config) kvlane.CacheMemory {
			r, err := e.Device().Alloc(int64(c.Model.Layers*c.Model.PlanesPerLayer())*cachePages*c.Model.PlaneBytes(), device.AllocOptions{Shareable: shareable})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := e.Device().Free(r); err != nil {
					t.Error(err)
				}
			})
			q, err := e.Device().OpenQueue(device.QueueOptions{})
			if err == nil {
				err = errors.Join(q.Fill(mem.All(r), 7), q.Close(t.Context()))
			}
			if err != nil {
				t.Fatal(err)
			}
			return cacheMemory(c, r.Dev(), false)
		}
		ch, ct := registered(t, prefill, memory(prefill, a)), registered(t, decode, memory(decode, b))
		from, to := openTransfer(t, prefill, kvlane.TransferConfig{}), openTransfer(t, decode, kvlane.TransferConfig{})
		if err := to.Offer(t.Context(), "decode", ct); err != nil {
			t.Fatal(err)
		}
		if received := handOver(t, from, to, to.Address(), ch, a.Model.Layers); !received.Complete {
			t.Errorf("received %+v", received)
		}
		by := transfer.PathTCP
		if shareable {
			by = transfer.PathNVLink
		}
		if s := from.Stats(); s.Paths[by].Bytes == 0 || shareable != (len(from.Notes()) == 0) {
			t.Errorf("shareable %v: %+v, notes %q", shareable, s.Paths, from.Notes())
		}
	}
}

// TestTransferWithoutRuntimeDirectory checks that an unusable default directory for sockets
// disables only the paths that need it, and is reported by a note.
func TestTransferWithoutRuntimeDirectory(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()+"/absent")
	e := openEngine(t, testConfig(t))
	tr, err := e.OpenTransfer(t.Context(), kvlane.TransferConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if notes := tr.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "XDG_RUNTIME_DIR") {
		t.Errorf("notes %q", notes)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if tr, err := e.OpenTransfer(t.Context(), kvlane.TransferConfig{SocketDir: t.TempDir() + "/absent/s"}); err == nil {
		t.Error("no error for a configured directory that cannot be used")
		_ = tr.Close(t.Context())
	}
}

// TestTransferOfAnotherModel checks that KV of another model, or with another layout of planes, is
// refused.
func TestTransferOfAnotherModel(t *testing.T) {
	a, b := testConfig(t), testConfig(t)
	a.Device.Driver, b.Device.Driver = kvlane.Host, kvlane.Host
	b.Revision = "another"
	_, here := ordinary(t, a)
	_, there := ordinary(t, b)
	prefill, decode := openEngine(t, a), openEngine(t, b)
	ch, ct := registered(t, prefill, here), registered(t, decode, there)
	from, to := openTransfer(t, prefill, kvlane.TransferConfig{}), openTransfer(t, decode, kvlane.TransferConfig{})
	if err := to.Offer(t.Context(), "decode", ct); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Connect(t.Context(), to.Address()+"/decode", ch); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("KV of another revision: %v", err)
	}
	if _, err := from.Connect(t.Context(), to.Address()+"/nothing", ch); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("an unknown segment: %v", err)
	}
	if err := to.Offer(t.Context(), "mine", ch); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("offer the cache of another engine: %v", err)
	}
	if _, err := prefill.OpenTransfer(t.Context(), kvlane.TransferConfig{Metadata: "etcd://x"}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("metadata of another sort: %v", err)
	}
}

func metadataServer(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/metadata", metadata.NewServer(metadata.ServerOptions{}))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL + "/metadata"
}

// TestTransferOfPageGroups transfers the KV of a hybrid model to the pages of each group. A group
// without pages gets none, and other pages do not change.
func TestTransferOfPageGroups(t *testing.T) {
	a, b := hybridConfig(t), hybridConfig(t)
	here, there := &hybridWorld{c: &a}, &hybridWorld{c: &b}
	here.open(t)
	there.open(t)
	clear(there.dev.host.Bytes())
	there.dev.copy(t, there.dev.kv, there.dev.host)
	from, to := openTransfer(t, here.e, kvlane.TransferConfig{}), openTransfer(t, there.e, kvlane.TransferConfig{})
	if err := to.Offer(t.Context(), "decode", there.cache); err != nil {
		t.Fatal(err)
	}
	peer, err := from.Connect(t.Context(), to.Address(), here.cache)
	if err != nil {
		t.Fatal(err)
	}
	pairs := [][]kvlane.PagePair{{{Local: 0, Remote: 5}, {Local: 1, Remote: 3}}, nil, {{Local: 4, Remote: 9}}}
	if _, err := peer.Begin([]byte("request"), pairs[0]); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("pages of one group of three: %v", err)
	}
	request, err := peer.Begin([]byte("request"), pairs...)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []int{3, 0, 1, 2, 5, 4} {
		if err := request.Layer(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	if err := request.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		received, err := to.Receive(t.Context())
		if err != nil || received.Failed || received.Complete != (n == 6) {
			t.Fatalf("%d: received %+v, %v", n, received, err)
		}
		if received.Complete {
			break
		}
	}
	before, got := here.dev.read(t), there.dev.read(t)
	want := make([]byte, len(got))
	for g, m := range here.memory {
		for _, p := range pairs[g] {
			for _, plane := range m.Planes {
				at := int64(plane - here.dev.kv.Dev())
				copy(want[at+int64(p.Remote)*m.Stride:][:m.PageBytes], before[at+int64(p.Local)*m.Stride:][:m.PageBytes])
			}
		}
	}
	if !bytes.Equal(got, want) || bytes.Count(want, []byte{0}) == len(want) {
		t.Error("the pages have wrong bytes, or others have some")
	}
	begun, err := peer.Begin([]byte("request"), pairs...)
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while a request is not finished: %v", err)
	}
	if err := begun.Finish(t.Context()); !errors.Is(err, errdefs.ErrCanceled) {
		t.Errorf("finish a request of which nothing was handed over: %v", err)
	}
	if err := peer.Close(); err != nil {
		t.Error(err)
	}
	afterClose, err := peer.Begin([]byte("request"), pairs...)
	if err != nil {
		t.Fatal(err)
	}
	if err := afterClose.Layer(t.Context(), 0); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("hand a layer over to a receiver that is closed: %v", err)
	}
	if err := afterClose.Finish(t.Context()); err == nil {
		t.Error("a request to a closed receiver succeeded")
	}
}

// TestDefectFailedConnectsHoldTheCache checks that a cache is not in use after a failed Offer or
// Connect. A Transfer that uses a cache several times holds it once, until it is closed.
func TestDefectFailedConnectsHoldTheCache(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver = kvlane.Host
	_, memory := ordinary(t, c)
	e := openEngine(t, c)
	cache, used := registered(t, e, memory), registered(t, e, memory)
	tr := openTransfer(t, e, kvlane.TransferConfig{})
	for range 3 {
		if _, err := tr.Connect(t.Context(), tr.Address()+"/nothing", cache); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("an unknown segment: %v", err)
		}
		if err := tr.Offer(t.Context(), strings.Repeat("x", 1<<16), cache); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("a long name: %v", err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	if err := cache.Close(soon); err != nil {
		t.Fatal(err)
	}
	if err := tr.Offer(t.Context(), "kv", used); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := tr.Connect(t.Context(), tr.Address()+"/kv", used); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := used.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close a cache that is offered: %v", err)
	}
}

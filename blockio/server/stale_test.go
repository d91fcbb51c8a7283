package server

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
)

// A client whose list of servers is older is refused with the server's epoch. It refreshes its list
// and connects. If that fails it connects without an epoch.
func TestClientsWithAnOlderListRefreshIt(t *testing.T) {
	var server, client, asked atomic.Uint64
	server.Store(7)
	r := newRig(t, Options{Epoch: server.Load}, 8)
	failing := errors.New("the directory does not answer")
	for _, c := range []struct {
		name    string
		epoch   uint64
		refresh error
		asked   uint64 // epoch that the client refreshes to
	}{
		{"older", 6, nil, 7},
		{"equal", 7, nil, 0},
		{"newer", 8, nil, 0},
		{"without a list", 0, nil, 0},
		{"older, and its directory fails", 6, failing, 7},
	} {
		client.Store(c.epoch)
		asked.Store(0)
		o := blockio.ClientOptions{Retries: -1, Epoch: client.Load, Refresh: func(_ context.Context, epoch uint64) error {
			asked.Store(epoch)
			if c.refresh == nil {
				client.Store(epoch)
			}
			return c.refresh
		}}
		if _, err := r.client(t, o).Stat(t.Context()); err != nil || asked.Load() != c.asked {
			t.Errorf("%s: %v, refreshed to %d, want %d", c.name, err, asked.Load(), c.asked)
		}
	}
	// The directory of the client never has the server's epoch, as after a restore.
	client.Store(6)
	o := blockio.ClientOptions{Retries: -1, Epoch: client.Load, Refresh: func(context.Context, uint64) error { return nil }}
	if _, err := r.client(t, o).Stat(t.Context()); err != nil {
		t.Errorf("a client whose directory has earlier epochs: %v", err)
	}
	_, err := r.client(t, blockio.ClientOptions{Retries: -1, Epoch: client.Load}).Stat(t.Context())
	var stale *blockio.StaleError
	if !errors.As(err, &stale) || stale.Epoch != 7 || !errors.Is(err, blockio.ErrRefused) {
		t.Errorf("a client that cannot refresh its list: %v", err)
	}
}

// A connected client learns from results that the server's list has changed.
func TestConnectedClientsLearnThatTheListHasChanged(t *testing.T) {
	var server, newer atomic.Uint64
	server.Store(7)
	r := newRig(t, Options{Epoch: server.Load}, 8)
	hellos := map[string]uint64{"with a list": 7, "with a later list": 8, "without a list": 0}
	for name, epoch := range hellos {
		server.Store(7)
		newer.Store(0)
		c := r.client(t, blockio.ClientOptions{Epoch: func() uint64 { return epoch }, Newer: newer.Store})
		ask := func() {
			t.Helper()
			out := make([]blockio.Presence, 2)
			must(t, c.Exist(t.Context(), entries(r.formats[0], 2), out))
		}
		ask()
		if newer.Load() != 0 {
			t.Errorf("%s: epoch %d without a change", name, newer.Load())
		}
		server.Store(9)
		want := server.Load()
		if epoch == 0 {
			want = 0
		}
		ask()
		if newer.Load() != want || c.Stats().Connections != 1 {
			t.Errorf("%s: epoch %d after a change to %d, %d connections", name, newer.Load(), server.Load(), c.Stats().Connections)
		}
	}
}

// The result of a hello has the zone and the boot, by which a client notices a restart.
func TestClientsLearnZoneAndBoot(t *testing.T) {
	r, again := newRig(t, Options{Zone: "east-1"}, 8), newRig(t, Options{}, 8)
	dial := r.dial
	var greetings []blockio.Greeting
	c := r.client(t, blockio.ClientOptions{
		Dial:      func(ctx context.Context) (net.Conn, error) { return dial(ctx) },
		Connected: func(g blockio.Greeting) { greetings = append(greetings, g) },
	})
	stat := func() {
		t.Helper()
		_, err := c.Stat(t.Context())
		must(t, err)
	}
	stat()
	must(t, r.Close(t.Context()))
	dial = again.dial
	stat()
	if len(greetings) != 2 || greetings[0] != (blockio.Greeting{Boot: r.Boot(), Zone: "east-1"}) || greetings[1] != (blockio.Greeting{Boot: again.Boot()}) {
		t.Errorf("greetings %+v", greetings)
	}
	if st := c.Stats(); st.Restarts != 1 {
		t.Errorf("%+v", st)
	}
	if _, err := New(Options{Host: r.host, Auth: r.o.Auth, Zone: "a b"}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a zone with a space: %v", err)
	}
}

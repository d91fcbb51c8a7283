package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/blockio"
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
	client.Store(6)
	_, err := r.client(t, blockio.ClientOptions{Retries: -1, Epoch: client.Load}).Stat(t.Context())
	var stale *blockio.StaleError
	if !errors.As(err, &stale) || stale.Epoch != 7 || !errors.Is(err, blockio.ErrRefused) {
		t.Errorf("a client that cannot refresh its list: %v", err)
	}
}

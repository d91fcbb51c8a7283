package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
)

// The server is restarted 20 times at the same address while a client works. Without the server,
// calls fail within their deadline. With it, blocks are first missing and then found again.
func TestRestarts(t *testing.T) {
	r := newRig(t, Options{}, 8)
	c := r.client(t, blockio.ClientOptions{})
	f := r.formats[0]
	m, pieces := image(t, f, 1, 4096)
	errs := make([]error, len(pieces))
	must(t, store(t, c, pieces))
	servers := []*Server{r.Server}
	for n := range 20 {
		old := servers[len(servers)-1]
		must(t, old.Close(context.Background()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		c.Retrieve(ctx, pieces, errs)
		cancel()
		if errors.Join(errs...) == nil {
			t.Fatal("a stopped server has answered")
		}
		space, err := r.host.Space(t.Context(), auth.DefaultTenant, f)
		must(t, err)
		must(t, space.Delete(t.Context(), key(1))) // a restart loses the blocks in memory
		s, err := New(Options{Host: r.host, Auth: r.o.Auth})
		must(t, err)
		_, err = s.Listen(t.Context(), r.addr)
		must(t, err)
		servers = append(servers, s)
		c.Retrieve(t.Context(), pieces, errs)
		wantErr(t, "a block of the server before", errs[0], errdefs.ErrNotFound)
		must(t, store(t, c, pieces))
		clear(m.Bytes())
		c.Retrieve(t.Context(), pieces, errs)
		must(t, errors.Join(errs...))
		must(t, f.Verify(m.Bytes(), key(1)))
		if got := c.Stats().Connections; got != int64(n)+2 {
			t.Fatalf("%d connections after %d restarts", got, n+1)
		}
	}
	must(t, servers[len(servers)-1].Close(context.Background()))
	_, err := net.Dial("tcp", r.addr)
	if err == nil {
		t.Error("a closed server accepts connections")
	}
}

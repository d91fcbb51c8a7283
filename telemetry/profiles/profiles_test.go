package profiles_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/telemetry/profiles"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Profiles are served only on loopback addresses, whatever the form of the address.
func TestProfilesAreServedOnLoopbackAlone(t *testing.T) {
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0", "localhost.example:0", "nowhere", ""} {
		srv, err := profiles.Serve(t.Context(), addr)
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%q: %v", addr, err)
		}
		if err == nil {
			_ = srv.Close()
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "127.9.9.9:0", "localhost:0"} {
		srv, err := profiles.Serve(t.Context(), addr)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Close of the server does not wait for a profile that is being recorded. The client gets the part
// recorded so far.
func TestProfileEndsWithItsServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv, err := profiles.Serve(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	at := "http://" + srv.Addr().String() + "/debug/pprof/"
	type answer struct {
		body []byte
		err  error
	}
	taken := make(chan answer, 1)
	go func() {
		resp, err := client.Get(at + "profile?seconds=600")
		if err != nil {
			taken <- answer{err: err}
			return
		}
		body, err := io.ReadAll(resp.Body)
		taken <- answer{body, errors.Join(err, resp.Body.Close())}
	}()
	deadline := time.Now().Add(testkit.Patience())
	for {
		resp, err := client.Get(at + "goroutine?debug=1")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), "net/http/pprof.Profile") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no profile is being taken:\n%s", body)
		}
	}
	cancel()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	got := <-taken
	if got.err != nil || len(got.body) < 2 || got.body[0] != 0x1f || got.body[1] != 0x8b { // gzip, the format of profiles
		t.Errorf("%d bytes, %v", len(got.body), got.err)
	}
}

// A web page whose host name resolves to this machine gets no profile, because its requests contain
// that name.
func TestProfilesAreRefusedToOtherHosts(t *testing.T) {
	srv, err := profiles.Serve(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = srv.Close() }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for host, want := range map[string]int{
		"": http.StatusOK, "localhost": http.StatusOK, "localhost:1": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]": http.StatusOK, "[::1]:1": http.StatusOK,
		"attacker.example": http.StatusForbidden, "attacker.example:80": http.StatusForbidden, "localhost.example": http.StatusForbidden, "192.0.2.1": http.StatusForbidden,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL()+"/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if resp.StatusCode != want {
			t.Errorf("host %q: status %d, want %d", host, resp.StatusCode, want)
		}
	}
}

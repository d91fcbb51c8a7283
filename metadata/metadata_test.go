package metadata

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func serve(t *testing.T, o ServerOptions) (*Server, *Client) {
	t.Helper()
	s := NewServer(o)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	c, err := NewClient(h.URL+"/metadata", time.Minute)
	must(t, err)
	t.Cleanup(c.Close)
	return s, c
}

// TestLeases checks that a value with a lease stays until the lease ends or it is deleted, and a
// value without one until it is deleted.
func TestLeases(t *testing.T) {
	clock := clockwork.NewFakeClock()
	s, c := serve(t, ServerOptions{Clock: clock})
	ctx := t.Context()
	has := func(key, want string) {
		t.Helper()
		got, err := c.Get(ctx, key)
		if want == "" && !isNotFound(err) || want != "" && string(got) != want {
			t.Errorf("%s: %q, %v, want %q", key, got, err, want)
		}
	}
	key := "kvlane/a b/ü?&="
	has(key, "")
	must(t, c.Put(ctx, key, []byte("1"), 10*time.Second))
	must(t, c.Put(ctx, "stays", []byte("2"), 0))
	has(key, "1")
	clock.Advance(9 * time.Second)
	must(t, c.Put(ctx, key, []byte("3"), 10*time.Second))
	clock.Advance(9 * time.Second)
	has(key, "3")
	clock.Advance(time.Second)
	has(key, "")
	clock.Advance(1000 * time.Hour)
	has("stays", "2")
	if n := s.Len(); n != 1 {
		t.Errorf("%d values", n)
	}
	must(t, c.Delete(ctx, "stays"))
	must(t, c.Delete(ctx, "stays"))
	has("stays", "")
	if s.bytes != 0 {
		t.Errorf("%d bytes are left", s.bytes)
	}
}

func isNotFound(err error) bool {
	return err != nil && strings.Contains(err.Error(), errdefs.ErrNotFound.Error())
}

func TestBounds(t *testing.T) {
	_, c := serve(t, ServerOptions{MaxBytes: 1 << 20})
	ctx := t.Context()
	for name, err := range map[string]error{
		"no key":     c.Put(ctx, "", nil, 0),
		"a long key": c.Put(ctx, strings.Repeat("k", MaxKeyBytes+1), nil, 0),
		"too much":   c.Put(ctx, "k", make([]byte, MaxValueBytes+1), 0),
		"full":       c.Put(ctx, "k", make([]byte, MaxValueBytes), 0),
	} {
		if err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	must(t, c.Put(ctx, "k", make([]byte, MaxValueBytes/2), 0))
	must(t, c.Put(ctx, "k", make([]byte, MaxValueBytes-1000), 0)) // replaces it
	for _, bad := range []string{"", "ftp://x/metadata", "http://", "http://x/?a=b", "%"} {
		if _, err := NewClient(bad, 0); err == nil {
			t.Errorf("%q is no address", bad)
		}
	}
}

// TestServerDown checks that requests fail at once while the server is down, and succeed when it is
// up again.
func TestServerDown(t *testing.T) {
	s := NewServer(ServerOptions{})
	h := httptest.NewServer(s)
	c, err := NewClient(h.URL+"/metadata", time.Minute)
	must(t, err)
	defer c.Close()
	must(t, c.Put(t.Context(), "k", []byte("v"), 0))
	h.Close()
	if _, err := c.Get(t.Context(), "k"); err == nil || isNotFound(err) {
		t.Errorf("get from a server that is down: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Put(ctx, "k", nil, 0); err == nil {
		t.Error("put after the context's end")
	}
}

// stuck is a request body that returns no bytes until it is closed.
type stuck struct{ read, closed chan struct{} }

func (s stuck) Read([]byte) (int, error) {
	s.read <- struct{}{}
	<-s.closed
	return 0, io.ErrUnexpectedEOF
}

func (s stuck) Close() error { return nil }

// TestSlowPuts checks that slow puts use the memory of at most maxPuts values, and do not delay
// other requests.
func TestSlowPuts(t *testing.T) {
	s := NewServer(ServerOptions{})
	body := stuck{make(chan struct{}, 2*maxPuts), make(chan struct{})}
	var serving sync.WaitGroup
	for range maxPuts + 1 {
		serving.Go(func() {
			r := httptest.NewRequest(http.MethodPut, "/metadata?key=a", body)
			s.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	for range maxPuts {
		<-body.read
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metadata?key=a", http.NoBody))
	if w.Code != http.StatusNotFound || len(body.read) > 0 {
		t.Errorf("status %d, %d values more are read", w.Code, len(body.read))
	}
	close(body.closed)
	serving.Wait()
}

// FuzzRequest checks that a server answers every request, and counts its values and bytes
// correctly.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "key=a", []byte(nil))
	f.Add("PUT", "key=a&ttl=100", []byte("value"))
	f.Add("PUT", "key=a&ttl=-1", []byte("value"))
	f.Add("DELETE", "key=a", []byte(nil))
	f.Add("PUT", "key=%zz;;", []byte("value"))
	f.Fuzz(func(t *testing.T, method, query string, body []byte) {
		s := NewServer(ServerOptions{MaxBytes: 4096})
		for range 2 {
			r := &http.Request{Method: method, URL: &url.URL{Path: "/metadata", RawQuery: query}, Body: http.NoBody}
			if len(body) > 0 {
				r.Body = readCloser{bytes.NewReader(body)}
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code < 200 || w.Code > 599 {
				t.Errorf("status %d", w.Code)
			}
		}
		if s.bytes < 0 || s.bytes > 4096 || (s.bytes == 0) != (len(s.all) == 0) {
			t.Errorf("%d bytes of %d values", s.bytes, len(s.all))
		}
	})
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

package mooncake_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// directory returns the directory of a metadata server that contains texts.
func directory(t *testing.T, texts map[string]string) mooncake.Directory {
	t.Helper()
	web := httptest.NewServer(metadata.NewServer(metadata.ServerOptions{}))
	t.Cleanup(web.Close)
	for key, text := range texts {
		if code := put(t, web.URL, key, text); code != http.StatusOK {
			t.Fatalf("put %s: %d", key, code)
		}
	}
	d, err := mooncake.OpenDirectory(web.URL+"/metadata", "")
	must(t, err)
	return d
}

func put(t *testing.T, at, key, text string) int {
	t.Helper()
	code, _ := plain(t, http.MethodPut, at+"/metadata?key="+url.QueryEscape(key), text)
	return code
}

func plain(t *testing.T, method, at, text string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(text))
	must(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	must(t, err)
	return resp.StatusCode, b.String()
}

// TestSegmentsByHTTP checks the keys and texts of a segment in a metadata server. Transfers must
// continue while the server is down, and the segment must be published again afterwards.
func TestSegmentsByHTTP(t *testing.T) {
	store := metadata.NewServer(metadata.ServerOptions{})
	var down atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		store.ServeHTTP(w, r)
	}))
	defer web.Close()
	d, err := mooncake.OpenDirectory(web.URL+"/metadata", "cluster")
	must(t, err)
	change := func(o *mooncake.ServerOptions) {
		o.Name, o.Listen, o.Directory = "localhost", "127.0.0.1:0", d
		o.RepublishTime = time.Hour
	}
	s, there := serve(t, 4096, change)
	if _, text := plain(t, http.MethodGet, web.URL+"/metadata?key=mooncake/cluster/rpc_meta/localhost", ""); !strings.Contains(text, `"ip_or_host_name":"127.0.0.1","rpc_port":`) {
		t.Errorf("rpc_meta %q", text)
	}
	if _, text := plain(t, http.MethodGet, web.URL+"/metadata?key=mooncake/cluster/ram/localhost", ""); !strings.Contains(text, `"name":"localhost"`) {
		t.Errorf("segment %q", text)
	}
	if _, err := mooncake.Probe(within(t), d, "localhost"); err != nil {
		t.Error(err)
	}
	if _, err := mooncake.Open(within(t), "nobody", mooncake.Options{Directory: d, Memory: mooncake.NewRegions(nil)}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("a segment that is not there: %v", err)
	}
	r, here := open(t, "localhost", 4096, func(o *mooncake.Options) { o.Directory = d })
	task := mooncake.Task{Op: transfer.Write, Local: addr(here), Remote: addr(there), Length: 4096}
	must(t, do(t, r, task))
	down.Store(true)
	must(t, do(t, r, task))
	if _, err := mooncake.Open(within(t), "localhost", mooncake.Options{Directory: d, Memory: mooncake.NewRegions(nil)}); err == nil || !strings.Contains(err.Error(), "/metadata") {
		t.Errorf("with the server down: %v", err)
	}
	down.Store(false)
	must(t, s.Close(within(t)))
	if _, err := d.Find(within(t), "localhost"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("after Close: %v", err)
	}
}

// A segment is published again in a metadata server that was restarted empty.
func TestSegmentsAreRepublished(t *testing.T) {
	d := directory(t, nil)
	s, _ := serve(t, 4096, func(o *mooncake.ServerOptions) { o.Directory, o.RepublishTime = d, 10*time.Millisecond })
	other, err := mooncake.Serve(within(t), mooncake.ServerOptions{Name: s.Segment().Name, Listen: "127.0.0.1:0", Directory: d, Memory: mooncake.NewRegions(nil)})
	must(t, err)
	must(t, other.Close(within(t))) // removes the keys of the shared name
	eventually(t, "the segment is there again", func() bool {
		_, err := d.Find(within(t), s.Segment().Name)
		return err == nil
	})
}

func TestOpenDirectory(t *testing.T) {
	for uri, want := range map[string]error{
		"P2PHANDSHAKE": nil, "http://a:1/metadata": nil, "https://a/metadata": nil,
		"etcd://a:1": errdefs.ErrNotSupported, "redis://a:1": errdefs.ErrNotSupported,
		"": errdefs.ErrInvalid, "a:1": errdefs.ErrInvalid, "http://": errdefs.ErrInvalid, "p2phandshake": errdefs.ErrInvalid,
	} {
		if _, err := mooncake.OpenDirectory(uri, ""); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", uri, err, want)
		}
	}
	d, err := mooncake.OpenDirectory("P2PHANDSHAKE", "")
	must(t, err)
	for _, name := range []string{"", "host", "host:", "host:0"} {
		if _, err := d.Find(t.Context(), name); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", name, err)
		}
	}
}

// Segment descriptions of peers: from Mooncake's engine, from older versions of it, and malformed
// ones.
func TestParseSegment(t *testing.T) {
	s, err := mooncake.ParseSegment([]byte(`{"buffers":[{"addr":140049588944896,"length":100663296,"name":"127.0.0.1:16471"}],"name":"127.0.0.1:16471",
		"protocol":"tcp","rdma_server_name":"","tcp_data_host":"127.0.0.1","tcp_data_port":16821,"tcp_proto_version":2,"timestamp":"2026-11-23 00:57:41"}` + "\n"))
	must(t, err)
	if s.Name != "127.0.0.1:16471" || s.DataPort != 16821 || s.DataHost != "127.0.0.1" || s.Version != 2 || s.Buffers[0] != (mooncake.Buffer{Name: "127.0.0.1:16471", Addr: 140049588944896, Length: 100663296}) {
		t.Errorf("%+v", s)
	}
	if s, err := mooncake.ParseSegment([]byte(`{"name":"a","protocol":"rdma","devices":[{"name":"mlx5_0","lid":0,"gid":"x"}],"priority_matrix":{},
		"buffers":[{"name":"cpu:0","addr":18446744073709551615,"length":0,"rkey":[1],"lkey":[2]}]}`)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a length of zero: %+v, %v", s, err)
	}
	for _, text := range []string{
		``, `{`, `[]`, `{}`, `{"name":""}`, `{"name":"a","protocol":"tcp"}`, `{"name":"a","tcp_data_port":65536}`, `{"name":"a","tcp_data_port":-1}`,
		`{"name":"a","buffers":[{}]}`, `{"name":"a","buffers":[{"name":"","addr":1,"length":1}]}`, `{"name":"a","buffers":[{"name":"b","addr":0,"length":1}]}`,
		`{"name":"a","buffers":[{"name":"b","addr":1,"length":18446744073709551615}]}`, `{"name":"a","buffers":[{"name":"b","addr":-1,"length":1}]}`,
		`{"name":"a","buffers":[{"name":"b","addr":18446744073709551616,"length":1}]}`, `{"name":"a","buffers":[{"name":"b","addr":1.5,"length":1}]}`,
		`{"name":"a"}` + strings.Repeat(" ", 1<<20),
	} {
		if s, err := mooncake.ParseSegment([]byte(text)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%.60s: %+v, %v", text, s, err)
		}
	}
}

// TestNameThatIsNoHost checks that the directory gets the host of Listen or Advertise, so that a
// segment may have any name.
func TestNameThatIsNoHost(t *testing.T) {
	for _, c := range []mooncake.ServerOptions{{Listen: "127.0.0.1:0"}, {Listen: "0.0.0.0:0", Advertise: "127.0.0.1"}, {Listen: "[::]:0", Advertise: "127.0.0.1:0"}} {
		d := directory(t, nil)
		s, there := serve(t, 4096, func(o *mooncake.ServerOptions) {
			o.Name, o.Listen, o.Advertise, o.Directory = "kvseg.invalid", c.Listen, c.Advertise, d
		})
		if _, err := mooncake.Probe(within(t), d, s.Segment().Name); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		r, here := open(t, s.Segment().Name, 4096, func(o *mooncake.Options) { o.Directory = d })
		must(t, do(t, r, mooncake.Task{Op: transfer.Write, Local: addr(here), Remote: addr(there), Length: 4096}))
	}
	for _, name := range []string{"127.0.0.1", "kvseg", "::1:17014", "a\xff:0"} {
		_, err := mooncake.Serve(within(t), mooncake.ServerOptions{Name: name, Listen: "127.0.0.1:0", Memory: mooncake.NewRegions(nil)})
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("by P2PHANDSHAKE, %q: %v", name, err)
		}
	}
}

// TestNameOfTwoProcesses starts two processes with one name. The first keeps the name while it
// answers, and the second gets it afterwards. Closing one must not remove the record of the other.
func TestNameOfTwoProcesses(t *testing.T) {
	d := directory(t, nil)
	change := func(o *mooncake.ServerOptions) {
		o.Name, o.Listen, o.Directory, o.RepublishTime = "kv", "127.0.0.1:0", d, 10*time.Millisecond
	}
	found := func(s *mooncake.Server) bool {
		got, err := d.Find(within(t), "kv")
		return err == nil && got.DataPort == s.Segment().DataPort
	}
	// settle waits until the directory names one of the servers and the other has noticed. It
	// returns both.
	settle := func(a, b *mooncake.Server) (has, lacks *mooncake.Server) {
		noticed := map[*mooncake.Server]uint64{a: a.Stats().DirectoryFailures, b: b.Stats().DirectoryFailures}
		eventually(t, "one of two has the name", func() bool {
			for _, pair := range [][2]*mooncake.Server{{a, b}, {b, a}} {
				if has, lacks = pair[0], pair[1]; lacks.Stats().DirectoryFailures > noticed[lacks] && found(has) {
					return true
				}
			}
			return false
		})
		return has, lacks
	}
	first, _ := serve(t, 4096, change)
	second, _ := serve(t, 4096, change)
	has, lacks := settle(first, second)
	must(t, lacks.Close(within(t)))
	if !found(has) {
		t.Error("closing one server removed the record of the other")
	}
	third, _ := serve(t, 4096, change)
	has, lacks = settle(has, third)
	must(t, mooncake.Die(has))
	eventually(t, "the other is found", func() bool { return found(lacks) })
}

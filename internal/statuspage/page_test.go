package statuspage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestMask(t *testing.T) {
	for _, c := range [][3]string{
		{"store.object_endpoint", "http://user:pass@10.0.0.1:9000", "http://hidden@10.0.0.1:9000"},
		{"etcd", "http://a:b@one:2379,https://two:2379", "http://hidden@one:2379,https://two:2379"},
		{"endpoints", "root:pa.ss@one:2379,two:2379", "hidden@one:2379,two:2379"},
		{"store.remote_token", "/etc/kvlane/token", "/etc/kvlane/token"},
		{"remote", "etcd://one:2379,two:2379/kvlane", "etcd://one:2379,two:2379/kvlane"},
		{"store.cache_bytes", "1024", "1024"},
	} {
		if got := mask(c[1]); got != c[2] {
			t.Errorf("%s: %q is %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// The charts have an hour of samples, and a metric that begins later is 0 before.
func TestSamples(t *testing.T) {
	hits := 0
	j := &journal.Journal{}
	j.Failed("disk", errors.New("full"))
	j.Took("load", 3, time.Second, nil)
	p := New(Source{
		Metrics: func(w io.Writer) error {
			_, _ = fmt.Fprintf(w, "# HELP x\nkvlane_store_hits_total{tier=\"cache\"} %d\n", hits)
			if hits > 1 {
				_, _ = fmt.Fprintln(w, `kvlane_store_hits_total{tier="a b"} 7`)
			}
			_, err := fmt.Fprintln(w, "kvlane_build_info{version=\"v1\"} 1\nx_bucket{le=\"1\"} 2\nx_limit +Inf\nx_rate NaN")
			return err
		},
		Ready: func() error { return errors.New("opening") }, Journals: func() []*journal.Journal { return []*journal.Journal{j} },
		Config: func() []Setting { return []Setting{{"url", "http://a:b@c"}} },
		Tables: func() []Table { return []Table{{"Members", []string{"id"}, [][]string{{"a"}}}} },
	})
	for range maxSamples + 10 {
		hits++
		p.Sample()
	}
	mux := http.NewServeMux()
	p.Handle(mux)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status.json", http.NoBody))
	var s state
	if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	cache, late := s.Samples[`kvlane_store_hits_total{tier="cache"}`], s.Samples[`kvlane_store_hits_total{tier="a b"}`]
	if len(s.Times) != maxSamples || len(cache) != maxSamples || cache[0] != 11 || cache[maxSamples-1] != maxSamples+10 {
		t.Errorf("%d times, %d samples, %v to %v", len(s.Times), len(cache), cache[0], cache[len(cache)-1])
	}
	if len(late) != maxSamples || late[maxSamples-1] != 7 {
		t.Errorf("a later metric: %d samples", len(late))
	}
	if len(s.Metrics) != 3 || s.NotReady != "opening" || len(s.Failures) != 1 || len(s.Slow) != 1 || s.Config[0].Value != "http://hidden@c" || s.Tables[0].Rows[0][0] != "a" {
		t.Errorf("state: %+v", s)
	}
}

// The page refers to nothing outside of it.
func TestPageHasNoExternalParts(t *testing.T) {
	for _, word := range []string{"http:", "https:", "src=", "@import", "url("} {
		if strings.Contains(strings.ReplaceAll(string(page), "http://www.w3.org/", ""), word) {
			t.Errorf("the page has %q", word)
		}
	}
}

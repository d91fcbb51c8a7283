package object_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/tiertest"
)

const opTimeout = 150 * time.Millisecond

// behind returns a versitygw, and a configuration of a tier that reaches it through a proxy.
func behind(t *testing.T) (*s3test.Server, *s3test.Proxy, object.Config) {
	t.Helper()
	s3test.Setenv(t)
	s := s3test.Start(t, "versitygw")
	p := s3test.NewProxy(t, s.URL())
	c := config(p.URL, "prefix", tiertest.NewFormat(t))
	c.Breaker = breaker.Options{Failures: 2, Delay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond}
	return s, p, c
}

func put(tb testing.TB, tr *object.Tier, f block.Format, i, version int) error {
	tb.Helper()
	image := tiertest.Buffer(tb, f.Layout.ImageBytes())
	tiertest.Seal(tb, f, image.Bytes(), tiertest.Key(i), version)
	return tr.Put(tb.Context(), tiertest.Key(i), image)
}

func get(tb testing.TB, tr *object.Tier, f block.Format, i int) error {
	tb.Helper()
	dst := tiertest.Buffer(tb, f.Layout.ImageBytes())
	if err := tr.Get(tb.Context(), tiertest.Key(i), dst); err != nil {
		return err
	}
	must(tb, tiertest.Check(f, dst.Bytes(), tiertest.Key(i), 0))
	return nil
}

// eventually calls f until it returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Each fault of the server makes misses and refused writes within the deadline. Hits return without
// help when the fault ends.
func TestFaultsAreMisses(t *testing.T) {
	s, p, c := behind(t)
	c.Timeout = opTimeout
	tr := open(t, c)
	eventually(t, "put", func() error { return put(t, tr, c.Formats[0], 1, 0) })
	for name, fault := range map[string]struct{ begin, end func() }{
		"stopped":             {func() { s.Stop() }, func() { s.Start(t) }},
		"paused":              {s.Pause, s.Resume},
		"hangs":               {func() { p.Set(s3test.Hang()) }, nil},
		"slow down":           {func() { p.Set(s3test.Status(http.StatusServiceUnavailable, "SlowDown")) }, nil},
		"internal error":      {func() { p.Set(s3test.Status(http.StatusInternalServerError, "InternalError")) }, nil},
		"wrong credentials":   {func() { p.Set(s3test.Status(http.StatusForbidden, "InvalidAccessKeyId")) }, nil},
		"no bucket":           {func() { p.Set(s3test.Status(http.StatusNotFound, "NoSuchBucket")) }, nil},
		"no S3":               {func() { p.Set(s3test.Status(http.StatusTeapot, "")) }, nil},
		"connections dropped": {func() { p.Set(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fault.begin()
			for range 4 {
				within(t, "get", func() {
					if err := get(t, tr, c.Formats[0], 1); !errors.Is(err, errdefs.ErrNotFound) {
						t.Errorf("get: %v, want ErrNotFound", err)
					}
				})
				within(t, "lookup", func() {
					states := []tier.State{tier.Ready}
					if must(t, tr.Lookup(t.Context(), tiertest.Keys(1), states)); states[0] != tier.Absent {
						t.Errorf("the block is %v", states[0])
					}
				})
				within(t, "retain", func() {
					if n, err := tr.Retain(t.Context(), tiertest.Keys(1)); n != 0 || err != nil {
						t.Errorf("retain: %d, %v", n, err)
					}
				})
				within(t, "put", func() {
					if err := put(t, tr, c.Formats[0], 2, 0); !errors.Is(err, tier.ErrUnavailable) {
						t.Errorf("put: %v, want ErrUnavailable", err)
					}
				})
			}
			if tr.Stats().Failure == nil {
				t.Error("the tier reports no failure")
			}
			if p.Set(nil); fault.end != nil {
				fault.end()
			}
			eventually(t, "get", func() error { return get(t, tr, c.Formats[0], 1) })
			eventually(t, "put", func() error { return put(t, tr, c.Formats[0], 1, 0) })
			if err := tr.Stats().Failure; err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// within checks that f ends with the deadline, and not when the server answers. Busy machines need
// more than the deadline.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d > opTimeout+testkit.Patience()/4 {
		t.Errorf("%s took %v, with a deadline of %v", what, d, opTimeout)
	}
}

// A server that is opened while it is gone makes misses, and works when it returns.
func TestOpenWithoutServer(t *testing.T) {
	s, _, c := behind(t)
	c.Timeout = opTimeout
	s.Stop()
	tr := open(t, c)
	if len(tr.Notes()) != 1 {
		t.Errorf("%d notes, want 1", len(tr.Notes()))
	}
	s.Start(t)
	eventually(t, "put", func() error { return put(t, tr, c.Formats[0], 1, 0) })
	eventually(t, "get", func() error { return get(t, tr, c.Formats[0], 1) })
}

// Bodies that end early or are damaged on the way are read again. If all are, they are misses, and
// the object stays.
func TestDamageOnTheWay(t *testing.T) {
	_, p, c := behind(t)
	tr := open(t, c)
	f := c.Formats[0]
	must(t, put(t, tr, f, 1, 0))
	flip := func(b []byte) []byte { b[f.Layout.ShardOff(1)+3] ^= 4; return b }
	short := func(b []byte) []byte { return b[:len(b)/2] }
	for name, change := range map[string]func([]byte) []byte{"flipped": flip, "short": short, "empty": func(b []byte) []byte { return nil }} {
		first := true
		p.SetBody(func(b []byte) []byte {
			if first {
				first = false
				return change(b)
			}
			return b
		})
		if err := get(t, tr, f, 1); err != nil {
			t.Errorf("%s once: %v", name, err)
		}
		p.SetBody(short)
		if err := get(t, tr, f, 1); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("always short: %v, want ErrNotFound", err)
		}
		p.SetBody(nil)
		eventually(t, "get", func() error { return get(t, tr, f, 1) })
	}
	if n := tr.Stats().Corrupt; n != 0 {
		t.Errorf("%d corrupt blocks are counted", n)
	}
}

// A bit that flips at the server is a miss for every process, until one of them replaces the
// object, on condition that it is the damaged one.
func TestDamagedObjectIsReplaced(t *testing.T) {
	s, p, c := behind(t)
	f := c.Formats[0]
	one, two := open(t, c), open(t, c)
	must(t, put(t, one, f, 1, 0))
	must(t, get(t, two, f, 1))
	name, err := object.Find(t.Context(), c, tiertest.Key(1))
	must(t, err)
	s.FlipBit(t, name, f.Layout.ShardOff(1)+3)
	for _, tr := range []*object.Tier{one, two} {
		if err := get(t, tr, f, 1); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Fatalf("get of a damaged object: %v, want ErrCorrupt", err)
		}
		if n, err := tr.Retain(t.Context(), tiertest.Keys(1)); n != 0 || err != nil {
			t.Errorf("retain of a damaged object: %d, %v", n, err)
		}
		if err := get(t, tr, f, 1); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("the second get: %v, want ErrNotFound", err)
		}
	}
	var conditions []string
	p.Set(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			conditions = append(conditions, r.Header.Get("If-Match")+" "+r.Header.Get("If-None-Match"))
		}
		return false
	})
	must(t, put(t, one, f, 1, 0))
	must(t, get(t, one, f, 1))
	if len(conditions) != 1 || len(conditions[0]) < 8 || conditions[0][len(conditions[0])-1] != ' ' {
		t.Errorf("writes have the conditions %q, want one If-Match", conditions)
	}
	must(t, put(t, two, f, 1, 0)) // the object is intact: the same ETag, written again or not
	must(t, get(t, two, f, 1))
	if st := one.Stats(); st.Puts != 2 || st.Corrupt != 1 || st.Blocks != 1 {
		t.Errorf("%d puts, %d corrupt and %d blocks are counted, want 2, 1 and 1", st.Puts, st.Corrupt, st.Blocks)
	}
}

// An object of another length is no block. A Put replaces it.
func TestObjectOfAnotherLength(t *testing.T) {
	_, _, c := behind(t)
	tr := open(t, c)
	f := c.Formats[0]
	must(t, put(t, tr, f, 1, 0))
	must(t, object.Change(t.Context(), c, tiertest.Key(1), func(b []byte) []byte { return b[:100] }))
	if n, err := tr.Retain(t.Context(), tiertest.Keys(1)); n != 0 || err != nil {
		t.Errorf("retain: %d, %v", n, err)
	}
	must(t, put(t, tr, f, 1, 0))
	must(t, get(t, tr, f, 1))
}

// A conflict with another write is retried. A condition that is not met is success.
func TestConflictsOfWrites(t *testing.T) {
	_, p, c := behind(t)
	tr, other := open(t, c), open(t, c)
	f := c.Formats[0]
	conflicts := 0
	p.Set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || conflicts == 2 {
			return false
		}
		conflicts++
		return s3test.Status(http.StatusConflict, "ConditionalRequestConflict")(w, r)
	})
	must(t, put(t, tr, f, 1, 0))
	if st := tr.RequestStats(); conflicts != 2 || st.Retries != 2 {
		t.Errorf("%d conflicts, %d retries, want 2 and 2", conflicts, st.Retries)
	}
	must(t, put(t, other, f, 1, 1)) // the first image stays
	must(t, get(t, other, f, 1))
	if st := other.Stats(); st.Puts != 0 || st.Errors != 0 {
		t.Errorf("%d puts and %d errors are counted, want none", st.Puts, st.Errors)
	}
}

// Wrong credentials in a file are misses. When the file is corrected, hits return.
func TestCredentialsAreReadAgain(t *testing.T) {
	_, _, c := behind(t)
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(key, secret string) {
		t.Helper()
		text := "[default]\naws_access_key_id = " + key + "\naws_secret_access_key = " + secret + "\n"
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("old", "wrong")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	tr := open(t, c)
	if len(tr.Notes()) != 1 {
		t.Errorf("%d notes, want 1", len(tr.Notes()))
	}
	for range 5 {
		if err := put(t, tr, c.Formats[0], 1, 0); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatalf("put with wrong credentials: %v", err)
		}
		if err := get(t, tr, c.Formats[0], 1); !errors.Is(err, errdefs.ErrNotFound) {
			t.Fatalf("get with wrong credentials: %v", err)
		}
	}
	write(s3test.AccessKey, s3test.SecretKey)
	eventually(t, "put", func() error { return put(t, tr, c.Formats[0], 1, 0) })
	eventually(t, "get", func() error { return get(t, tr, c.Formats[0], 1) })
}

// A server that refuses writes is still read from.
func TestWritesAreForbidden(t *testing.T) {
	_, p, c := behind(t)
	tr := open(t, c)
	f := c.Formats[0]
	must(t, put(t, tr, f, 1, 0))
	p.Set(func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodPut && s3test.Status(http.StatusForbidden, "AccessDenied")(w, r)
	})
	for i := range 20 {
		if err := put(t, tr, f, 10+i, 0); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatalf("put: %v, want ErrUnavailable", err)
		}
		must(t, get(t, tr, f, 1))
	}
	if st := tr.RequestStats(); st.Writes.Opened == 0 || st.Reads.Opened != 0 {
		t.Errorf("the breakers opened %d and %d times", st.Writes.Opened, st.Reads.Opened)
	}
}

// The budget bounds the retries of a server that fails, and the breaker its requests.
func TestBudgetOfRetries(t *testing.T) {
	_, p, c := behind(t)
	c.Breaker.Failures = 1 << 30 // never opens
	tr := open(t, c)
	p.Set(s3test.Status(http.StatusServiceUnavailable, "SlowDown"))
	p.Requests()
	var wg sync.WaitGroup
	for i := range 100 {
		dst := tiertest.Buffer(t, c.Formats[0].Layout.ImageBytes())
		wg.Go(func() { _ = tr.Get(t.Context(), tiertest.Key(i), dst) })
	}
	wg.Wait()
	if n := len(p.Requests()); n < 110 || n > 200 {
		t.Errorf("100 reads made %d requests", n)
	}
}

// Options reach the server: encryption in requests, and TLS with an authority of its own.
func TestEncryptionAndAuthority(t *testing.T) {
	s, _, c := behind(t)
	p, ca := s3test.NewTLSProxy(t, s.URL())
	c.Endpoint, c.CAFile, c.Encryption, c.KMSKey = p.URL, ca, "aws:kms", "key-1"
	tr := open(t, c)
	var seen []string
	p.Set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		seen = append(seen, r.Header.Get("X-Amz-Server-Side-Encryption")+" "+r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"))
		r.Header.Del("X-Amz-Server-Side-Encryption")
		return s3test.Status(http.StatusPreconditionFailed, "PreconditionFailed")(w, r)
	})
	_ = put(t, tr, c.Formats[0], 1, 0)
	if len(seen) == 0 || seen[0] != "aws:kms key-1" {
		t.Errorf("the server saw the encryption %q", seen)
	}
	c.CAFile = ""
	c.Timeout = opTimeout
	if tr := open(t, c); len(tr.Notes()) != 1 {
		t.Error("an unknown authority is accepted")
	}
}

// A miss is remembered for at most a second, and not beyond a write of the tier.
func TestMissesAreRemembered(t *testing.T) {
	_, p, c := behind(t)
	tr, other := open(t, c), open(t, c)
	f := c.Formats[0]
	lookup := func() tier.State {
		t.Helper()
		states := make([]tier.State, 1)
		must(t, tr.Lookup(t.Context(), tiertest.Keys(1), states))
		return states[0]
	}
	start := time.Now()
	lookup()
	p.Requests()
	for range 10 {
		lookup()
	}
	if n := len(p.Requests()); n > 1 && time.Since(start) < time.Second {
		t.Errorf("10 lookups of a missing block made %d requests", n)
	}
	must(t, put(t, tr, f, 1, 0))
	if got := lookup(); got != tier.Ready {
		t.Errorf("after a write of the tier the block is %v", got)
	}
	must(t, tr.Delete(t.Context(), tiertest.Key(1)))
	lookup()
	missed := time.Now()
	must(t, put(t, other, f, 1, 0))
	for begun := missed; lookup() != tier.Ready; begun = time.Now() {
		if d := begun.Sub(missed); d > time.Second {
			t.Fatalf("a write of another process was not found after %v", d)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Large images are written and read in parts, and conditions hold for them too.
func TestLargeBlocks(t *testing.T) {
	_, p, c := behind(t)
	l, err := block.NewLayout([]int64{7 << 20, 5 << 20, 100})
	must(t, err)
	f := block.Format{Layout: l, Identity: block.Digest{9}}
	c.Formats, c.PartBytes = block.Formats{f}, 5<<20
	tr, other := open(t, c), open(t, c)
	p.Requests()
	must(t, put(t, tr, f, 1, 0))
	must(t, get(t, tr, f, 1))
	parts, gets := 0, 0
	for _, r := range p.Requests() {
		if bytes.Contains([]byte(r), []byte("partNumber=")) {
			parts++
		}
		if r[:4] == "GET " {
			gets++
		}
	}
	if parts != 3 || gets != 3 {
		t.Errorf("an image of 12 MiB was written in %d parts and read in %d, want 3", parts, gets)
	}
	must(t, put(t, other, f, 1, 1)) // it exists
	must(t, get(t, other, f, 1))
	if n := other.Stats().Puts; n != 0 {
		t.Errorf("%d puts of an existing block are counted", n)
	}
	must(t, object.Damage(t.Context(), c, tiertest.Key(1)))
	if err := get(t, tr, f, 1); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("get of a damaged object: %v", err)
	}
	must(t, put(t, tr, f, 1, 0))
	must(t, get(t, tr, f, 1))
	// An upload that fails leaves no object.
	p.Set(func(w http.ResponseWriter, r *http.Request) bool {
		return r.URL.Query().Has("partNumber") && s3test.Status(http.StatusForbidden, "AccessDenied")(w, r)
	})
	if err := put(t, tr, f, 2, 0); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("put with failing parts: %v", err)
	}
	p.Set(nil)
	if err := get(t, tr, f, 2); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("get of a failed put: %v", err)
	}
}

// The caller's context ends an operation with its cause, and does not count as a failure.
func TestCanceledRequest(t *testing.T) {
	_, p, c := behind(t)
	tr := open(t, c)
	p.Set(s3test.Hang())
	for range 5 {
		cause := errors.New("the caller went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(5 * time.Millisecond)
			cancel(cause)
		}()
		if err := tr.Lookup(ctx, tiertest.Keys(1), make([]tier.State, 1)); !errors.Is(err, cause) {
			t.Errorf("lookup: %v, want the cause", err)
		}
	}
	if st := tr.RequestStats(); st.Reads.Failures != 0 {
		t.Errorf("%d failures are counted", st.Reads.Failures)
	}
}

package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
)

func openStore(t *testing.T, o etcd.Options) *etcd.Store {
	t.Helper()
	s, err := etcd.OpenStore(o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	onEach(t, func(t *testing.T, e *etcdtest.Server) {
		s, ctx := openStore(t, options(e.Addr)), t.Context()
		other := options(e.Addr)
		other.Cluster = "other"
		has := func(s *etcd.Store, key, want string) {
			t.Helper()
			got, err := s.Get(ctx, key)
			if want == "" && !errors.Is(err, errdefs.ErrNotFound) || want != "" && string(got) != want {
				t.Errorf("%s: %q, %v, want %q", key, got, err, want)
			}
		}
		key := "segments/a b/ü"
		has(s, key, "")
		must(t, s.Put(ctx, key, []byte("1"), 0))
		must(t, s.Put(ctx, key, []byte("2"), time.Minute))
		has(s, key, "2")
		has(openStore(t, other), key, "")
		// A renewed value outlives its first lease. One that is not renewed expires.
		must(t, s.Put(ctx, "renewed", []byte("3"), time.Second))
		must(t, s.Put(ctx, "expires", []byte("4"), time.Second))
		must(t, s.Put(ctx, "renewed", []byte("5"), time.Minute))
		has(s, "expires", "4")
		waitFor(t, "the end of a lease", func() bool {
			_, err := s.Get(ctx, "expires")
			return errors.Is(err, errdefs.ErrNotFound)
		})
		has(s, "renewed", "5")
		must(t, s.Delete(ctx, key))
		must(t, s.Delete(ctx, key))
		has(s, key, "")
		for what, err := range map[string]error{
			"no key":          s.Put(ctx, "", nil, 0),
			"a long key":      s.Put(ctx, strings.Repeat("k", metadata.MaxKeyBytes+1), nil, 0),
			"too much":        s.Put(ctx, "k", make([]byte, metadata.MaxValueBytes+1), 0),
			"a negative time": s.Put(ctx, "k", nil, -1),
		} {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		must(t, s.Put(ctx, "k", make([]byte, metadata.MaxValueBytes), 0))
		e.Kill()
		within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if _, err := s.Get(within, "k"); err == nil || errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("without etcd: %v", err)
		}
		e.Start(t)
		waitFor(t, "a value after a restart", func() bool {
			_, err := s.Get(ctx, "k")
			return err == nil
		})
	})
}

// TestTLS uses an etcd that has a certificate and needs that of its clients.
func TestTLS(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name string, b []byte) string {
				path := filepath.Join(dir, name)
				must(t, os.WriteFile(path, b, 0o600))
				return path
			}
			cert, key := testkit.Certificate(t)
			certFile := write("cert", cert)
			s := etcdtest.StartTLS(t, version, certFile, write("key", key), certFile)
			pair, err := tls.X509KeyPair(cert, key)
			must(t, err)
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(cert)
			otherCert, otherKey := testkit.Certificate(t)
			otherPair, err := tls.X509KeyPair(otherCert, otherKey)
			must(t, err)
			otherRoots := x509.NewCertPool()
			otherRoots.AppendCertsFromPEM(otherCert)

			o := options(s.Addr)
			o.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}
			register(t, o, member(1))
			becomes(t, open(t, o), "m1")
			must(t, openStore(t, o).Put(t.Context(), "k", []byte("v"), time.Minute))
			o.Within = time.Second
			for name, c := range map[string]*tls.Config{
				"no TLS":                                nil,
				"a name that is not in the certificate": o.TLS,
				"no certificate of the client":          {MinVersion: tls.VersionTLS13, RootCAs: roots},
				"another certificate of the client":     {MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{otherPair}},
				"another authority of the server":       {MinVersion: tls.VersionTLS13, RootCAs: otherRoots, Certificates: []tls.Certificate{pair}},
			} {
				bad := o
				if bad.TLS = c; c == o.TLS {
					bad.Endpoints = []string{strings.Replace(s.Addr, "127.0.0.1", "localhost", 1)}
				}
				if m := open(t, bad); m.Err() == nil || errors.Is(m.Err(), errdefs.ErrNotFound) || names(m) != "" {
					t.Errorf("%s: list %s, %v", name, names(m), m.Err())
				}
			}
		})
	}
}

package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/testkit"
)

// New tokens count without a restart. A file that cannot be read, or has a fault, changes nothing.
func TestTokensAreReadAgain(t *testing.T) {
	a := rig(t)
	file := a.write(t, "changing", "one "+tokenOne+" 8MiB\n")
	var reported []error
	s, err := auth.NewServer(auth.ServerOptions{
		CertFile: a.path("server.pem"), KeyFile: a.path("server.key"), TokensFile: file,
		OnTokensError: func(err error) { reported = append(reported, err) },
	})
	must(t, err)
	tenant := func(token string) string {
		name, err := s.Tenant(&tls.ConnectionState{HandshakeComplete: true, VerifiedChains: [][]*x509.Certificate{{a.cert}}}, []byte(token))
		if err != nil {
			return "denied"
		}
		return name
	}
	until := func(token, want string) {
		t.Helper()
		for end := time.Now().Add(testkit.Patience()); tenant(token) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the tenant of a token is %s, want %s", tenant(token), want)
			}
		}
	}
	until(tokenOne, "one")
	until(tokenTwo, "denied")
	if n := s.QuotaBytes("one"); n != 8<<20 {
		t.Errorf("the quota is %d", n)
	}
	must(t, os.WriteFile(file, []byte("two "+tokenTwo+"\none "+tokenThird+" 4MiB\none "+tokenOne+"-2 2MiB\n"), 0o600))
	until(tokenTwo, "two")
	until(tokenOne, "denied")
	until(tokenThird, "one")
	if one, two, none := s.QuotaBytes("one"), s.QuotaBytes("two"), s.QuotaBytes("three"); one != 2<<20 || two != 0 || none != 0 {
		t.Errorf("quotas %d, %d, %d", one, two, none)
	}
	for i, spoil := range []func() error{func() error { return os.WriteFile(file, []byte("one\n"), 0o600) }, func() error { return os.Remove(file) }} {
		must(t, spoil())
		for end := time.Now().Add(testkit.Patience()); len(reported) <= i; time.Sleep(10 * time.Millisecond) {
			until(tokenTwo, "two")
			if time.Now().After(end) {
				t.Fatalf("%d errors are reported", len(reported))
			}
		}
		time.Sleep(600 * time.Millisecond)
		until(tokenTwo, "two")
		if len(reported) != i+1 {
			t.Errorf("%v", reported)
		}
	}
	must(t, os.WriteFile(file, []byte("one "+tokenOne+"\n"), 0o600))
	until(tokenOne, "one")
	until(tokenTwo, "denied")
}

func TestQuotasThatAreRefused(t *testing.T) {
	for _, line := range []string{"one " + tokenOne + " 0", "one " + tokenOne + " -1", "one " + tokenOne + " much", "one " + tokenOne + " 1GiB 2"} {
		if list, err := auth.ParseTokens([]byte(line)); err == nil {
			t.Errorf("%d tokens of %q", len(list), line)
		}
	}
}

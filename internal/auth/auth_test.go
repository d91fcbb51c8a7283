package auth_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	tokenOne   = "one-0123456789abcdef"
	tokenTwo   = "two-0123456789abcdef"
	tokenThird = "one-third-0123456789"
)

// authority is a certificate authority with a separate directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// issue writes a certificate signed by the authority, and its key. If the authority has no
// certificate, it issues its own.
func (a *authority) issue(t *testing.T, file string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = time.Now().Add(-2 * time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(t, err)
	k, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(a.path(file+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(a.path(file+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), 0o600))
	made, err := x509.ParseCertificate(der)
	must(t, err)
	return made, key
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// client issues a client certificate in the name of a tenant.
func (a *authority) client(t *testing.T, file, tenant string) {
	t.Helper()
	a.issue(t, file, &x509.Certificate{Subject: pkix.Name{CommonName: tenant}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func (a *authority) write(t *testing.T, name, content string) string {
	t.Helper()
	must(t, os.WriteFile(a.path(name), []byte(content), 0o600))
	return a.path(name)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig returns an authority with a server certificate for localhost and tokens of two tenants.
func rig(t *testing.T) *authority {
	t.Helper()
	a := newAuthority(t, "authority")
	a.issue(t, "server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	a.client(t, "one", "one")
	a.client(t, "two", "two")
	a.write(t, "tokens", "# tenants\n\none "+tokenOne+"\r\ntwo\t"+tokenTwo+"\none "+tokenThird)
	a.write(t, "token", tokenOne+"\n")
	return a
}

// dial connects a client to a server. The server answers with the tenant or with the error of
// Tenant.
func dial(t *testing.T, s auth.ServerOptions, c auth.ClientOptions) (tenant string, err error) {
	t.Helper()
	server, err := auth.NewServer(s)
	must(t, err)
	client, err := auth.NewClient(c)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	type result struct {
		tenant string
		err    error
	}
	results := make(chan result, 1)
	go func() {
		defer l.Close()
		conn, err := l.Accept()
		if err != nil {
			results <- result{"", err}
			return
		}
		defer conn.Close()
		var state *tls.ConnectionState
		if server.TLS() != nil {
			sc := tls.Server(conn, server.TLS())
			if err := sc.HandshakeContext(ctx); err != nil {
				results <- result{"", err}
				return
			}
			cs := sc.ConnectionState()
			state, conn = &cs, sc
		}
		token, err := io.ReadAll(conn)
		if err != nil {
			results <- result{"", err}
			return
		}
		name, err := server.Tenant(state, token)
		results <- result{name, err}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	if config := client.TLS(l.Addr().String()); config != nil {
		cc := tls.Client(conn, config)
		if err := cc.HandshakeContext(ctx); err != nil {
			conn.Close()
			<-results
			return "", err
		}
		_, _ = cc.Write(client.Token())
		_ = cc.CloseWrite() // fails if the server has refused the client
	} else if plain, ok := conn.(*net.TCPConn); ok {
		must(t, plain.CloseWrite())
	}
	r := <-results
	return r.tenant, r.err
}

func TestTenants(t *testing.T) {
	a, other := rig(t), newAuthority(t, "other")
	other.client(t, "one", "one")
	a.client(t, "bad", "../one")
	a.client(t, "nameless", "")
	a.issue(t, "expired", &x509.Certificate{
		Subject: pkix.Name{CommonName: "one"}, NotAfter: time.Now().Add(-time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	wrong := a.write(t, "wrong", "one-0123456789abcdeF")
	cert, key, ca := a.path("server.pem"), a.path("server.key"), a.path("ca.pem")
	plain := auth.ServerOptions{CertFile: cert, KeyFile: key}
	mtls, tokens, both := plain, plain, plain
	mtls.ClientCAFile, tokens.TokensFile = ca, a.path("tokens")
	both.ClientCAFile, both.TokensFile = ca, a.path("tokens")
	with := func(by *authority, file, token string) auth.ClientOptions {
		o := auth.ClientOptions{CAFile: ca, TokenFile: token}
		if file != "" {
			o.CertFile, o.KeyFile = by.path(file+".pem"), by.path(file+".key")
		}
		return o
	}
	first := a.path("token")
	for _, c := range []struct {
		name   string
		s      auth.ServerOptions
		c      auth.ClientOptions
		tenant string // empty: refused
	}{
		{"no credentials", auth.ServerOptions{}, auth.ClientOptions{}, auth.DefaultTenant},
		{"TLS alone", plain, with(a, "", ""), auth.DefaultTenant},
		{"a certificate", mtls, with(a, "two", ""), "two"},
		{"no certificate", mtls, with(a, "", first), ""},
		{"another authority's certificate", mtls, with(other, "one", ""), ""},
		{"an expired certificate", mtls, with(a, "expired", ""), ""},
		{"a certificate without a tenant", mtls, with(a, "nameless", ""), ""},
		{"a certificate of no valid tenant", mtls, with(a, "bad", ""), ""},
		{"the server's certificate", mtls, with(a, "server", ""), ""},
		{"a token", tokens, with(a, "", first), "one"},
		{"no token", tokens, with(a, "", ""), ""},
		{"a wrong token", tokens, with(a, "", wrong), ""},
		{"a certificate for a token", tokens, with(a, "one", ""), ""},
		{"both", both, with(a, "one", first), "one"},
		{"both, of two tenants", both, with(a, "two", first), ""},
		{"both, without a token", both, with(a, "one", ""), ""},
		{"a server of another authority", plain, auth.ClientOptions{CAFile: other.path("ca.pem")}, ""},
		{"a server of another name", plain, auth.ClientOptions{CAFile: ca, ServerName: "elsewhere"}, ""},
		{"a server by its name", plain, auth.ClientOptions{CAFile: ca, ServerName: "localhost"}, auth.DefaultTenant},
	} {
		t.Run(c.name, func(t *testing.T) {
			tenant, err := dial(t, c.s, c.c)
			if tenant != c.tenant || (err == nil) != (c.tenant != "") {
				t.Errorf("tenant %q, %v; want %q", tenant, err, c.tenant)
			}
		})
	}
}

// TestTokensNeedTLS checks that credentials are refused over plain TCP and before the end of the
// handshake.
func TestTokensNeedTLS(t *testing.T) {
	a := rig(t)
	for _, ca := range []string{"", a.path("ca.pem")} {
		s, err := auth.NewServer(auth.ServerOptions{CertFile: a.path("server.pem"), KeyFile: a.path("server.key"), ClientCAFile: ca, TokensFile: a.path("tokens")})
		must(t, err)
		for _, c := range []*tls.ConnectionState{nil, {}, {HandshakeComplete: ca != ""}} {
			if tenant, err := s.Tenant(c, []byte(tokenOne)); !errors.Is(err, auth.ErrDenied) {
				t.Errorf("state %+v: tenant %q, %v", c, tenant, err)
			}
		}
	}
	s, err := auth.NewServer(auth.ServerOptions{CertFile: a.path("server.pem"), KeyFile: a.path("server.key"), TokensFile: a.path("tokens")})
	must(t, err)
	for token, want := range map[string]string{
		tokenOne: "one", tokenTwo: "two", tokenThird: "one", "": "", tokenOne + "x": "", tokenOne[1:]: "", tokenOne + "\n": "", strings.Repeat("x", 1<<20): "",
	} {
		tenant, err := s.Tenant(&tls.ConnectionState{HandshakeComplete: true}, []byte(token))
		if tenant != want || (want == "") != errors.Is(err, auth.ErrDenied) {
			t.Errorf("token %.30q: tenant %q, %v", token, tenant, err)
		}
	}
}

func TestCheckListen(t *testing.T) {
	a := rig(t)
	o := auth.ServerOptions{CertFile: a.path("server.pem"), KeyFile: a.path("server.key")}
	withTokens, insecure := o, o
	withTokens.TokensFile, insecure.Insecure = a.path("tokens"), true
	for _, c := range []struct {
		o       auth.ServerOptions
		address string
		ok      bool
	}{
		{o, "127.0.0.1:1", true},
		{o, "127.9.9.9:1", true},
		{o, "[::1]:1", true},
		{o, "localhost:1", true},
		{o, ":1", false},
		{o, "0.0.0.0:1", false},
		{o, "[::]:1", false},
		{o, "10.0.0.1:1", false},
		{o, "localhost.example:1", false},
		{o, "127.0.0.1", false},
		{auth.ServerOptions{}, "10.0.0.1:1", false},
		{insecure, "10.0.0.1:1", true},
		{withTokens, ":1", true},
	} {
		s, err := auth.NewServer(c.o)
		must(t, err)
		if err := s.CheckListen(c.address); (err == nil) != c.ok || err != nil && !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s with %+v: %v", c.address, c.o, err)
		}
	}
}

func TestRefusesFiles(t *testing.T) {
	a := rig(t)
	junk, none := a.write(t, "junk", "-----BEGIN CERTIFICATE-----\nAA\n"), a.path("absent")
	cert, key, ca := a.path("server.pem"), a.path("server.key"), a.path("ca.pem")
	for name, o := range map[string]auth.ServerOptions{
		"no key":                       {CertFile: cert},
		"no certificate":               {KeyFile: key},
		"another's key":                {CertFile: cert, KeyFile: a.path("one.key")},
		"no PEM":                       {CertFile: junk, KeyFile: key},
		"tokens without TLS":           {TokensFile: a.path("tokens")},
		"certificates without TLS":     {ClientCAFile: ca},
		"authorities that are none":    {CertFile: cert, KeyFile: key, ClientCAFile: junk},
		"tokens that are none":         {CertFile: cert, KeyFile: key, TokensFile: junk},
		"absent certificate":           {CertFile: none, KeyFile: key},
		"absent key":                   {CertFile: cert, KeyFile: none},
		"absent authorities":           {CertFile: cert, KeyFile: key, ClientCAFile: none},
		"absent tokens":                {CertFile: cert, KeyFile: key, TokensFile: none},
		"tokens with an empty content": {CertFile: cert, KeyFile: key, TokensFile: a.write(t, "empty", "# none\n")},
	} {
		if _, err := auth.NewServer(o); !refusal(name, err) {
			t.Errorf("server, %s: %v", name, err)
		}
	}
	for name, o := range map[string]auth.ClientOptions{
		"no key":             {CAFile: ca, CertFile: cert},
		"token without TLS":  {TokenFile: a.path("token")},
		"name without TLS":   {ServerName: "localhost"},
		"another's key":      {CAFile: ca, CertFile: cert, KeyFile: a.path("one.key")},
		"authorities":        {CAFile: junk},
		"short token":        {CAFile: ca, TokenFile: a.write(t, "short", "short")},
		"two tokens":         {CAFile: ca, TokenFile: a.path("tokens")},
		"absent authorities": {CAFile: none},
		"absent token":       {CAFile: ca, TokenFile: none},
	} {
		if _, err := auth.NewClient(o); !refusal(name, err) {
			t.Errorf("client, %s: %v", name, err)
		}
	}
}

func refusal(name string, err error) bool {
	if strings.HasPrefix(name, "absent") {
		return errors.Is(err, fs.ErrNotExist)
	}
	return errors.Is(err, errdefs.ErrInvalid)
}

func FuzzParseTokens(f *testing.F) {
	for _, s := range []string{"one " + tokenOne + "\n# x\n\ntwo " + tokenTwo, "one", "one " + tokenOne + " x", "one " + tokenOne + "\ntwo " + tokenOne, "-x " + tokenOne, "one short", "/" + tokenOne + " one"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := auth.ParseTokens(b)
		if (err == nil) == (len(list) == 0) || err != nil && !errors.Is(err, errdefs.ErrInvalid) {
			t.Fatalf("%d tokens, %v", len(list), err)
		}
		for _, x := range list {
			if x.Tenant == "" || len(x.Tenant) > auth.MaxTenantBytes || strings.ContainsAny(x.Tenant, "/\\ \x00") || x.Tenant[0] == '.' {
				t.Fatalf("tenant %q", x.Tenant)
			}
		}
		if err != nil {
			for _, field := range bytes.Fields(b) {
				if len(field) >= auth.MinTokenBytes && strings.Contains(err.Error(), string(field)) {
					t.Fatalf("the error has a token: %v", err)
				}
			}
		}
	})
}

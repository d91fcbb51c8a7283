package remote_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// listen starts a block server and returns its address.
func listen(t *testing.T, o server.Options, credentials auth.ServerOptions) string {
	t.Helper()
	var err error
	o.Auth, err = auth.NewServer(credentials)
	must(t, err)
	o.Host, err = blockhost.New(blockhost.Options{CapacityBytes: 1 << 22})
	must(t, err)
	s, err := server.New(o)
	must(t, err)
	addr, err := s.Listen(t.Context(), "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close(context.Background()))
		must(t, o.Host.Close(context.Background()))
	})
	return addr.String()
}

// The note about a server that cannot be used states the cause and the next step. Its blocks are
// misses.
func TestRefusalsNameTheirCause(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, b, 0o600))
		return path
	}
	certPEM, keyPEM := testkit.Certificate(t)
	otherPEM, otherKeyPEM := testkit.Certificate(t)
	cert, key, other, otherKey := file("cert", certPEM), file("key", keyPEM), file("other", otherPEM), file("otherKey", otherKeyPEM)
	good, wrong := file("good", []byte("0123456789abcdef")), file("wrong", []byte("0123456789abcdeX"))
	formats := block.Formats{tiertest.NewFormat(t)}
	plain := listen(t, server.Options{}, auth.ServerOptions{})
	encrypted := listen(t, server.Options{}, auth.ServerOptions{CertFile: cert, KeyFile: key})
	tokens := listen(t, server.Options{}, auth.ServerOptions{CertFile: cert, KeyFile: key, TokensFile: file("tokens", []byte("a 0123456789abcdef\n"))})
	certs := listen(t, server.Options{}, auth.ServerOptions{CertFile: cert, KeyFile: key, ClientCAFile: cert})
	full := listen(t, server.Options{Connections: 1}, auth.ServerOptions{})
	first := open(t, remote.Config{Servers: full, Formats: formats, Timeout: testkit.Patience()})
	if n := first.Notes(); len(n) != 0 {
		t.Errorf("the first client has the notes %q", n)
	}
	for name, x := range map[string]struct {
		c    remote.Config
		does string
		want []string
	}{
		"TLS to a plain server":      {remote.Config{Servers: plain, CAFile: cert}, "does not answer", []string{"the server does not use TLS", "--tls-cert"}},
		"plain to a TLS server":      {remote.Config{Servers: encrypted}, "refuses this client", []string{"it needs TLS", "remote_ca"}},
		"another authority":          {remote.Config{Servers: encrypted, CAFile: other}, "does not answer", []string{"check the file of authorities"}},
		"no token":                   {remote.Config{Servers: tokens, CAFile: cert}, "refuses this client", []string{"denied", "check the token"}},
		"a wrong token":              {remote.Config{Servers: tokens, CAFile: cert, TokenFile: wrong}, "refuses this client", []string{"denied", "check the token"}},
		"a token for a plain server": {remote.Config{Servers: plain, CAFile: cert, TokenFile: good}, "does not answer", []string{"the server does not use TLS"}},
		"no certificate":             {remote.Config{Servers: certs, CAFile: cert}, "refuses this client", []string{"it needs a client's certificate (remote_cert and remote_key)"}},
		"a wrong certificate":        {remote.Config{Servers: certs, CAFile: cert, CertFile: other, KeyFile: otherKey}, "refuses this client", []string{"check the client's certificate (remote_cert)"}},
		"a full server":              {remote.Config{Servers: full}, "refuses this client", []string{"busy", "--max-connections"}},
	} {
		t.Run(name, func(t *testing.T) {
			x.c.Formats, x.c.Timeout = formats, testkit.Patience()
			tr := open(t, x.c)
			n := strings.Join(tr.Notes(), "\n")
			for _, want := range append(x.want, "block server "+x.c.Servers+" "+x.does+"; its blocks are misses meanwhile: ") {
				if !strings.Contains(n, want) {
					t.Errorf("the note lacks %q: %s", want, n)
				}
			}
			if strings.Contains(n, "EOF") && x.does != "does not answer" {
				t.Errorf("note %q", n)
			}
			states := []tier.State{tier.Ready}
			must(t, tr.Lookup(t.Context(), tiertest.Keys(1), states))
			if states[0] != tier.Absent {
				t.Errorf("a block of the server is %v", states[0])
			}
		})
	}
	tr := open(t, remote.Config{Servers: tokens, CAFile: cert, TokenFile: good, Formats: formats, Timeout: testkit.Patience()})
	if n := tr.Notes(); len(n) != 0 {
		t.Errorf("a client with the right token has the notes %q", n)
	}
}

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/testkit"
)

const (
	tokenA = "token-of-tenant-a-0123"
	tokenB = "token-of-tenant-b-0123"
)

// tokenServer returns server credentials with the tokens of two tenants, and the file of their
// certificate. token writes a token to a file and returns its name.
func tokenServer(t *testing.T) (_ *auth.Server, cert string, token func(string) string) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, b, 0o600))
		return path
	}
	certPEM, keyPEM := testkit.Certificate(t)
	cert = file("cert.pem", certPEM)
	a, err := auth.NewServer(auth.ServerOptions{
		CertFile: cert, KeyFile: file("key.pem", keyPEM),
		TokensFile: file("tokens", []byte("a "+tokenA+"\nb "+tokenB+"\n")),
	})
	must(t, err)
	return a, cert, func(text string) string { return file("token", []byte(text)) }
}

// Tokens over TLS determine the tenant. Tenants do not see each other's blocks, and without a token
// a connection is refused.
func TestTenantsAreApart(t *testing.T) {
	a, cert, file := tokenServer(t)
	root := t.TempDir()
	r := newDiskRig(t, Options{Auth: a}, 8, disks["file"](root, nil))
	client := func(token string) *blockio.Client {
		t.Helper()
		c, err := auth.NewClient(auth.ClientOptions{CAFile: cert, TokenFile: file(token)})
		must(t, err)
		return r.client(t, blockio.ClientOptions{Token: c.Token(), Dial: func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: c.TLS(r.addr)}).DialContext(ctx, "tcp", r.addr)
		}})
	}
	ofA, ofB := client(tokenA), client(tokenB)
	m, pieces := image(t, r.formats[0], 1, 4096)
	must(t, store(t, ofA, pieces))
	errs := make([]error, len(pieces))
	ofB.Retrieve(t.Context(), pieces, errs)
	wantErr(t, "a block of another tenant", errs[0], errdefs.ErrNotFound)
	clear(m.Bytes())
	ofA.Retrieve(t.Context(), pieces, errs)
	must(t, errors.Join(errs...))
	must(t, r.formats[0].Verify(m.Bytes(), key(1)))
	must(t, ofA.Flush(t.Context()))
	for tenant, want := range map[string]int{"a": 1, "b": 0} {
		files, err := filepath.Glob(filepath.Join(root, tenant, r.formats[0].Identity.String(), "??", "*"))
		must(t, err)
		if len(files) != want {
			t.Errorf("files of tenant %s: %v", tenant, files)
		}
	}
	stat, err := ofB.Stat(t.Context())
	must(t, err)
	if stat.Blocks != 0 {
		t.Errorf("figures of a tenant without blocks: %+v", stat)
	}
	_, err = client("another-token-0123456").Stat(t.Context())
	wantErr(t, "a wrong token", err, blockio.ErrDenied)
	_, err = r.client(t, blockio.ClientOptions{Token: []byte(tokenA), Retries: -1}).Stat(t.Context())
	if err == nil {
		t.Error("a token without TLS is accepted")
	}
	if n := r.Server.Stats().Denied; n != 1 {
		t.Errorf("%d hellos were denied, want 1", n)
	}
}

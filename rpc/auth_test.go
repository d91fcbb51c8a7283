package rpc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

const (
	tokenOne = "one-0123456789abcdef"
	tokenTwo = "two-0123456789abcdef"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// credentials writes a certificate authority, a certificate of 127.0.0.1, certificates of the
// tenants one and two, and their tokens. It returns the path of a file by its name.
func credentials(t *testing.T) func(string) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	for i, c := range []*x509.Certificate{
		{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		{Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"rpc"}},
		{Subject: pkix.Name{CommonName: "one"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(int64(i+1)), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if ca == nil {
			ca, caKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		must(t, err)
		k, err := x509.MarshalPKCS8PrivateKey(key)
		must(t, err)
		must(t, os.WriteFile(file(c.Subject.CommonName+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		must(t, os.WriteFile(file(c.Subject.CommonName+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), 0o600))
	}
	must(t, os.WriteFile(file("tokens"), []byte("one "+tokenOne+"\ntwo "+tokenTwo+"\n"), 0o600))
	for name, token := range map[string]string{"token-one": tokenOne, "token-two": tokenTwo, "token-wrong": "wrong-0123456789abcdef"} {
		must(t, os.WriteFile(file(name), []byte(token), 0o600))
	}
	return file
}

// introductions records the credential of each connection of a server.
type introductions struct {
	mu   sync.Mutex
	list []string
}

func (n *introductions) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.list)
}

// serveWithAuth serves a method Echo that returns the tenant of the caller.
func serveWithAuth(t *testing.T, l net.Listener, o auth.ServerOptions) (*rpc.Server, *introductions) {
	t.Helper()
	a, err := auth.NewServer(o)
	must(t, err)
	seen := new(introductions)
	s, err := rpc.NewServer(rpc.ServerOptions{
		TLS: a.TLS(),
		Authenticate: func(ctx context.Context, credential []byte, _ net.Addr) (any, error) {
			seen.mu.Lock()
			seen.list = append(seen.list, string(credential))
			seen.mu.Unlock()
			return a.Tenant(rpc.TLSState(ctx), credential)
		},
	})
	must(t, err)
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{
		"Echo": func(ctx context.Context, _ proto.Message) (proto.Message, error) {
			return &echo.EchoResponse{Message: proto.String(fmt.Sprint(rpc.FromContext(ctx).Identity))}, nil
		},
	})
	must(t, err)
	must(t, s.Register(v))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return s, seen
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	must(t, err)
	return l
}

func clientOptions(t *testing.T, o auth.ClientOptions) rpc.ClientOptions {
	t.Helper()
	a, err := auth.NewClient(o)
	must(t, err)
	return rpc.ClientOptions{TLS: a.TLS(""), Credential: a.Token()}
}

// The credential is in the first request of each connection, and identifies its calls.
func TestTLSWithTokens(t *testing.T) {
	file := credentials(t)
	l := listen(t, "tcp", "127.0.0.1:0")
	s, seen := serveWithAuth(t, l, auth.ServerOptions{CertFile: file("server.pem"), KeyFile: file("server.key"), TokensFile: file("tokens")})
	for _, tenant := range []string{"one", "two"} {
		c := newClient(t, l.Addr().String(), clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), TokenFile: file("token-" + tenant)}))
		for range 3 {
			if got, err := echoCall(t.Context(), c, "hello"); err != nil || got != tenant {
				t.Fatalf("tenant %q, %v", got, err)
			}
		}
	}
	if n := seen.count(); n != 2 || s.Stats().Broken != 0 {
		t.Errorf("%d credentials, %+v", n, s.Stats())
	}
	for i, token := range []string{"token-wrong", ""} {
		o := clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem")})
		if token != "" {
			o = clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), TokenFile: file(token)})
		}
		c := newClient(t, l.Addr().String(), o)
		if _, err := echoCall(t.Context(), c, "hello"); rpc.CodeOf(err) != rpc.Unauthorized {
			t.Errorf("credential %q: %v", token, err)
		}
		waitFor(t, func() bool { return s.Stats().Broken == int64(i+1) })
	}
}

func TestMutualTLS(t *testing.T) {
	file := credentials(t)
	l := listen(t, "tcp", "127.0.0.1:0")
	s, _ := serveWithAuth(t, l, auth.ServerOptions{CertFile: file("server.pem"), KeyFile: file("server.key"), ClientCAFile: file("ca.pem")})
	c := newClient(t, l.Addr().String(), clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), CertFile: file("one.pem"), KeyFile: file("one.key")}))
	if got, err := echoCall(t.Context(), c, "hello"); err != nil || got != "one" {
		t.Errorf("tenant %q, %v", got, err)
	}
	for name, o := range map[string]rpc.ClientOptions{
		"no certificate":    clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem")}),
		"unknown authority": {TLS: new(tls.Config)},
		"wrong name":        clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), ServerName: "other", CertFile: file("one.pem"), KeyFile: file("one.key")}),
		"plain":             {},
	} {
		before := s.Stats().Broken
		if _, err := echoCall(t.Context(), newClient(t, l.Addr().String(), o), "hello"); rpc.CodeOf(err) != rpc.FailedSocket && rpc.CodeOf(err) != rpc.EndOfFile {
			t.Errorf("%s: %v", name, err)
		}
		waitFor(t, func() bool { return s.Stats().Broken == before+1 })
	}
}

func TestUnixSocket(t *testing.T) {
	file := credentials(t)
	path := filepath.Join(t.TempDir(), "rpc.sock")
	_, seen := serveWithAuth(t, listen(t, "unix", path), auth.ServerOptions{})
	c := newClient(t, "unix:"+path, rpc.ClientOptions{Credential: []byte("a credential")})
	if got, err := echoCall(t.Context(), c, "hello"); err != nil || got != auth.DefaultTenant {
		t.Errorf("tenant %q, %v", got, err)
	}
	if seen.count() != 1 || seen.list[0] != "a credential" {
		t.Errorf("credentials %q", seen.list)
	}
	secured := filepath.Join(t.TempDir(), "tls.sock")
	serveWithAuth(t, listen(t, "unix", secured), auth.ServerOptions{CertFile: file("server.pem"), KeyFile: file("server.key"), TokensFile: file("tokens")})
	c = newClient(t, "unix:"+secured, clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), ServerName: "rpc", TokenFile: file("token-one")}))
	if got, err := echoCall(t.Context(), c, "hello"); err != nil || got != "one" {
		t.Errorf("tenant %q, %v", got, err)
	}
}

// A first request that is not sent leaves the credential to the next one.
func TestCredentialAfterARequestThatIsNotSent(t *testing.T) {
	file := credentials(t)
	l := listen(t, "tcp", "127.0.0.1:0")
	serveWithAuth(t, l, auth.ServerOptions{CertFile: file("server.pem"), KeyFile: file("server.key"), TokensFile: file("tokens")})
	c := newClient(t, l.Addr().String(), clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem"), TokenFile: file("token-one")}))
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Dev: 1 << 40, Len: 8}) // it is never accessed
	must(t, err)
	b, err := chain.NewRegistered(mem.All(r), nil)
	must(t, err)
	device := new(chain.Chain)
	device.AppendBlock(b, 8)
	if _, err := echoCall(t.Context(), c, "hello", rpc.WithAttachment(device)); rpc.CodeOf(err) != rpc.BadRequest {
		t.Fatalf("an attachment in device memory: %v", err)
	}
	if got, err := echoCall(t.Context(), c, "hello"); err != nil || got != "one" {
		t.Errorf("tenant %q, %v", got, err)
	}
}

// A handshake that takes longer than the deadlines of several calls goes on and succeeds. The calls
// fail with TimedOut until then.
func TestConnectTakesLongerThanDeadlines(t *testing.T) {
	file := credentials(t)
	l := listen(t, "tcp", "127.0.0.1:0")
	slow := &slowListener{Listener: l, proceed: make(chan struct{})}
	serveWithAuth(t, slow, auth.ServerOptions{CertFile: file("server.pem"), KeyFile: file("server.key")})
	c := newClient(t, l.Addr().String(), clientOptions(t, auth.ClientOptions{CAFile: file("ca.pem")}))
	late := 0
	waitFor(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := echoCall(ctx, c, "hello")
		switch {
		case err == nil:
		case rpc.CodeOf(err) != rpc.TimedOut:
			t.Fatal(err)
		case errors.Is(err, rpc.ErrNotSent):
			if late++; late == 3 {
				close(slow.proceed)
			}
			if !strings.Contains(err.Error(), "connect to "+l.Addr().String()) {
				t.Fatal(err)
			}
		}
		return err == nil
	})
	if n := slow.accepted.Load(); late < 3 || n != 1 {
		t.Errorf("%d calls were too early, on %d connections", late, n)
	}
}

// slowListener delays the bytes of each connection that the server reads first, until proceed is
// closed.
type slowListener struct {
	net.Listener
	proceed  chan struct{}
	accepted atomic.Int64 // connections
}

func (l *slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return &slowConn{conn, l.proceed}, err
}

type slowConn struct {
	net.Conn
	proceed chan struct{}
}

func (c *slowConn) Read(b []byte) (int, error) {
	<-c.proceed
	return c.Conn.Read(b)
}

// The credential is in the first request of a connection alone, also if calls are pipelined.
func TestCredentialIsSentOnce(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	c := newClient(t, l.Addr().String(), rpc.ClientOptions{Credential: []byte("secret")})
	const calls = 8
	var group sync.WaitGroup
	for range calls {
		group.Go(func() { _, _ = echoCall(t.Context(), c, "hello") }) // the connection is closed before the responses
	}
	conn, err := l.Accept()
	must(t, err)
	for i := range calls {
		credential := string(nextReply(t, conn).meta.GetAuthenticationData())
		if want := map[bool]string{true: "secret"}[i == 0]; credential != want {
			t.Errorf("request %d has the credential %q, want %q", i, credential, want)
		}
	}
	must(t, conn.Close())
	group.Wait()
}

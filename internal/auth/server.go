package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// DefaultTenant is the tenant of all clients of a server without credentials.
const DefaultTenant = "default"

// ErrDenied is returned for a client whose credential is missing or wrong. It does not reveal
// which.
var ErrDenied = errors.New("access denied")

// ServerOptions are the paths of a server's credential files. The zero value has no credentials.
type ServerOptions struct {
	// CertFile and KeyFile are the server's certificate chain and private key in PEM.
	CertFile, KeyFile string
	// ClientCAFile has the certificates, in PEM, of the authorities that sign client certificates.
	// If it is set, each client needs such a certificate.
	ClientCAFile string
	// TokensFile has one tenant and one token on each line; see ParseTokens. If it is set, each
	// client needs a token. If the file changes, it is read again, and counts for new connections.
	// If it then cannot be read, the old tokens stay.
	TokensFile string
	// OnTokensError is called, if it is not nil, when a changed or removed file of tokens cannot be
	// read, once for each error. It must not block.
	OnTokensError func(error)
	// Insecure permits listening on non-loopback addresses without client credentials.
	Insecure bool
}

// Server authenticates clients.
type Server struct {
	tls      *tls.Config // nil: plain TCP
	certs    bool        // clients need certificates
	insecure bool

	tokensFile string
	tokens     atomic.Pointer[[]Token] // nil: none
	mu         sync.Mutex              // of reading the file again
	onError    func(error)             // may be nil
	failure    string                  // the last error that was reported; guarded by mu
	read       fs.FileInfo             // of tokens; guarded by mu
	checked    time.Time               // guarded by mu
}

// recheck is the time between looks at the file of tokens.
const recheck = time.Second / 2

// NewServer reads the credential files. It returns ErrInvalid for malformed contents, for a
// certificate without its key, and for client credentials without a server certificate. It also
// returns the errors of reading.
func NewServer(o ServerOptions) (*Server, error) {
	s := &Server{insecure: o.Insecure, certs: o.ClientCAFile != "", tokensFile: o.TokensFile, onError: o.OnTokensError}
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		return nil, fmt.Errorf("read credentials: a certificate and its key must be given together: %w", errdefs.ErrInvalid)
	case o.CertFile == "" && (o.ClientCAFile != "" || o.TokensFile != ""):
		return nil, fmt.Errorf("read credentials: client certificates and tokens need TLS, with a certificate of the server: %w", errdefs.ErrInvalid)
	case o.CertFile == "":
		return s, nil
	}
	pair, err := readKeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, err
	}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
	if s.certs {
		if s.tls.ClientCAs, err = readPool(o.ClientCAFile); err != nil {
			return nil, err
		}
		s.tls.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if o.TokensFile != "" {
		if err := s.readTokens(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// readTokens reads the file of tokens.
func (s *Server) readTokens() error {
	info, err := os.Stat(s.tokensFile) // before the contents: a later change shows
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	b, err := os.ReadFile(s.tokensFile)
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	list, err := ParseTokens(b)
	if err != nil {
		return fmt.Errorf("read tokens of %s: %w", s.tokensFile, err)
	}
	s.tokens.Store(&list)
	s.read = info
	return nil
}

// refresh reads the file of tokens again if it has changed.
func (s *Server) refresh() {
	if s.tokensFile == "" || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if time.Since(s.checked) < recheck {
		return
	}
	s.checked = time.Now()
	info, err := os.Stat(s.tokensFile)
	if err == nil && (!info.ModTime().Equal(s.read.ModTime()) || info.Size() != s.read.Size() || !os.SameFile(info, s.read)) {
		err = s.readTokens() // after an error the old tokens stay, and it is tried again
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if failure != "" && failure != s.failure && s.onError != nil {
		s.onError(err)
	}
	s.failure = failure
}

// QuotaBytes returns the bound of a tenant's memory in the file of tokens, or zero.
func (s *Server) QuotaBytes(tenant string) (least int64) {
	list := s.tokens.Load()
	if list == nil {
		return 0
	}
	for i := range *list {
		if t := &(*list)[i]; t.Tenant == tenant && t.QuotaBytes > 0 && (least == 0 || t.QuotaBytes < least) {
			least = t.QuotaBytes
		}
	}
	return least
}

// readKeyPair reads a certificate chain and its key. Its errors do not contain file contents.
func readKeyPair(cert, key string) (tls.Certificate, error) {
	c, err := os.ReadFile(cert)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read certificate: %w", err)
	}
	k, err := os.ReadFile(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read private key: %w", err)
	}
	pair, err := tls.X509KeyPair(c, k)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s with key %s: %w: %w", cert, key, errdefs.ErrInvalid, err)
	}
	return pair, nil
}

func readPool(name string) (*x509.CertPool, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("authorities of %s: no certificate in PEM: %w", name, errdefs.ErrInvalid)
	}
	return pool, nil
}

// TLS returns the configuration for the server's connections. It returns nil for plain TCP. The
// caller must not modify it.
func (s *Server) TLS() *tls.Config { return s.tls }

// Authenticates reports whether clients need a credential.
func (s *Server) Authenticates() bool { return s.certs || s.tokensFile != "" }

// CheckListen returns ErrInvalid if the server must not listen at address, HOST:PORT. That is the
// case if clients need no credential, Insecure is not set, and the host is neither a loopback
// address nor "localhost".
func (s *Server) CheckListen(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen at %q: %w: %w", address, errdefs.ErrInvalid, err)
	}
	if s.Authenticates() || s.insecure || host == "localhost" || net.ParseIP(host).IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen at %q without client credentials: each host that reaches the address would have access; give client certificates or tokens, or permit it with --insecure: %w", address, errdefs.ErrInvalid)
}

// Tenant returns the tenant of a client. c is the state of its TLS connection, or nil for plain
// TCP. token is the token that the client sent, or empty. It returns ErrDenied if a credential is
// missing or wrong, or if the certificate and the token have different tenants. Its duration
// depends only on the length of the token.
func (s *Server) Tenant(c *tls.ConnectionState, token []byte) (string, error) {
	if !s.Authenticates() {
		return DefaultTenant, nil
	}
	var tenant string
	if s.certs {
		if c == nil || !c.HandshakeComplete || len(c.VerifiedChains) == 0 {
			return "", ErrDenied
		}
		tenant = c.VerifiedChains[0][0].Subject.CommonName
		if checkTenant(tenant) != nil {
			return "", ErrDenied
		}
	}
	if s.tokensFile == "" {
		return tenant, nil
	}
	s.refresh()
	if c == nil || !c.HandshakeComplete {
		return "", ErrDenied
	}
	owner, ok := s.find(token)
	if !ok || s.certs && owner != tenant {
		return "", ErrDenied
	}
	return owner, nil
}

// find compares token with all tokens in constant time.
func (s *Server) find(token []byte) (tenant string, ok bool) {
	sum := sha256.Sum256(token)
	found := -1
	list := *s.tokens.Load()
	for i := range list {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], list[i].sum[:]), i, found)
	}
	if found < 0 {
		return "", false
	}
	return list[found].Tenant, true
}

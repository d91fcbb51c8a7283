package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
)

// ClientOptions are the paths of a client's credential files. The zero value has no credentials and
// uses plain TCP.
type ClientOptions struct {
	// CAFile has the certificates, in PEM, of the authorities that sign server certificates. It
	// enables TLS.
	CAFile string
	// CertFile and KeyFile are the client's certificate chain and private key in PEM.
	CertFile, KeyFile string
	// TokenFile contains the client's token, optionally followed by a newline.
	TokenFile string
	// ServerName is the expected name in the server's certificate. Default: the host of the
	// address.
	ServerName string
}

// Client has the credentials of a client.
type Client struct {
	tls   *tls.Config // nil: plain TCP
	token []byte
}

// NewClient reads the credential files. It returns ErrInvalid for malformed contents, for a
// certificate without its key, and for client credentials without CAFile. It also returns the
// errors of reading.
func NewClient(o ClientOptions) (*Client, error) {
	c := new(Client)
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		return nil, fmt.Errorf("read credentials: a certificate and its key must be given together: %w", errdefs.ErrInvalid)
	case o.CAFile == "" && (o.CertFile != "" || o.TokenFile != "" || o.ServerName != ""):
		return nil, fmt.Errorf("read credentials: client certificates and tokens need TLS, with authorities of servers: %w", errdefs.ErrInvalid)
	case o.CAFile == "":
		return c, nil
	}
	roots, err := readPool(o.CAFile)
	if err != nil {
		return nil, err
	}
	c.tls = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: o.ServerName}
	if o.CertFile != "" {
		pair, err := readKeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, err
		}
		c.tls.Certificates = []tls.Certificate{pair}
	}
	if o.TokenFile != "" {
		b, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read token: %w", err)
		}
		c.token = bytes.TrimSpace(b)
		if why := tokenProblem(c.token); why != "" {
			return nil, fmt.Errorf("read token of %s: %s: %w", o.TokenFile, why, errdefs.ErrInvalid)
		}
	}
	return c, nil
}

// TLS returns the configuration of a connection to address, HOST:PORT. It returns nil for plain
// TCP.
func (c *Client) TLS(address string) *tls.Config {
	if c.tls == nil {
		return nil
	}
	t := c.tls.Clone()
	if t.ServerName == "" {
		if host, _, err := net.SplitHostPort(address); err == nil {
			t.ServerName = host
		}
	}
	return t
}

// Dial connects to address, HOST:PORT, by TCP or TLS. Errors of the handshake name the setting to
// check.
func (c *Client) Dial(ctx context.Context, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	config := c.TLS(address)
	if err != nil || config == nil {
		return nc, err
	}
	t := tls.Client(nc, config)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(explain(err), nc.Close())
	}
	return t, nil
}

// explain returns an error of a client's handshake with its likely cause.
func explain(err error) error {
	var name x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("TLS handshake: use an address that the server's certificate names: %w", err)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("TLS handshake: check the file of authorities, and the server's certificate: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.As(err, &record):
		return fmt.Errorf("TLS handshake: the server does not use TLS: give no file of authorities, or start it with --tls-cert: %w", err)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}

// Token returns a copy of the token to send after the handshake. It is empty if the client has no
// token.
func (c *Client) Token() []byte { return slices.Clone(c.token) }

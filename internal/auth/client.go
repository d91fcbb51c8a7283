package auth

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// ClientOptions are the files of a client's credentials. The zero value has none: plain TCP.
type ClientOptions struct {
	// CAFile has the authorities of server certificates in PEM. It enables TLS.
	CAFile string
	// CertFile and KeyFile are the client's certificate chain and private key in PEM.
	CertFile, KeyFile string
	// TokenFile has the client's token alone, with or without a newline.
	TokenFile string
	// ServerName is the name in the server's certificate. Default: the host of the address.
	ServerName string
}

// Client has the credentials of a client.
type Client struct {
	tls   *tls.Config // nil: plain TCP
	token []byte
}

// NewClient reads the files. It returns ErrInvalid for contents that are no credentials, a
// certificate without its key, and client credentials without authorities of servers; and the
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

// TLS returns the configuration of a connection to address, HOST:PORT, or nil for plain TCP.
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

// Token returns a copy of the token to send after the handshake, empty if there is none.
func (c *Client) Token() []byte { return slices.Clone(c.token) }

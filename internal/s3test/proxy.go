package s3test

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// Fault changes the response to a request. It returns false to pass the request on.
type Fault func(w http.ResponseWriter, r *http.Request) (done bool)

// Proxy is an HTTP proxy in front of a server. It is safe for concurrent use.
type Proxy struct {
	URL string

	server *httptest.Server
	back   *httputil.ReverseProxy

	mu       sync.Mutex
	fault    Fault
	body     func([]byte) []byte // changes bodies of objects; nil: none
	requests []string            // method and URL
}

// NewProxy starts a proxy. The end of the test stops it.
func NewProxy(tb testing.TB, backend string) *Proxy {
	tb.Helper()
	return newProxy(tb, backend, (*httptest.Server).Start)
}

// NewTLSProxy starts a proxy with TLS. It returns also the file with its authority, in PEM.
func NewTLSProxy(tb testing.TB, backend string) (p *Proxy, caFile string) {
	tb.Helper()
	p = newProxy(tb, backend, (*httptest.Server).StartTLS)
	caFile = filepath.Join(tb.TempDir(), "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	if err := os.WriteFile(caFile, encoded, 0o600); err != nil {
		tb.Fatal(err)
	}
	return p, caFile
}

func newProxy(tb testing.TB, backend string, start func(*httptest.Server)) *Proxy {
	tb.Helper()
	to, err := url.Parse(backend)
	if err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	p := &Proxy{}
	p.back = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // the signature covers it
		},
		Transport:      transport,
		ModifyResponse: p.modify,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of handshakes that tests let fail
	start(p.server)
	p.URL = p.server.URL
	tb.Cleanup(func() {
		p.Set(nil)
		p.server.CloseClientConnections()
		p.server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

// Set sets the fault of later requests. nil ends it.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.body = f, nil
}

// SetBody sets a function that changes the bodies of objects. The header keeps the old length.
func (p *Proxy) SetBody(f func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.body = nil, f
}

// Requests returns the requests since the last call, as "GET /path?query".
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requests
	p.requests = nil
	return all
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.Method+" "+r.URL.String())
	fault := p.fault
	p.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	p.back.ServeHTTP(w, r)
}

func (p *Proxy) modify(r *http.Response) error {
	p.mu.Lock()
	change := p.body
	p.mu.Unlock()
	if change == nil || r.Request.Method != http.MethodGet || r.Request.URL.Query().Has("list-type") || r.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	body = change(body)
	r.Body = &shortBody{body}
	return nil
}

// shortBody is a body that ends with an error, so that the connection is closed.
type shortBody struct{ rest []byte }

func (b *shortBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *shortBody) Close() error { return nil }

// Status returns a fault that answers all requests with an error of S3.
func Status(status int, code string) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		body := `<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + code + `</Code><Message>injected</Message></Error>`
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, body)
		}
		return true
	}
}

// Hang returns a fault that does not answer until the client gives up.
func Hang() Fault {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		return true
	}
}

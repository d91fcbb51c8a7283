package etcdtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Versions are the names of the servers.
var Versions = []string{"etcd-3.4", "etcd-3.6"}

// binaries are the environment variables with the binaries.
var binaries = map[string]string{"etcd-3.4": "KVLANE_ETCD34", "etcd-3.6": "KVLANE_ETCD36"}

// Server is an etcd that a test stops and starts. Its address and its data stay the same.
type Server struct {
	Addr string // HOST:PORT

	binary  string
	args    []string
	version string        // a URL that etcd answers when it serves clients
	tls     *tls.Config   // for version
	cmd     *exec.Cmd     // nil: not running
	ended   chan struct{} // closed when cmd has ended
	output  bytes.Buffer  // of cmd, after its end
}

// Start starts the server with a version's name, and stops it at the end of the test. It skips the
// test if the server is not installed.
func Start(tb testing.TB, version string) *Server {
	tb.Helper()
	return start(tb, version, "http://", nil)
}

// StartTLS starts the server with TLS. Files are those of its certificate and key in PEM, and of
// the authorities of its clients' certificates, which include that of its own certificate.
func StartTLS(tb testing.TB, version, cert, key, clientCA string) *Server {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	client := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}} //nolint:gosec // the test started the server
	return start(tb, version, "https://", client, "--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", clientCA)
}

func start(tb testing.TB, version, scheme string, client *tls.Config, more ...string) *Server {
	tb.Helper()
	s := &Server{Addr: FreeAddr(tb), binary: os.Getenv(binaries[version]), tls: client}
	if s.binary == "" {
		testkit.Skip(tb, version, binaries[version]+` is not set; "make cluster" sets it`)
	}
	at, peer := scheme+s.Addr, "http://"+FreeAddr(tb)
	s.version = at + "/version"
	s.args = append([]string{
		"--name", "one", "--data-dir", tb.TempDir(), "--listen-client-urls", at, "--advertise-client-urls", at,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one=" + peer,
		"--heartbeat-interval", "50", "--election-timeout", "250", "--logger", "zap", "--log-level", "error",
	}, more...)
	tb.Cleanup(s.Kill)
	s.Start(tb)
	return s
}

// Start starts the server again after Kill, and waits until it serves clients. Another process may
// have its address meanwhile, so it tries again.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience()/10)
	defer cancel()
	if err := s.start(ctx); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) start(ctx context.Context) error {
	for {
		ready, err := s.run(ctx)
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			s.Kill() // it completes the output
			return fmt.Errorf("etcd does not serve clients at %s: %w:\n%s", s.Addr, ctx.Err(), s.output.Bytes())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// settle is the time in which an etcd that cannot listen ends.
const settle = 100 * time.Millisecond

// run starts the process, and reports whether it serves clients. A new etcd listens before its data
// names its member. If it is killed between, it never serves clients with this data.
func (s *Server) run(ctx context.Context) (bool, error) {
	s.output.Reset()
	cmd, ended := exec.CommandContext(context.Background(), s.binary, s.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	s.cmd, s.ended = cmd, ended
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		defer close(ended)
		_ = cmd.Wait() // it is killed, or run reports it
	}()
	for ctx.Err() == nil && !s.answers(ctx) {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	select {
	case <-ended: // if there was an answer, it was that of another process
		s.cmd = nil
		return false, nil
	case <-time.After(settle):
		return ctx.Err() == nil, nil
	}
}

// answers reports whether a request is answered. etcd answers none before it serves clients.
func (s *Server) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.version, http.NoBody)
	if err != nil {
		return false
	}
	answer, err := (&http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close() // it has been read, as far as needed
	return answer.StatusCode == http.StatusOK
}

// Kill kills the server.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// FreeAddr returns an address on which nothing listens.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it has accepted nothing
	return l.Addr().String()
}

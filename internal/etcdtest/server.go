package etcdtest

import (
	"bytes"
	"context"
	"net"
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

	binary string
	args   []string
	cmd    *exec.Cmd     // nil: not running
	ended  chan struct{} // closed when cmd has ended
	output bytes.Buffer  // of cmd, after its end
}

// Start starts the server with a version's name, and stops it at the end of the test. It skips the
// test if the server is not installed.
func Start(tb testing.TB, version string) *Server {
	tb.Helper()
	return start(tb, version, "http://")
}

// StartTLS starts the server with TLS. Files are those of its certificate and key in PEM, and of
// the authorities of its clients' certificates.
func StartTLS(tb testing.TB, version, cert, key, clientCA string) *Server {
	tb.Helper()
	return start(tb, version, "https://", "--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", clientCA)
}

func start(tb testing.TB, version, scheme string, more ...string) *Server {
	tb.Helper()
	s := &Server{Addr: FreeAddr(tb), binary: os.Getenv(binaries[version])}
	if s.binary == "" {
		testkit.Skip(tb, version, binaries[version]+` is not set; "make cluster" sets it`)
	}
	client, peer := scheme+s.Addr, "http://"+FreeAddr(tb)
	s.args = append([]string{
		"--name", "one", "--data-dir", tb.TempDir(), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one=" + peer,
		"--heartbeat-interval", "50", "--election-timeout", "250", "--logger", "zap", "--log-level", "error",
	}, more...)
	tb.Cleanup(s.Kill)
	s.Start(tb)
	return s
}

// Start starts the server again after Kill, and waits until it accepts connections. Another process
// may have its address meanwhile, so it tries again.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(testkit.Patience() / 10); !s.run(tb); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("etcd does not listen at %s:\n%s", s.Addr, s.output.Bytes())
		}
	}
}

// settle is the time in which an etcd that cannot listen ends.
const settle = 100 * time.Millisecond

// run starts the process, and reports whether it listens.
func (s *Server) run(tb testing.TB) bool {
	tb.Helper()
	s.output.Reset()
	cmd, ended := exec.CommandContext(context.Background(), s.binary, s.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	s.cmd, s.ended = cmd, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed, or run reports it
	}()
	for wait := time.Duration(0); ; wait = 10 * time.Millisecond {
		select {
		case <-ended:
			s.cmd = nil
			return false
		case <-time.After(wait):
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", s.Addr)
		if err != nil {
			continue
		}
		_ = conn.Close()
		select {
		case <-ended: // the listener is another process
			s.cmd = nil
			return false
		case <-time.After(settle):
			return true
		}
	}
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

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// rpcServer starts a server of the package and returns its address.
func rpcServer(t *testing.T, o rpc.ServerOptions, list ...*rpc.Service) string {
	t.Helper()
	s, err := rpc.NewServer(o)
	must(t, err)
	must(t, s.Register(list...))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close() // Serve may not have begun
		must(t, errors.Join(s.Close(), <-served))
	})
	return l.Addr().String()
}

// generous is an echo service whose responses exceed the limits of clients.
type generous struct{}

func (generous) Echo(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
	rpc.FromContext(ctx).Reply.Attachment = chain.OfBytes(make([]byte, rpc.DefaultMaxBodyBytes))
	return &echo.EchoResponse{Message: proto.String("x")}, nil
}

// failing is an echo service whose calls fail with a code.
type failing rpc.Code

func (f failing) Echo(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error) {
	return nil, rpc.Errorf(rpc.Code(f), "failed")
}

// Each failure of a server has advice of its own.
func TestRPCNextSteps(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	fails := func(c rpc.Code) string { return rpcServer(t, rpc.ServerOptions{}, echo.NewEchoService(failing(c))) }
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts no connection
	must(t, err)
	defer l.Close()
	_, plain := echoServer(t)
	for line, want := range map[string]string{
		rpcServer(t, rpc.ServerOptions{}):                                  "does not offer example.EchoService",
		rpcServer(t, rpc.ServerOptions{}, echo.NewEchoService(generous{})): "request less data",
		fails(rpc.BadRequest):                                              "send fewer bytes",
		fails(rpc.LimitReached):                                            "try again later",
		fails(rpc.LogOff):                                                  "start it again",
		l.Addr().String() + " --timeout 50ms":                              "a longer --timeout",
		plain + " --tls-ca server.pem":                                     "omit --tls-ca",
		rpcServer(t, rpc.ServerOptions{MaxBodyBytes: 100}) + " --message " + strings.Repeat("x", 200): "exceeds its limits",
	} {
		args := append([]string{"rpc", "call", "--addr"}, words(line)...)
		if code, stdout, stderr := execute(t, args...); code != exitFailure || stdout != "" || !strings.Contains(stderr, "Next: ") || !strings.Contains(stderr, want) {
			t.Errorf("%.60s: exit code %d, %q, %s", line, code, stdout, stderr)
		}
	}
}

// A client does not trust the server's certificate, or has none of its own.
func TestRPCNextStepsOfCertificates(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	_, address := echoServer(t, "--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "server.pem")
	must(t, os.Rename("server.pem", "right.pem"))
	credentialFiles(t) // another certificate
	for ca, want := range map[string]string{"right.pem": "give --tls-cert and --tls-key", "server.pem": "with the authority of the server's certificate"} {
		if code, _, stderr := execute(t, "rpc", "call", "--addr", address, "--tls-ca", ca); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s", ca, code, stderr)
		}
	}
}

// A benchmark reports an error that all callers have once.
func TestRPCBenchReportsAnErrorOnce(t *testing.T) {
	for text, line := range map[string]string{"connection refused": "--addr 127.0.0.1:1 --rounds 1 --duration 1ms", "of 0 bytes": "--sizes 0"} {
		if _, _, stderr := execute(t, append([]string{"rpc", "bench"}, words(line)...)...); strings.Count(stderr, text) != 1 {
			t.Errorf("%s: %s", line, stderr)
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench/calls"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/rpc"
)

// registerServerCredentials registers the flags of a server's credentials.
func registerServerCredentials(fl *pflag.FlagSet, o *auth.ServerOptions) {
	fl.BoolVar(&o.Insecure, "insecure", false, "listen on other than loopback addresses without client credentials")
	fl.StringVar(&o.CertFile, "tls-cert", "", "PEM file of the server's certificate; enables TLS")
	fl.StringVar(&o.KeyFile, "tls-key", "", "PEM file of its private key")
	fl.StringVar(&o.ClientCAFile, "tls-client-ca", "", "PEM file of authorities; each client needs a certificate of one")
	fl.StringVar(&o.TokensFile, "tokens", "", "file with a tenant and a token in each line; each client needs a token")
}

// rpcServe are the flags of an echo server.
type rpcServe struct {
	listen      string
	credentials auth.ServerOptions
	rdma        rpcRDMA
}

func newRPCServeCommand() *cobra.Command {
	var f rpcServe
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run an echo server",
		Long: `serve offers example.EchoService, whose method Echo returns the message and the attachment of a request. It runs until it is interrupted: then it
refuses new requests, ends those in progress, and exits.

Without client credentials every client has access, so the server listens on loopback addresses only; --insecure permits other addresses. Credentials are
certificates of clients (--tls-client-ca), tokens (--tokens), or both; they need a certificate of the server. A client sends its token as the credential of
its first request.

With --rdma clients can use RDMA, and with --gpu their requests arrive in memory of the device. Other clients use sockets. Connections with TLS have no
RDMA.`,
		Example: `  kvlane rpc serve --listen 127.0.0.1:8000
  kvlane rpc serve --listen 10.0.0.1:8000 --insecure --rdma --gpu --device-index 1`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8000", "HOST:PORT to listen on; port 0 is a free port")
	registerServerCredentials(fl, &f.credentials)
	f.rdma.register(fl, "serve clients by RDMA too")
	return cmd
}

// run serves until the command's context ends. An interruption is not an error.
func (f *rpcServe) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	if strings.HasPrefix(f.listen, "unix:") {
		return usagef("--listen %s: give HOST:PORT; only programs with package rpc serve Unix sockets", f.listen)
	}
	m := metricsOf(ctx)
	m.SetReady(func() error { return errors.New("the echo server does not listen yet") })
	f.credentials.OnTokensError = warnTokens
	credentials, err := auth.NewServer(f.credentials)
	if err == nil {
		err = credentials.CheckListen(f.listen)
	}
	if err != nil {
		return asUsage(err)
	}
	o := rpc.ServerOptions{TLS: credentials.TLS()}
	if credentials.Authenticates() {
		o.Authenticate = func(ctx context.Context, token []byte, _ net.Addr) (any, error) {
			return credentials.Tenant(rpc.TLSState(ctx), token)
		}
	}
	closers := unwind.New()
	defer func() { err = errors.Join(err, closeWithin(context.WithoutCancel(ctx), closers.Close)) }()
	if err := f.rdma.open(ctx, &closers, o.TLS != nil); err != nil {
		return err
	}
	f.rdma.export(m, &closers)
	o.RDMA = f.rdma.rdma
	s, err := rpc.NewServer(o)
	if err != nil {
		return err
	}
	closers.AddPlain("server", s.Close)
	if err := s.Register(calls.Service()); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !credentials.Authenticates() {
		slog.Warn("every host that reaches the address can call the server", "address", a.String())
	}
	out := newLineWriter(cmd.OutOrStdout())
	_ = out.print(ctx, "echo server %s; interrupt to end\n", l.Addr()) // it fails only if ctx has ended
	isReady(ctx)
	<-ctx.Done()
	m.SetReady(func() error { return fmt.Errorf("the echo server drains: %w", errdefs.ErrClosed) })
	if drained := closeWithin(ctx, s.Shutdown); drained != nil {
		slog.Warn("calls end with their connections", "error", drained)
	}
	t, remote := s.Stats(), ""
	if r := f.rdma.rdma; r != nil {
		remote = fmt.Sprintf(", %d by RDMA, %d refused RDMA", r.Stats().Connected, r.Stats().Refused)
	}
	return errors.Join(<-served, out.close("%d requests, %d failed, %d broken connections%s\n", t.Requests, t.Failed, t.Broken, remote))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/internal/kept"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

func newRPCCommand() *cobra.Command {
	cmd := newGroupCommand("rpc", "Serve, call and measure baidu_std, the RPC protocol of brpc", `rpc serves and calls example.EchoService, the service of brpc's examples, over baidu_std. Use it to test connections and credentials, and
to measure a server.`)
	cmd.AddCommand(newRPCServeCommand(), newRPCCallCommand(), newRPCBenchCommand())
	return cmd
}

// rpcCredentials are the flags of a client's credentials.
type rpcCredentials struct{ auth.ClientOptions }

func (f *rpcCredentials) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.CAFile, "tls-ca", "", "PEM file of authorities of the server's certificate; enables TLS")
	fl.StringVar(&f.CertFile, "tls-cert", "", "PEM file of the client's certificate")
	fl.StringVar(&f.KeyFile, "tls-key", "", "PEM file of its private key")
	fl.StringVar(&f.TokenFile, "token", "", "file with the client's token")
}

// options returns the options of a client of the server at address.
func (f *rpcCredentials) options(address string) (rpc.ClientOptions, error) {
	c, err := auth.NewClient(f.ClientOptions)
	if err != nil {
		return rpc.ClientOptions{}, asUsage(err)
	}
	return rpc.ClientOptions{TLS: c.TLS(address), Credential: c.Token()}, nil
}

// rpcCall are the flags of a call.
type rpcCall struct {
	addr, message, attachment, out string
	timeout                        time.Duration
	credentials                    rpcCredentials
	rdma                           rpcRDMA
}

func newRPCCallCommand() *cobra.Command {
	var f rpcCall
	cmd := &cobra.Command{
		Use:   "call",
		Short: "Call an echo server",
		Long: `call sends a message to example.EchoService/Echo and prints the message of the response. --attachment also sends the bytes of a file, which are
neither encoded nor copied. --out writes the attachment of the response to a file.

With --rdma the call uses RDMA if the server offers it, and a note reports if it does not. With --gpu the response arrives in memory of the device.`,
		Example: `  kvlane rpc call --addr 127.0.0.1:8000 --message hello
  kvlane rpc call --addr 127.0.0.1:8000 --message blocks --attachment blocks.bin --out echoed.bin
  kvlane rpc call --addr 127.0.0.1:8000 --message hello --rdma`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.addr, "addr", "127.0.0.1:8000", "HOST:PORT or unix:PATH of the server")
	fl.StringVar(&f.message, "message", "", "text to send")
	fl.StringVar(&f.attachment, "attachment", "", "file with the attachment to send")
	fl.StringVar(&f.out, "out", "", "write the attachment of the response to this file")
	fl.DurationVar(&f.timeout, "timeout", 10*time.Second, "limit of the call's duration")
	f.credentials.register(fl)
	f.rdma.register(fl, "call by RDMA if the server offers it")
	return cmd
}

// maxAttachmentBytes is the length of an attachment that a server accepts by default with a message
// and meta of half a MiB each.
const maxAttachmentBytes = rpc.DefaultMaxBodyBytes - 1<<20

func (f *rpcCall) run(cmd *cobra.Command) (err error) {
	if f.timeout <= 0 {
		return usagef("--timeout must be positive")
	}
	if err := checkOutput(f.out); err != nil {
		return err
	}
	o, err := f.credentials.options(f.addr)
	if err != nil {
		return err
	}
	closers := unwind.New()
	defer func() { err = errors.Join(err, closeWithin(context.WithoutCancel(cmd.Context()), closers.Close)) }()
	if err := f.rdma.open(cmd.Context(), &closers, o.TLS != nil); err != nil {
		return err
	}
	o.RDMA = f.rdma.rdma
	c, err := rpc.NewClient(f.addr, o)
	if err != nil {
		return asUsage(fmt.Errorf("--addr: %w", err))
	}
	closers.AddPlain("client", c.Close)
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	var sent []byte
	if f.attachment != "" {
		if sent, err = readAttachment(ctx, f.attachment); err != nil {
			return err
		}
	}
	return f.call(ctx, cmd, c, sent)
}

// call makes the call and prints its result.
func (f *rpcCall) call(ctx context.Context, cmd *cobra.Command, c *rpc.Client, sent []byte) error {
	var received chain.Chain
	defer received.Release()
	stub := echo.NewEchoServiceStub(c)
	reply, err := stub.Echo(ctx, &echo.EchoRequest{Message: &f.message}, rpc.WithAttachment(chain.OfBytes(sent)), rpc.ReceiveAttachment(&received))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), present.Escape(reply.GetMessage())); err != nil {
		return err
	}
	if r := f.rdma.rdma; r != nil && r.Stats().Connected == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "RDMA was not used: the server does not offer it, or its NIC cannot be reached")
	}
	if f.out != "" {
		return f.write(ctx, &received)
	}
	if n := received.Len(); n > 0 {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "attachment: %s\n", present.Bytes(n))
	}
	return err
}

// readAttachment returns the contents of a file.
func readAttachment(ctx context.Context, name string) (_ []byte, err error) {
	in, err := ctxio.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("--attachment: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b, err := io.ReadAll(io.LimitReader(in, maxAttachmentBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--attachment: %w", err)
	}
	if len(b) > maxAttachmentBytes {
		return nil, usagef("--attachment %s: longer than %s", name, present.Bytes(maxAttachmentBytes))
	}
	return b, nil
}

// write replaces the file of --out with the bytes of a chain.
func (f *rpcCall) write(ctx context.Context, c *chain.Chain) (err error) {
	var list net.Buffers
	if c.OnDevice() {
		var copied *mem.Region
		if copied, err = f.rdma.dev.AllocHost(c.Len()); err != nil {
			return err
		}
		_, err = c.CopyFromGPU(ctx, mem.All(copied), c.Len(), 0)
		defer chain.AfterCopy(err, func() { _ = f.rdma.dev.Free(copied) }) // the device reports it when it is closed
		list = net.Buffers{copied.Bytes()}
	} else {
		list, err = c.Buffers(nil)
	}
	if err != nil {
		return err
	}
	err = kept.Replace(f.out, func(w io.Writer) error {
		_, err := list.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("write attachment: %w", err)
	}
	return nil
}

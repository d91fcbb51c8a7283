package rpc_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
)

// The tests of this file use the NICs of this machine, for example those of tools/rxe/run. Servers
// use the first one and clients the second, if there are two.

// verbsFabric returns a fabric of the machine's NICs and a simulated device, or skips the test.
func verbsFabric(t *testing.T) *fabric {
	t.Helper()
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	names, err := p.Devices()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	must(t, err)
	slices.Sort(names)
	d, err := sim.Open(sim.Options{HostAddresses: true, RemoteWritesNeedFlush: true})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return newFabricOf(t, d, p, names...)
}

// Echoes have attachments of 0 bytes to the maximum of a body, in both versions of the handshake,
// between host and device memory. With packet loss, packets are sent again.
func TestVerbsEcho(t *testing.T) {
	for _, c := range []echoCase{{version: 2}, {version: 3, server: true}, {version: 2, client: true, server: true}, {version: 3, polling: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			f := verbsFabric(t)
			rdmatest.Lossy(t)
			testEcho(t, f, c, 300<<10, 0, 1, 4097, 8192, 65536)
		})
	}
	t.Run("longest", func(t *testing.T) {
		if os.Getenv(rdmatest.LossEnv) != "" {
			t.Skip("64 MiB take too long with packet loss")
		}
		testEcho(t, verbsFabric(t), echoCase{version: 3, server: true}, rpc.DefaultMaxBodyBytes)
	})
}

func TestVerbsFallBack(t *testing.T) {
	for _, version := range []int{2, 3} {
		testFallback(t, verbsFabric(t), version)
	}
}

func TestVerbsDirectPlacement(t *testing.T) {
	f := verbsFabric(t)
	rdmatest.Lossy(t)
	testDirect(t, f, 2<<20+1000)
}

// A killed server, and a killed client, in the middle of messages fail the calls in progress. All
// memory returns, the client connects to the next server, and other clients' calls succeed.
func TestVerbsKilledPeer(t *testing.T) {
	f := verbsFabric(t)
	sr, cr := f.open(t, true, nil), f.open(t, true, nil)
	server := startPeer(t, "serve")
	client := newClient(t, server.line, rpc.ClientOptions{RDMA: cr, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
	failed, began := make(chan error, 2), make(chan struct{}, 1)
	for range cap(failed) {
		go func() { failed <- echoUntilError(t.Context(), client, func() { send(began) }) }()
	}
	select {
	case <-began:
	case err := <-failed:
		t.Fatalf("before the server was killed: %v", err)
	}
	server.kill()
	for range cap(failed) {
		if err := <-failed; rpc.CodeOf(err) != rpc.EndOfFile && rpc.CodeOf(err) != rpc.FailedSocket {
			t.Errorf("a call at a killed server: %v", err)
		}
	}
	if cr.Stats().Connected != 1 {
		t.Errorf("client: %+v", cr.Stats())
	}
	must(t, client.Close())
	returned(t, cr)

	s, addr := serve(t, rpc.ServerOptions{RDMA: sr}, echoAttachments(t, func(c *rpc.Call) error {
		if c.Attachment.Len() > 0 {
			send(began)
		}
		return nil
	}))
	client = newClient(t, addr, rpc.ClientOptions{RDMA: cr})
	if m, err := echoCall(t.Context(), client, "hello"); err != nil || m != "hello" {
		t.Errorf("before: %q, %v", m, err)
	}
	for len(began) > 0 {
		<-began
	}
	caller := startPeer(t, addr)
	select {
	case <-began:
	case <-caller.ended:
		t.Fatalf("the calling peer has ended: %s", caller.rest)
	}
	caller.kill()
	waitFor(t, func() bool { return s.Stats().Connections == 1 })
	if m, err := echoCall(t.Context(), client, "hello"); err != nil || m != "hello" || sr.Stats().Connected != 2 || cr.Stats().Connected != 2 {
		t.Errorf("afterwards: %q, %v, server %+v, client %+v", m, err, sr.Stats(), cr.Stats())
	}
	must(t, client.Close())
	must(t, s.Close())
	returned(t, sr, cr)
}

func send(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// echoUntilError echoes attachments of 2 MiB. It calls next before each call but the first one.
func echoUntilError(ctx context.Context, c *rpc.Client, next func()) error {
	for {
		var got chain.Chain
		_, err := echoCall(ctx, c, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, 2<<20))), rpc.ReceiveAttachment(&got))
		got.Release()
		if err != nil {
			return err
		}
		next()
	}
}

// peerEnv makes TestVerbsPeerProcess the other process of a test: "serve", or the address to call.
const peerEnv = "KVLANE_RPC_PEER"

// peerProcess is the other process of a test.
type peerProcess struct {
	cmd   *exec.Cmd
	line  string        // its first line: the address that it serves
	ended chan struct{} // closed when it has ended
	rest  []byte        // of its output, when it has ended
}

func startPeer(t *testing.T, role string) *peerProcess {
	t.Helper()
	p := &peerProcess{cmd: exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestVerbsPeerProcess$"), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), peerEnv+"="+role)
	pipe, err := p.cmd.StdoutPipe()
	must(t, err)
	p.cmd.Stderr = p.cmd.Stdout
	must(t, p.cmd.Start())
	out := bufio.NewReader(pipe)
	p.line, err = out.ReadString('\n')
	p.line = strings.TrimSpace(p.line)
	go func() {
		defer close(p.ended)
		p.rest, _ = io.ReadAll(out) // until the process has ended
		_ = p.cmd.Wait()            // it was killed, or the test fails
	}()
	t.Cleanup(p.kill)
	if err != nil {
		t.Fatalf("the peer printed %q: %v", p.line, err)
	}
	return p
}

// kill kills the process and waits for its end.
func (p *peerProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// TestVerbsPeerProcess serves, or calls, until the process is killed.
func TestVerbsPeerProcess(t *testing.T) {
	role := os.Getenv(peerEnv)
	if role == "" {
		t.Skip("this is the other process of a test")
	}
	f := verbsFabric(t)
	r := f.open(t, true, nil)
	if role != "serve" {
		_, _ = fmt.Fprintln(os.Stdout, "calling")
		t.Fatal(echoUntilError(t.Context(), newClient(t, role, rpc.ClientOptions{RDMA: r}), func() {}))
	}
	_, addr := serve(t, rpc.ServerOptions{RDMA: r}, echoAttachments(t, nil))
	_, _ = fmt.Fprintln(os.Stdout, addr)
	select {}
}

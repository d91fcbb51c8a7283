package rpc_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/golden"
)

// implementation is an implementation of the protocol that is called and calls.
type implementation struct {
	name string
	// serve starts a server. The channel has a value for each call with the message SLEEP that
	// begins. stop shuts the server down.
	serve func(t *testing.T, f flags) (addr string, sleeping <-chan struct{}, stop func())
	call  func(t *testing.T, addr string, f flags) []string
}

// TestPeers calls other implementations of the protocol and is called by them. tools/rpcpeers/run
// builds them and runs this test, which prints a table. With KVLANE_RPC_CAPTURES it records the
// connections of all cases that are not live.
func TestPeers(t *testing.T) {
	work := os.Getenv("KVLANE_RPC_PEERS")
	if work == "" {
		testkit.Skip(t, "rpc-peers", "tools/rpcpeers/run builds the peers")
	}
	ours := implementation{"rpc", servePeer, callPeer}
	brpc, brpcGo := program("brpc", filepath.Join(work, "peer")), program("brpc-go", filepath.Join(work, "brpcgo", "brpcgo"))
	for _, d := range []struct {
		client, server implementation
		cases          []peerCase
	}{{ours, brpc, brpcCases()}, {brpc, ours, brpcCases()}, {ours, brpcGo, brpcGoServerCases()}, {brpcGo, ours, brpcGoClientCases()}} {
		t.Run(d.client.name+"-to-"+d.server.name, func(t *testing.T) { checkPeers(t, d.client, d.server, d.cases) })
	}
}

// checkPeers runs cases and prints a table row for each.
func checkPeers(t *testing.T, client, server implementation, cases []peerCase) {
	failed := 0
	for _, c := range cases {
		passed := t.Run(c.name, func(t *testing.T) {
			all := meet(t, client, server, c, "")
			got := strings.Join(counted(withoutTexts(all)), " / ")
			if slices.Contains(strings.Split(c.want, " or "), got) {
				t.Logf("%-24s | %s to %s | %s | ok", c.name, client.name, server.name, got)
			} else {
				t.Errorf("%-24s | %s to %s | %s | FAILED, want %s: %q", c.name, client.name, server.name, got, c.want, all)
			}
			if dir := os.Getenv("KVLANE_RPC_CAPTURES"); dir != "" && !c.live {
				meet(t, client, server, c, filepath.Join(dir, client.name+"-to-"+server.name))
			}
		})
		if !passed {
			failed++
		}
	}
	t.Logf("%s to %s: %d cases, %d failed", client.name, server.name, len(cases), failed)
}

// meet runs a case and returns its outcomes. It writes a capture to the
// folder dir unless dir is "".
func meet(t *testing.T, client, server implementation, c peerCase, dir string) []string {
	t.Helper()
	f := parseFlags(c.client)
	addr, sleeping, stop := server.serve(t, parseFlags(c.server))
	defer stop()
	var r *recorder
	if dir != "" {
		r = record(t, addr)
		addr = r.l.Addr().String()
	}
	if f["second"] != "" { // shut down while the first call is in progress
		go func() {
			<-sleeping
			time.Sleep(100 * time.Millisecond) // brpc fails a connection that it has not added to its list yet
			stop()
		}()
	}
	got := client.call(t, addr, f)
	if r == nil {
		return got
	}
	rec := r.close()
	rec.Name, rec.About, rec.Client, rec.Server, rec.Outcome = c.name, c.about, c.client, c.server, strings.Join(withoutTexts(got), " / ")
	if rec.Server == "" {
		rec.Server = "no flags"
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, c.name+".hex"), []byte(rec.Text()), 0o644)); err != nil {
		t.Fatal(err)
	}
	return got
}

// counted sorts outcomes and joins equal ones.
func counted(list []string) (out []string) {
	for list = slices.Sorted(slices.Values(list)); len(list) > 0; {
		n := 1
		for n < len(list) && list[n] == list[0] {
			n++
		}
		if n == 1 {
			out = append(out, list[0])
		} else {
			out = append(out, fmt.Sprintf("%dx %s", n, list[0]))
		}
		list = list[n:]
	}
	return out
}

// servePeer serves the captured handler, which sleeps as long as those of the peers.
func servePeer(t *testing.T, f flags) (string, <-chan struct{}, func()) {
	t.Helper()
	o := capturedOptions(&golden.Capture{Server: f.String()})
	o.MaxConcurrency = f.number("max_concurrency", 0)
	if n := f.number("method_max_concurrency", 0); n > 0 {
		o.MethodConcurrency = map[string]int{echoMethod: n}
	}
	if _, ok := f["tls"]; ok {
		dir := os.Getenv("KVLANE_RPC_PEERS")
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	sleeping := make(chan struct{}, 1<<10)
	o.Interceptors = []rpc.Interceptor{func(ctx context.Context, m proto.Message, next rpc.Handler) (proto.Message, error) {
		if in, ok := m.(*echo.EchoRequest); ok && in.GetMessage() == "SLEEP" {
			sleeping <- struct{}{}
			time.Sleep(peerSleep - sleep)
		}
		return next(ctx, m)
	}}
	s, addr := startServer(t, o)
	return addr, sleeping, func() { _ = s.Shutdown(t.Context()) } // again at the end of some cases
}

// peerSleep is the duration of calls with the message SLEEP on the peers.
const peerSleep = 800 * time.Millisecond

// program returns a peer that is a program.
func program(name, path string) implementation {
	args := func(mode string, f flags) []string {
		list := []string{}
		for k, v := range f {
			if v == "" && k != "msg" { // a switch
				v = "true"
			}
			list = append(list, "-"+k+"="+v)
		}
		return append(list, mode)
	}
	return implementation{name, func(t *testing.T, f flags) (string, <-chan struct{}, func()) {
		t.Helper()
		cmd := exec.Command(path, args("serve", f)...)
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close() // again
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s serve: %v", name, err)
			}
		})
		lines := bufio.NewScanner(out)
		lines.Scan()
		port := lines.Text()
		sleeping := make(chan struct{}, 1<<10)
		go func() {
			for lines.Scan() {
				sleeping <- struct{}{}
			}
		}()
		return "127.0.0.1:" + port, sleeping, func() { _ = in.Close() } // again at the end of some cases
	}, func(t *testing.T, addr string, f flags) []string {
		t.Helper()
		f = maps.Clone(f)
		f["addr"] = addr
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, path, args("call", f)...).Output()
		if err != nil {
			return []string{fmt.Sprintf("%s call: %v", name, err)}
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}}
}

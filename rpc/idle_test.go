package rpc_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
)

const (
	idleConnections = 10_000
	idleClients     = 2
	// idleClientEnv has the address of the server in a process with connections.
	idleClientEnv = "KVLANE_TEST_IDLE_CLIENT"
)

// needDescriptors raises the limit of the process's open files to n.
func needDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if before := l; l.Cur < n {
		l.Cur, l.Max = n, max(l.Max, n)
		err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
		if err == nil {
			t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: before.Cur, Max: l.Max}) }) // higher is no fault
			err = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
		}
		if err != nil || l.Cur < n {
			testkit.Skip(t, "descriptors", fmt.Sprintf("%d descriptors, of %d: %v", before.Max, n, err))
		}
	}
}

// TestIdleClient is a process with connections. It makes a call on each, and reports them. When its
// input ends, it makes another call on every 50th.
func TestIdleClient(t *testing.T) {
	addr := os.Getenv(idleClientEnv)
	if addr == "" {
		t.Skip("runs in a process of TestIdleConnections")
	}
	const n = idleConnections / idleClients
	needDescriptors(t, n+100)
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = dial(t, addr)
		if _, err := conns[i].Write(request(hello)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		if r := nextReply(t, c); r.meta.GetResponse().GetErrorCode() != 0 {
			t.Fatal(r.meta)
		}
	}
	fmt.Fprintf(os.Stderr, "connected %d\n", n)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the other process has measured
	for i := 0; i < n; i += 50 {
		if _, err := conns[i].Write(request(hello)); err != nil || nextReply(t, conns[i]).meta.GetResponse().GetErrorCode() != 0 {
			t.Fatal(err)
		}
	}
}

// memoryBytes returns the memory of live objects and stacks.
func memoryBytes() int64 {
	runtime.GC()
	runtime.GC() // pools give up their memory
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestIdleConnections holds 10,000 connections from other processes. Each takes little memory, and
// works after that.
func TestIdleConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: 10,000 connections")
	}
	testkit.SkipRace(t, "the other tests of connections find the same races")
	needDescriptors(t, idleConnections+200)
	s, addr := startServer(t, rpc.ServerOptions{MaxConnections: idleConnections})
	before, began := memoryBytes(), time.Now()
	var clients []*exec.Cmd
	var stdins []io.Closer
	for range idleClients {
		cmd := exec.Command(os.Args[0], "-test.run=^TestIdleClient$", "-test.timeout="+testkit.Patience().String())
		cmd.Env = append(os.Environ(), idleClientEnv+"="+addr)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		clients, stdins = append(clients, cmd), append(stdins, stdin)
		defer func() { _ = cmd.Process.Kill() }() // it has ended, unless the test failed
		if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || strings.TrimSpace(line) != "connected "+strconv.Itoa(idleConnections/idleClients) {
			t.Fatalf("%q, %v", line, err)
		}
	}
	waitFor(t, func() bool { return s.Stats().Calls == 0 })
	each := (memoryBytes() - before) / idleConnections
	t.Logf("%d connections in %v, %d bytes of memory for each", s.Stats().Connections, time.Since(began).Round(time.Millisecond), each)
	if got := s.Stats(); got.Connections != idleConnections || got.Broken != 0 || each > 40<<10 {
		t.Errorf("%+v, %d bytes for each connection", got, each)
	}
	for i, cmd := range clients {
		if err := stdins[i].Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, func() bool { return s.Stats().Connections == 0 })
	t.Logf("all in %v", time.Since(began).Round(time.Millisecond))
}

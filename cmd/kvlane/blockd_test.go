package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/telemetry"
)

// credentialFiles writes a certificate with its key, and a file of tokens, to the working directory.
func credentialFiles(t *testing.T) {
	t.Helper()
	cert, key := testkit.Certificate(t)
	for name, b := range map[string][]byte{
		"server.pem": cert, "clients.pem": cert, "server.key": key,
		"tokens": []byte("team-a 0123456789abcdef\n"), "token": []byte("0123456789abcdef\n"),
	} {
		must(t, os.WriteFile(name, b, 0o600))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The commands of the page, and the examples of the help, start servers.
func TestBlockServersPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "block-servers.md"))
	must(t, err)
	t.Chdir(t.TempDir())
	credentialFiles(t)
	commands := regexp.MustCompile(`(?m)^ {4}kvlane (blockd .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) != 7 {
		t.Fatalf("%d commands are in the page", len(commands))
	}
	forEachCommand(func(path string, cmd *cobra.Command) {
		if path == "blockd" {
			commands = append(commands, regexp.MustCompile(`(?m)^ +kvlane (blockd .*)$`).FindAllStringSubmatch(cmd.Example, -1)...)
		}
	})
	if len(commands) != 9 {
		t.Fatalf("%d commands are in the page and in the help", len(commands))
	}
	port := regexp.MustCompile(`:[79]44\d`)
	for _, c := range commands {
		args := words(strings.ReplaceAll(port.ReplaceAllString(c[1], ":0"), "/mnt/nvme/", ""))
		p := interruptible(t, args...)
		if line := p.word(t, "block server "); !strings.HasSuffix(line, "; interrupt to end\n") {
			t.Errorf("%v: %q", args, line)
		}
		p.stop()
	}
	if !strings.Contains(string(text), "block server 127.0.0.1:7440; interrupt to end") {
		t.Error("the page lacks the line that the command prints")
	}
}

func TestBlockdRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	for want, args := range map[string]string{
		"permit it with --insecure":    "--listen 0.0.0.0:0",
		"need TLS":                     "--tokens tokens",
		"must be given together":       "--tls-cert server.pem",
		"none of the others can be":    "--file-dir a --log-dir b",
		"must be positive":             "--cache-bytes 0",
		"connections must be positive": "--max-connections 0",
		"has no effect without":        "--disk-bytes 1GiB",
		"effect without --tokens":      "--nic mlx5_0",
		`"fpga" is not one of`:         "--tls-cert server.pem --tls-key server.key --tokens tokens --rdma-provider fpga",
		"do not fit":                   "--cache-bytes 8000000TiB",
		"no certificate in PEM":        "--tls-cert server.pem --tls-key server.key --tls-client-ca tokens",
		"line 1: a tenant's name":      "--tls-cert server.pem --tls-key server.key --tokens server.pem",
	} {
		code, stdout, stderr := execute(t, append([]string{"blockd", "--listen", "127.0.0.1:0"}, words(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%s: exit code %d, %q %s", args, code, stdout, stderr)
		}
	}
}

// blockServer is a process of blockd.
type blockServer struct {
	*exec.Cmd
	addr   string
	stderr bytes.Buffer
	rest   *bufio.Reader
}

func startBlockd(t *testing.T, bin, listen string, args ...string) *blockServer {
	t.Helper()
	s := &blockServer{Cmd: exec.CommandContext(t.Context(), bin, append([]string{"blockd", "--listen", listen}, args...)...)}
	s.Stderr = &s.stderr
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Start())
	s.rest = bufio.NewReader(out)
	line, err := s.rest.ReadString('\n')
	if err != nil {
		_ = s.Wait() // it has ended
		t.Fatalf("%q, %v: %s", line, err, s.stderr.String())
	}
	s.addr, _, _ = strings.Cut(strings.TrimPrefix(line, "block server "), ";")
	return s
}

// end sends a signal and waits for the end.
func (s *blockServer) end(t *testing.T, sig syscall.Signal) (rest string, err error) {
	t.Helper()
	must(t, s.Process.Signal(sig))
	b, _ := io.ReadAll(s.rest)
	return string(b), s.Wait()
}

// pause stops the process and waits until all of its threads have stopped.
func (s *blockServer) pause(t *testing.T) {
	t.Helper()
	must(t, s.Process.Signal(syscall.SIGSTOP))
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.Process.Pid))
		must(t, err)
		running := 0
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && !bytes.Contains(b, []byte(") T ")) {
				running++
			}
		}
		if running == 0 && len(files) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d threads of the server do not stop", running)
		}
	}
}

// blockClient has blocks of one identity.
type blockClient struct {
	*blockio.Client
	format block.Format
	memory mem.Extent
}

func newBlockClient(t *testing.T, addr string) *blockClient {
	t.Helper()
	return openBlockClient(t, blockio.ClientOptions{Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }})
}

// openBlockClient sets the formats of o. With RDMA it registers the client's memory.
func openBlockClient(t *testing.T, o blockio.ClientOptions) *blockClient {
	t.Helper()
	l, err := block.NewLayout([]int64{100_000, 50_000})
	must(t, err)
	f := block.Format{Identity: block.Digest{1, 2, 3}, Layout: l}
	o.Formats, o.Timeout = []blockio.Format{{Identity: f.Identity, ShardBytes: l.ShardSizes()}}, min(testkit.Patience(), time.Minute)
	o.Retries = 20 // stores are busy while half of the memory waits for the disk
	r, err := hostmem.AllocRegion(l.ImageBytes())
	must(t, err)
	t.Cleanup(func() { must(t, hostmem.FreeRegion(r)) })
	if o.RDMA != nil {
		must(t, o.RDMA.NIC.Register(rdma.MROptions{Access: blockio.PeerAccess}, r))
		t.Cleanup(func() { must(t, registry.Unregister(context.Background(), []*registry.Registry{o.RDMA.NIC}, r)) })
	}
	c, err := blockio.NewClient(o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close(context.Background())) })
	return &blockClient{c, f, mem.Extent{Region: r, Len: l.ImageBytes()}}
}

// image writes block n to the client's memory and returns its pieces.
func (c *blockClient) image(t *testing.T, n int) []blockio.Piece {
	t.Helper()
	key, b := block.Key{byte(n + 1), 9}, c.memory.Bytes()
	for i := c.format.Layout.ShardOff(0); i < int64(len(b)); i++ {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(n)
	}
	must(t, c.format.Seal(b, key))
	return blockio.Split(nil, key, c.format.Identity, c.format.Layout, c.memory, 64<<10)
}

func (c *blockClient) store(t *testing.T, n int) {
	t.Helper()
	pieces := c.image(t, n)
	errs := make([]error, len(pieces))
	c.Store(t.Context(), pieces, errs)
	must(t, errors.Join(errs...))
}

func (c *blockClient) retrieve(ctx context.Context, t *testing.T, n int) error {
	t.Helper()
	pieces := c.image(t, n)
	want := bytes.Clone(c.memory.Bytes())
	clear(c.memory.Bytes())
	errs := make([]error, len(pieces))
	c.Retrieve(ctx, pieces, errs)
	err := errors.Join(errs...)
	if err == nil && !bytes.Equal(want, c.memory.Bytes()) {
		t.Errorf("block %d has other bytes", n)
	}
	return err
}

// A terminated server writes its blocks, and a killed one has those that were flushed.
func TestBlockdReturnsBlocksAfterRestarts(t *testing.T) {
	bin := command(t)
	for _, flag := range []string{"--file-dir", "--log-dir"} {
		dir := filepath.Join(t.TempDir(), "blocks")
		args := []string{"--cache-bytes", "1MiB", flag, dir, "--disk-bytes", "64MiB"}
		s := startBlockd(t, bin, "127.0.0.1:0", args...)
		c := newBlockClient(t, s.addr)
		for n := range 10 {
			c.store(t, n)
		}
		if rest, err := s.end(t, syscall.SIGTERM); err != nil || !strings.Contains(rest, "0 by RDMA, 0 refused, 0 denied") {
			t.Errorf("%s: %v, %q, %s", flag, err, rest, s.stderr.String())
		}
		s = startBlockd(t, bin, s.addr, args...)
		for n := range 10 {
			must(t, c.retrieve(t.Context(), t, n)) // the client connects again
		}
		c.store(t, 10)
		must(t, c.Flush(t.Context()))
		if _, err := s.end(t, syscall.SIGKILL); err == nil {
			t.Error("a killed server ended well")
		}
		s = startBlockd(t, bin, s.addr, args...)
		for n := range 11 {
			must(t, c.retrieve(t.Context(), t, n))
		}
		if err := c.retrieve(t.Context(), t, 11); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s: a block that was never stored: %v", flag, err)
		}
		code, _, stderr := execute(t, append([]string{"blockd", "--listen", "127.0.0.1:0"}, args...)...)
		if holder := fmt.Sprintf("(process %d with --listen %s)", s.Process.Pid, s.addr); code == exitOK || !strings.Contains(stderr, holder) {
			t.Errorf("%s: a second server with the directory: exit code %d, want the holder %s: %s", flag, code, holder, stderr)
		}
		_, err := s.end(t, syscall.SIGTERM)
		must(t, err)
	}
}

// The server process is stopped in mid-batch: the client's calls end by their deadline, and memory
// that is reused afterwards does not change when the server goes on.
func TestStoppedBlockd(t *testing.T) {
	s := startBlockd(t, command(t), "127.0.0.1:0", "--cache-bytes", "16MiB")
	s.stopInMidBatch(t, func() *blockClient { return newBlockClient(t, s.addr) })
	_, err := s.end(t, syscall.SIGTERM)
	must(t, err)
}

// stopInMidBatch stops the process while a client retrieves, and later continues it.
func (s *blockServer) stopInMidBatch(t *testing.T, client func() *blockClient) {
	t.Helper()
	c, other := client(), client()
	for n := range 4 {
		c.store(t, n)
	}
	least := time.Duration(math.MaxInt64)
	for round := range 4 {
		must(t, c.retrieve(t.Context(), t, round)) // it opens the connection
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			time.Sleep(time.Duration(round) * 700 * time.Microsecond)
			s.pause(t)
		}()
		var err error
		var took time.Duration
		timeout := max(testkit.Patience()/500, 200*time.Millisecond)
		for err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			start := time.Now()
			err = c.retrieve(ctx, t, round)
			took = time.Since(start)
			cancel()
		}
		<-stopped
		if !errors.Is(err, errdefs.ErrCanceled) {
			t.Errorf("a call to a stopped server: %v after %v, with a deadline of %v", err, took, timeout)
		}
		t.Logf("the call ended %v after its deadline", took-timeout)
		least = min(least, took-timeout)
		reused := c.memory.Bytes()
		for i := range reused {
			reused[i] = 0xa5
		}
		must(t, s.Process.Signal(syscall.SIGCONT))
		must(t, other.retrieve(t.Context(), t, 3)) // the server has gone on
		time.Sleep(20 * time.Millisecond)
		if n := bytes.Count(reused, []byte{0xa5}); n != len(reused) {
			t.Errorf("%d bytes of reused memory have changed", len(reused)-n)
		}
	}
	if least > time.Second { // a busy machine may delay some of the calls
		t.Errorf("no call ended less than %v after its deadline", least)
	}
	if st := c.Stats(); st.Fences < 4 || st.FenceTimeouts < 4 {
		t.Errorf("statistics of the client %+v", st)
	}
}

// The status page of a block server has its slow requests.
func TestSlowRequestsOfBlockd(t *testing.T) {
	m, plan := telemetry.New(), fault.New(1)
	ctx := withMetrics(dirfs.With(t.Context(), faultfs.New(dirfs.OS(), plan, nil)), m)
	p := interruptibleIn(ctx, t, "blockd", "--listen", "127.0.0.1:0", "--cache-bytes", "400KiB", "--file-dir", filepath.Join(t.TempDir(), "blocks"))
	c := newBlockClient(t, strings.TrimSuffix(p.word(t, "block server "), "; interrupt to end\n"))
	for n := range 4 {
		c.store(t, n)
	}
	must(t, c.Flush(t.Context()))
	plan.Add(fault.After("read", int(plan.Seen("read"))).Delay(2 * server.DefaultSlowAfter))
	must(t, c.retrieve(t.Context(), t, 0))
	s, err := m.Serve(t.Context(), "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	for end := time.Now().Add(testkit.Patience()); !strings.Contains(served(t, s.URL()+"/status.json"), `"retrieve"`); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the page lacks the slow retrieve: %s", served(t, s.URL()+"/status.json"))
		}
	}
}

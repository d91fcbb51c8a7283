package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// running is a command that runs until it is interrupted.
type running struct {
	lines *bufio.Reader
	errs  *bytes.Buffer // standard error; read it after stop
	stop  func() (code int, rest string)
}

// interruptible starts a command line that runs until stop. The test calls stop when it ends, if it
// has not before.
func interruptible(t *testing.T, args ...string) *running {
	t.Helper()
	return interruptibleIn(context.Background(), t, args...)
}

// interruptibleIn runs a command in a context.
func interruptibleIn(ctx context.Context, t *testing.T, args ...string) *running {
	t.Helper()
	ctx, interrupt := context.WithCancel(ctx)
	r, w := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		code := run(ctx, args, w, &errs)
		w.Close()
		done <- code
	}()
	p := &running{lines: bufio.NewReader(r), errs: &errs}
	stopped := false
	p.stop = func() (int, string) {
		if stopped {
			return exitOK, ""
		}
		stopped = true
		interrupt()
		rest, err := io.ReadAll(p.lines)
		code := <-done
		if err != nil || code != exitOK {
			t.Errorf("%v: exit code %d, %v: %s", args, code, err, errs.String())
		}
		return code, string(rest)
	}
	t.Cleanup(func() { p.stop() })
	return p
}

// word reads the next line and returns the part after begin.
func (p *running) word(t *testing.T, begin string) string {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	word, ok := strings.CutPrefix(line, begin)
	if err != nil || !ok {
		t.Fatalf("%q, %v; want one that begins with %q", line, err, begin)
	}
	return word
}

var segmentName = regexp.MustCompile(`^(127\.0\.0\.1:\d+): `)

// serveSegment starts a target and returns it with the name of its segment.
func serveSegment(t *testing.T, args ...string) (*running, string) {
	t.Helper()
	p := interruptible(t, args...)
	line := p.word(t, "segment ")
	m := segmentName.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%q", line)
	}
	return p, m[1]
}

// The examples of the help texts work.
func TestTransferExamples(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "examples", "every example is run, which takes half a minute; not with -short")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("block.bin", bytes.Repeat([]byte("kvlane "), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	var serve [][]string
	var others [][]string
	forEachCommand(func(path string, cmd *cobra.Command) {
		if !strings.HasPrefix(path, "transfer ") && path != "bench transfer" {
			return
		}
		for _, line := range strings.Split(cmd.Example, "\n") {
			args := words(strings.TrimPrefix(strings.TrimSpace(line), "kvlane "))
			if path == "transfer serve" || path == "transfer metadata" || strings.Contains(line, "--mode target") {
				serve = append(serve, args)
			} else {
				others = append(others, args)
			}
		}
	})
	// Run put before get, because get reads the bytes that put has written.
	slices.SortStableFunc(others, func(a, b []string) int {
		order := []string{"transfer", "put", "probe", "ls", "get"} // "bench transfer" first
		return cmp.Compare(slices.Index(order, a[1]), slices.Index(order, b[1]))
	})
	for _, args := range serve {
		at := swap(args, "127.0.0.1:15995", "127.0.0.1:0")
		at = swap(at, "127.0.0.1:15980", "127.0.0.1:0")
		if args[1] == "metadata" {
			if at := interruptible(t, at...).word(t, "metadata "); !strings.HasPrefix(at, "http://127.0.0.1:") {
				t.Errorf("%v: %q", args, at)
			}
			continue
		}
		p, name := serveSegment(t, at...)
		for _, args := range others {
			code, stdout, stderr := execute(t, swap(swap(args, "127.0.0.1:15995", name), "1s", "10ms")...)
			if args[0] == "transfer" && args[1] == "put" && len(args) > 4 && args[4] == "--notify" && code == exitOK {
				if line := p.word(t, "notification from "); line != "\"kvlane\": \"block 7 is there\"\n" {
					t.Errorf("%q", line)
				}
			}
			if code != exitOK {
				t.Errorf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
			}
		}
		code, rest := p.stop()
		if code != exitOK || !strings.Contains(rest, " 0 rejected, 0 failed") {
			t.Errorf("%v: exit code %d, %q", args, code, rest)
		}
	}
	if got, err := os.ReadFile("copy.bin"); err != nil || len(got) != 1024 || !bytes.Equal(got, bytes.Repeat([]byte("kvlane "), 500)[:1024]) {
		t.Errorf("copy.bin has %d bytes, %v", len(got), err)
	}
}

// words splits a command line like a shell that supports only double quotes.
func words(line string) []string {
	var all []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

func swap(args []string, from, to string) []string {
	swapped := make([]string, len(args))
	for i, a := range args {
		swapped[i] = strings.ReplaceAll(a, from, to)
	}
	return swapped
}

// A segment is found through a metadata server. bench transfer accepts the flag names of
// transfer_engine_bench.
func TestTransferByMetadataServer(t *testing.T) {
	server := interruptible(t, "transfer", "metadata", "--listen", "127.0.0.1:0")
	uri, _, _ := strings.Cut(server.word(t, "metadata "), ";")
	_, name := serveSegment(t, "transfer", "serve", "--name", "127.0.0.1:0", "--metadata", uri, "--cluster", "c", "--buffer-size", "1MiB")
	code, stdout, stderr := execute(t, "bench", "transfer", "--mode=initiator", "--metadata_server="+uri, "--cluster", "c", "--segment_id="+name, "--operation=write",
		"--block_size=4096", "--batch_size=4", "--threads=2", "--duration=1ms", "--buffer_size=67108864", "--check", "--json")
	var r transfer.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || !r.Checked || len(r.Points) != 1 || r.Points[0].BlockBytes != 4096 {
		t.Errorf("exit code %d, %v, %+v\n%s", code, err, r, stderr)
	}
	code, stdout, stderr = execute(t, "transfer", "ls", name, "--metadata", uri, "--cluster", "c", "--json")
	var s mooncake.Segment
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != exitOK || s.Name != name || len(s.Buffers) != 1 {
		t.Errorf("exit code %d, %v, %+v\n%s", code, err, s, stderr)
	}
	if code, _, stderr := execute(t, "transfer", "probe", name, "--metadata", uri); code != exitFailure || !strings.Contains(stderr, "does not have it") {
		t.Errorf("in another cluster: exit code %d, %s", code, stderr)
	}
}

// put and get also work with standard input and output.
func TestTransferPutAndGet(t *testing.T) {
	_, name := serveSegment(t, "transfer", "serve", "--name", "127.0.0.1:0", "--buffer-size", "1MiB")
	file := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789"), 5000)
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := execute(t, "transfer", "put", name, file, "--offset", "100"); code != exitOK || stdout != "" || stderr != "50000 bytes written\n" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, stderr := execute(t, "transfer", "get", name, "-", "--offset", "100", "--length", "50000"); code != exitOK || stdout != string(want) {
		t.Errorf("exit code %d, %d bytes, %q", code, len(stdout), stderr)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"get", name, "-", "--offset", "1MiB"}, exitUsage, "the buffer has 1048576 bytes"},
		{[]string{"get", name, "-", "--length", "2MiB"}, exitUsage, "the buffer has 1048576 bytes"},
		{[]string{"get", name, "-", "--buffer", "1"}, exitUsage, "has 1"},
		{[]string{"put", name, file, "--offset", "1000KiB"}, exitFailure, "longer than the rest"},
		{[]string{"put", name, file, "--notify", "x", "--metadata", "etcd://a"}, exitUsage, "etcd is not supported"},
		{[]string{"put", name, file + "x"}, exitFailure, "no such file"},
		{[]string{"probe", "nobody"}, exitUsage, "HOST:PORT"},
		{[]string{"probe", "127.0.0.1:1", "--timeout", "10s"}, exitFailure, "refused"},
		{[]string{"probe", name, "--protocol", "carrier-pigeon"}, exitUsage, "mooncake"},
		{[]string{"serve"}, exitUsage, "--name is required"},
		{[]string{"serve", "--name", ":15995"}, exitUsage, "no host that peers can reach"},
		{[]string{"serve", "--name", "127.0.0.1:0", "--buffer-size", "0"}, exitUsage, "--buffer-size"},
	} {
		if code, _, stderr := execute(t, append([]string{"transfer"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q: %s", c.args, code, c.code, c.want, stderr)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--segment is required"},
		{[]string{"--mode", "spectator"}, "initiator or target"},
		{[]string{"--segment", name, "--operation", "erase"}, "read or write"},
		{[]string{"--segment", name, "--block-size", "huge"}, "huge"},
		{[]string{"--segment", name, "--threads", "0"}, "--threads 0"},
		{[]string{"--segment", name, "--duration", "soon"}, "soon"},
		{[]string{"--segment", name, "--lanes", "1000"}, "--lanes 1000"},
		{[]string{"--segment", name, "--block-size", "1GiB"}, "--buffer-size"},
		{[]string{"--segment", name, "--block-size", "64KiB"}, "1048576 are offered"},
	} {
		if code, _, stderr := execute(t, append([]string{"bench", "transfer"}, c.args...)...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, want %q: %s", c.args, code, c.want, stderr)
		}
	}
}

// TestVerbsBenchTransfer measures kvlane transfers between the first two NICs of the machine, for
// example those of tools/rxe/run.
func TestVerbsBenchTransfer(t *testing.T) {
	names := strings.Split(os.Getenv("KVLANE_VERBS_DEVICES"), ",")
	if len(names) < 2 {
		testkit.Skip(t, "verbs", "KVLANE_VERBS_DEVICES does not name two NICs")
	}
	target := []string{"bench", "transfer", "--mode", "target", "--name", "127.0.0.1:0", "--protocol", "rdma", "--nic", names[1], "--buffer-size", "2MiB"}
	p := interruptible(t, target...)
	name, _, _ := strings.Cut(p.word(t, "segment "), ": ")
	for _, op := range []string{"read", "write"} {
		code, stdout, stderr := execute(t, "bench", "transfer", "--segment", name, "--protocol", "rdma", "--nic", names[0], "--operation", op,
			"--block-size", "4KiB,60000", "--batch-size", "1,7", "--threads", "2", "--duration", "50ms", "--buffer-size", "2MiB", "--check", "--json")
		var r transfer.Report
		if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		if len(r.Points) != 4 || r.Protocol != "rdma" || !r.Checked {
			t.Errorf("%+v", r)
		}
	}
	if _, rest := p.stop(); !strings.Contains(rest, "0 requests over sockets") {
		t.Errorf("%q", rest)
	}
}

// The help texts match the golden files.
func TestMeasuringAndTransferHelp(t *testing.T) {
	for name, paths := range map[string][]string{
		"transfer":  {"transfer", "transfer serve", "transfer metadata", "transfer probe", "transfer ls", "transfer put", "transfer get"},
		"calibrate": {"calibrate"},
		"bench":     {"bench copy", "bench store", "bench file", "bench transfer"},
	} {
		var b strings.Builder
		for _, path := range paths {
			code, stdout, _ := execute(t, append(strings.Fields(path), "--help")...)
			if code != exitOK {
				t.Errorf("%s: exit code %d", path, code)
			}
			own, _, _ := strings.Cut(stdout, "\nGlobal Flags:")
			b.WriteString("$ kvlane " + path + " --help\n" + own + "\n")
		}
		file := filepath.Join("testdata", "help-"+name+".txt")
		if *rewrite {
			if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := diff.Diff(string(want), b.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

// If the target stops, the benchmark soon ends with an error.
func TestBenchTransferOfATargetThatGoesAway(t *testing.T) {
	p, name := serveSegment(t, "bench", "transfer", "--mode", "target", "--name", "127.0.0.1:0", "--buffer-size", "64MiB")
	type result struct {
		code   int
		stderr string
	}
	done := make(chan result, 1)
	go func() {
		var out, errs bytes.Buffer
		code := run(context.Background(), []string{"bench", "transfer", "--segment", name, "--duration", "10m", "--threads", "2", "--block-size", "64KiB", "--batch-size", "8"}, &out, &errs)
		done <- result{code, errs.String()}
	}()
	time.Sleep(50 * time.Millisecond) // the result is the same whether or not the benchmark has started by then
	p.stop()
	select {
	case r := <-done:
		if r.code != exitFailure {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
	case <-time.After(testkit.Patience()):
		t.Fatal("the benchmark still runs")
	}
}

// kvlane's own transfers are served and measured on each path, with host and device memory, and
// every byte is compared.
func TestBenchTransferNative(t *testing.T) {
	for _, c := range []struct {
		protocol, wantPath string
		vram               bool
	}{{"auto", "shm", false}, {"shm", "shm", false}, {"tcp", "tcp", false}, {"auto", "nvlink", true}, {"tcp", "tcp", true}} {
		args := []string{"--protocol", c.protocol, "--buffer-size", "2MiB"}
		if c.vram {
			args = append(args, "--use-vram", "--device", "sim")
		}
		p := interruptible(t, append([]string{"bench", "transfer", "--mode", "target", "--name", "127.0.0.1:0"}, args...)...)
		name, _, _ := strings.Cut(p.word(t, "segment "), ": ")
		for _, op := range []string{"read", "write"} {
			bench := append([]string{
				"bench", "transfer", "--segment", name, "--operation", op, "--block-size", "4KiB,60000", "--batch-size", "1,7", "--threads", "2",
				"--duration", "5ms", "--check", "--json",
			}, args...)
			code, stdout, stderr := execute(t, bench...)
			var r transfer.Report
			if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
				t.Fatalf("%v: exit code %d, %v: %s", c, code, err, stderr)
			}
			if len(r.Points) != 4 || r.Protocol != c.wantPath || !r.Checked {
				t.Errorf("%v: %+v", c, r)
			}
		}
		if _, rest := p.stop(); !strings.Contains(rest, "requests over sockets") {
			t.Errorf("%v: %q", c, rest)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--protocol", "ucx", "--segment", "127.0.0.1:1"}, "auto, nvlink, shm, rdma, tcp"},
		{[]string{"--protocol", "tcp", "--nic", "mlx5_0", "--segment", "127.0.0.1:1"}, "--protocol auto or --protocol rdma"},
		{[]string{"--protocol", "auto", "--metadata", "etcd://x", "--segment", "a"}, "--metadata"},
	} {
		if code, _, stderr := execute(t, append([]string{"bench", "transfer"}, c.args...)...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, want %q: %s", c.args, code, c.want, stderr)
		}
	}
}

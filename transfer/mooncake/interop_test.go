package mooncake_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// engineEnv names the directory with Mooncake's engine, as unpacked by tools/mooncake.
const engineEnv = "KVLANE_MOONCAKE"

// engine returns a command that runs Mooncake's engine with the given version of the data protocol.
// The process ends with the test.
func engine(t *testing.T, version int, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := os.Getenv(engineEnv)
	if dir == "" {
		testkit.Skip(t, "mooncake", engineEnv+" names no directory with Mooncake's engine")
	}
	if name == "" {
		name = filepath.Join(dir, "site/mooncake/transfer_engine_bench")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(dir, "lib"), "PYTHONPATH="+filepath.Join(dir, "site"), "MC_FORCE_TCP=1", "MC_TCP_PROTO="+strconv.Itoa(version))
	return cmd
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Mooncake's engine writes to a segment of kvlane and reads it back, with both directories and both
// versions. Its benchmark also uses the segment.
func TestMooncakeDrivesOurs(t *testing.T) {
	web := httptest.NewServer(metadata.NewServer(metadata.ServerOptions{}))
	t.Cleanup(web.Close)
	for _, uri := range []string{mooncake.P2PHandshake, web.URL + "/metadata"} {
		d, err := mooncake.OpenDirectory(uri, "")
		must(t, err)
		for _, version := range []int{1, 2} {
			s, there := serve(t, 64<<20, func(o *mooncake.ServerOptions) { o.Directory, o.Version = d, version })
			const n = 9<<20 + 5
			cmd := engine(t, version, "python3", "testdata/initiator.py", freePort(t), uri, s.Segment().Name, strconv.FormatUint(addr(there), 10), strconv.Itoa(n), strconv.Itoa(version))
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "alive: 0") {
				t.Fatalf("%s, version %d: %v\n%s", uri, version, err, out)
			}
			_, kept, _ := strings.Cut(string(out), "kept: ")
			if got := hex.EncodeToString(there.Bytes()[:16]); got != strings.TrimSpace(kept) || string(there.Bytes()[n/2:][:7]) != "kvlane!" {
				t.Errorf("%s, version %d: memory begins with %s, written was %s", uri, version, got, kept)
			}
			if st := s.Stats(); st.WrittenBytes != n || st.ReadBytes != n || st.Rejected != 1 || st.Failed+st.Malformed != 0 {
				t.Errorf("%s, version %d: %+v", uri, version, st)
			}
			for _, op := range []string{"read", "write"} {
				cmd := engine(t, version, "", "--mode=initiator", "--protocol=tcp", "--metadata_server="+uri, "--local_server_name="+freePort(t), "--segment_id="+s.Segment().Name,
					"--operation="+op, "--block_size=65536", "--batch_size=16", "--threads=2", "--duration=1", "--buffer_size=67108864", "--logtostderr")
				out, err := cmd.CombinedOutput()
				line := regexp.MustCompile(`Test completed: .*`).Find(out)
				if err != nil || line == nil {
					t.Errorf("%s, version %d: %v\n%s", uri, version, err, out)
				}
				t.Logf("Mooncake's benchmark, %s, version %d, %s: %s", uri, version, op, line)
			}
		}
	}
}

// A Remote reads, writes, probes and notifies a segment of Mooncake's engine, and handles its
// refusals.
func TestOursDrivesMooncake(t *testing.T) {
	cmd := engine(t, 2, "", "--mode=target", "--protocol=tcp", "--metadata_server="+mooncake.P2PHandshake, "--local_server_name="+freePort(t), "--buffer_size=134217728", "--logtostderr")
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	name := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		listening := regexp.MustCompile(`listening on (\S+)`)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				name <- m[1]
			}
		}
	}()
	defer func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait() // returns an error, because the process was killed
	}()
	select {
	case segment := <-name:
		driveMooncake(t, segment)
	case <-time.After(patience):
		t.Fatal("the engine does not begin")
	}
}

func driveMooncake(t *testing.T, segment string) {
	t.Helper()
	d, err := mooncake.OpenDirectory(mooncake.P2PHandshake, "")
	must(t, err)
	eventually(t, "it has registered its memory", func() bool {
		s, err := d.Find(within(t), segment)
		return err == nil && len(s.Buffers) > 0
	})
	if _, err := mooncake.Probe(within(t), d, segment); err != nil {
		t.Error(err)
	}
	if err := mooncake.Notify(within(t), d, segment, mooncake.Notification{Name: "kvlane", Message: "x"}); err != nil {
		t.Error(err)
	}
	s, err := d.Find(within(t), segment)
	must(t, err)
	data := net.JoinHostPort(s.DataHost, strconv.Itoa(s.DataPort))
	const n = 48 << 20
	for version := 1; version <= 2; version++ { // the engine announces version 2 and accepts both
		r, here := open(t, "x", 2*n, func(o *mooncake.Options) { o.Directory = fixed(t, data, version, s.Buffers[0]) })
		pattern(here.Bytes()[:n], byte(version))
		var writes, reads []mooncake.Task
		at := uint64(0)
		for i := 0; at < n; i++ {
			length := min([]uint64{1, 4096, 65536, 40000, 1 << 20, 9 << 20}[i%6], n-at)
			writes = append(writes, mooncake.Task{Op: transfer.Write, Local: addr(here) + at, Remote: s.Buffers[0].Addr + at, Length: length})
			reads = append(reads, mooncake.Task{Op: transfer.Read, Local: addr(here) + n + at, Remote: s.Buffers[0].Addr + at, Length: length})
			at += length
		}
		must(t, do(t, r, writes...))
		must(t, do(t, r, reads...))
		if !bytes.Equal(here.Bytes()[:n], here.Bytes()[n:]) {
			t.Errorf("version %d: the bytes read differ from those written", version)
		}
	}
	if s.Version != 2 {
		t.Errorf("the server reports version %d", s.Version)
	}
	lying := fixed(t, data, 2, mooncake.Buffer{Name: "cpu:0", Addr: 4096, Length: 1 << 62})
	r, here := open(t, "x", 4096, func(o *mooncake.Options) { o.Directory = lying })
	for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
		b, err := r.Submit(within(t), []mooncake.Task{{Op: op, Local: addr(here), Remote: 4096, Length: 4096}})
		must(t, err)
		if err := b.Wait(within(t)); !errors.Is(err, errdefs.ErrInvalid) || b.Status(0) != transfer.StatusFailed {
			t.Errorf("%s of unregistered memory is %s: %v, want %v", op, b.Status(0), err, errdefs.ErrInvalid)
		}
	}
}

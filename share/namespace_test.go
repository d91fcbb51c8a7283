package share_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/share"
)

// peerDescriptors reports whether the kernel supports pidfds of peer processes.
func peerDescriptors(tb testing.TB) bool {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(tb, err)
	fd, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		must(tb, unix.Close(fd))
	}
	must(tb, errors.Join(unix.Close(fds[0]), unix.Close(fds[1])))
	return err == nil
}

// TestDefectImporterWithoutAName checks that the server refuses device memory to a process that it
// cannot watch, with the reason.
func TestDefectImporterWithoutAName(t *testing.T) {
	s := serve(t, share.Options{})
	e, _ := exported(t, s, simDevice(t, sim.Options{}), 4096)
	near, far, err := share.Ends()
	must(t, err)
	defer func() { must(t, errors.Join(near.Close(), far.Close())) }()
	_, err = near.Write(share.EncodeRequest(e.Descriptor().Identity))
	must(t, err)
	if err := s.GrantUnnamed(far); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("granted: %v", err)
	}
	must(t, withdraw(e))
}

// TestDefectImporterOfAnotherNamespace checks that an exporter detects the death of an importer in
// another PID namespace, whose process id it cannot know.
func TestDefectImporterOfAnotherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "creating PID namespaces needs root")
	}
	p := prepare(t, command(context.Background(), "export", t.TempDir()+"/s", "a.sock", "4096"))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := p.cmd.Start(); err != nil {
		testkit.Skip(t, "root", "PID namespaces cannot be made here: "+err.Error())
	}
	if !peerDescriptors(t) {
		testkit.Skip(t, "pidfd", "the kernel has no SO_PEERPIDFD")
	}
	dev := p.descriptors()[0]
	other := start(t, "hang-up")
	line, err := json.Marshal(dev)
	must(t, err)
	_, err = fmt.Fprintf(other.in, "%s\n", line)
	must(t, err)
	if got := other.line(); got != "<nil>" {
		t.Fatal(got)
	}
	withdrawn := make(chan string, 1)
	_, err = fmt.Fprintln(p.in, "withdraw")
	must(t, err)
	go func() {
		got, _ := p.out.ReadString('\n')
		withdrawn <- strings.TrimSpace(got)
	}()
	select {
	case got := <-withdrawn:
		t.Errorf("the memory was withdrawn while its importer was alive: %s", got)
	case <-time.After(500 * time.Millisecond):
		other.kill()
		if got := <-withdrawn; got != "<nil>" {
			t.Error(got)
		}
	}
	p.end()
}

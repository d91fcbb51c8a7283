package transfer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// linkEnv marks the child process in which TestLinkIsCut cuts the link of its network namespace.
const linkEnv = "KVLANE_TRANSFER_LINK"

// setLink sets the loopback device of the process's network namespace up or down.
func setLink(t *testing.T, up bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer func() { must(t, unix.Close(fd)) }()
	r, err := unix.NewIfreq("lo")
	must(t, err)
	must(t, unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r))
	flags := r.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	r.SetUint16(flags)
	must(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}

// TestLinkIsCut cuts the link between two processes during batches. The batches must end within
// their timeout, and later ones must work without a restart. The link belongs to a new network
// namespace, which needs root.
func TestLinkIsCut(t *testing.T) {
	if os.Getenv(linkEnv) != "" {
		cutLink(t)
		return
	}
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "only root makes network namespaces")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestLinkIsCut$", "-test.v")
	cmd.Env = append(os.Environ(), linkEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		testkit.Skip(t, "root", "network namespaces cannot be made here: "+err.Error())
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func cutLink(t *testing.T) {
	const n, limit = 32 << 20, 10 * time.Second
	setLink(t, true)
	here, back, small := host(t, n), host(t, n), host(t, 4096)
	target, err := startTarget(n, t.TempDir()+"/s")
	must(t, err)
	t.Cleanup(target.kill)
	p := &pair{initiator: engine(t, Options{Stall: 500 * time.Millisecond, PartBytes: 1 << 20})}
	until(t, "the segment cannot be opened", func() bool { // a dial may take longer than Stall on a busy machine
		p.remote, err = p.initiator.OpenSegment(t.Context(), target.addr+"/kv")
		return err == nil
	})
	failed := 0
	for round := range 3 {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				began := time.Now()
				b, err := p.initiator.Submit(ctx, []Task{{Op: Write, Segment: p.remote, Local: mem.All(here)}}, SubmitOptions{Timeout: limit})
				if err != nil {
					return // the test has ended
				}
				if err := wait(t, b); err != nil {
					failed++
				}
				if took := time.Since(began); took > limit+patience/2 {
					t.Errorf("a batch with timeout %v ended after %v", limit, took)
				}
			}
		}()
		time.Sleep(100 * time.Millisecond) // during a batch
		setLink(t, false)
		time.Sleep(1500 * time.Millisecond)
		setLink(t, true)
		until(t, "no batch after the link was restored", func() bool {
			b, err := p.initiator.Submit(t.Context(), []Task{{Op: Read, Segment: p.remote, Local: mem.Extent{Region: small, Len: 4096}}}, SubmitOptions{Timeout: limit})
			return err == nil && wait(t, b) == nil
		})
		stop()
		<-ended
		pattern(here.Bytes(), byte(round))
		p.do(t, Task{Op: Write, Local: mem.All(here)})
		p.do(t, Task{Op: Read, Local: mem.All(back)})
		same(t, "after the cut", back.Bytes(), here.Bytes())
	}
	s := p.initiator.Stats()
	if s.Retries == 0 {
		t.Error("no part was ever tried again: nothing was cut")
	}
	t.Logf("%d parts tried again, %d connections fenced, %d batches failed", s.Retries, s.Fences, failed)
}

package transfer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/rdma/rdmatest"
)

// The tests of this file use the NICs of this machine, for example those of tools/rxe/run. This
// process uses the first NIC and another process the second, or both processes use both. They open
// the NICs through gdr, as the commands do.

// verbsNICs returns some of the machine's NICs, or skips the test if there are not two.
func verbsNICs(t *testing.T, names []string) *rail.NICs {
	t.Helper()
	n, nics, err := openVerbs(names)
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	must(t, err)
	t.Cleanup(func() { must(t, n.Close(context.Background())) })
	return nics
}

// verbsPair returns an engine with n bytes of registered memory, and a target with as many bytes in
// another process.
func verbsPair(t *testing.T, o Options, n int64) (p *pair, target *targetProcess, here *mem.Region) {
	t.Helper()
	one, two := verbsNames(t)
	return verbsPairBy(t, o, n, []string{one}, []string{two})
}

// verbsNames returns the names of two NICs, or skips the test if there are fewer.
func verbsNames(t *testing.T) (one, two string) {
	t.Helper()
	names := namesIn(verbsNamesEnv)
	if len(names) < 2 {
		testkit.Skip(t, "verbs", verbsNamesEnv+" does not name two NICs")
	}
	return names[0], names[1]
}

func verbsPairBy(t *testing.T, o Options, n int64, ours, theirs []string) (p *pair, target *targetProcess, here *mem.Region) {
	t.Helper()
	o.NICs = verbsNICs(t, ours)
	here = host(t, n)
	t.Setenv(nicEnv, strings.Join(theirs, ","))
	target, err := startTarget(n, t.TempDir()+"/s")
	must(t, err)
	t.Cleanup(target.kill)
	p = &pair{initiator: engine(t, o)}
	p.open(t, target.addr)
	p.local(t, here)
	must(t, p.remote.RDMA(0))
	return p, target, here
}

// there reads the target's memory by sockets.
func (p *pair) there(t *testing.T, n int64) []byte {
	t.Helper()
	back := host(t, n)
	b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathTCP}, Task{Op: Read, Local: mem.All(back)})
	must(t, wait(t, b))
	return back.Bytes()
}

// TestVerbsTwoProcesses moves bytes in both directions between two processes, in one piece and
// scattered, over several queue pairs, with and without packet loss.
func TestVerbsTwoProcesses(t *testing.T) {
	one, two := verbsNames(t)
	t.Run("one NIC", func(t *testing.T) { verbsMove(t, []string{one}, []string{two}) })
	t.Run("two NICs", func(t *testing.T) { verbsMove(t, []string{one, two}, []string{two, one}) })
}

func verbsMove(t *testing.T, ours, theirs []string) {
	const n = 1<<20 + 12345
	rdmatest.Lossy(t)
	p, _, here := verbsPairBy(t, Options{PartBytes: 128 << 10, Lanes: 3}, n, ours, theirs)
	alone := SubmitOptions{Timeout: patience, Path: PathRDMA}
	pattern(here.Bytes(), 1)
	b := p.submit(t, alone, write(here))
	must(t, wait(t, b))
	want := append([]byte(nil), here.Bytes()...)
	same(t, "written", p.there(t, n), want)
	clear(here.Bytes())
	must(t, wait(t, p.submit(t, alone, Task{Op: Read, Local: mem.All(here)})))
	same(t, "read", here.Bytes(), want)
	var tasks []Task // every second block, to the place of another one
	const block = 3000
	for i := int64(0); i < n/block-1; i += 2 {
		tasks = append(tasks, Task{Op: Write, Local: mem.Extent{Region: here, Off: i * block, Len: block}, Offset: (i + 1) * block})
		copy(want[(i+1)*block:], here.Bytes()[i*block:][:block])
	}
	must(t, wait(t, p.submit(t, alone, tasks...)))
	same(t, "scattered", p.there(t, n), want)
	b = p.do(t, tasks...) // on any path
	wantPath(t, b, PathRDMA, false)
	by := p.queues()
	for i := range ours {
		if by[nicPair{i, i}] == 0 {
			t.Errorf("queue pairs by NICs: %v", by)
		}
	}
	t.Logf("queue pairs by NICs: %v, %+v", by, p.initiator.Stats())
}

// TestVerbsKilledPeer kills the peer during a batch. Every task must end with an error long before
// its deadline.
func TestVerbsKilledPeer(t *testing.T) {
	const n, limit = 8 << 20, 30 * time.Second
	for _, path := range []Path{PathRDMA, PathNone} {
		t.Run(path.String(), func(t *testing.T) {
			p, target, here := verbsPair(t, Options{PartBytes: 256 << 10}, n)
			var batches []*Batch
			for i := range 6 {
				op := Write
				if i%2 == 1 {
					op = Read
				}
				batches = append(batches, p.submit(t, SubmitOptions{Timeout: limit, Path: path}, Task{Op: op, Local: mem.All(here)}, write(here)))
			}
			until(t, "no lane opens", func() bool { return p.initiator.Stats().Lanes > 0 })
			target.kill()
			begun := time.Now()
			for i, b := range batches {
				err := wait(t, b)
				if i == len(batches)-1 && err == nil {
					t.Error("the last batch ended well")
				}
				for k := range 2 {
					if r := b.Task(k); r.Status != StatusCompleted && r.Err == nil {
						t.Errorf("batch %d, task %d: %+v", i, k, r)
					}
				}
			}
			if took := time.Since(begun); took > limit/2 {
				t.Errorf("%v until all batches had ended", took)
			}
			t.Logf("the last batch, after %v: %v", time.Since(begun), batches[len(batches)-1].Err())
		})
	}
}

// TestVerbsKeysOfAnotherSegment is TestRDMAKeysOfAnotherSegment with a real NIC.
func TestVerbsKeysOfAnotherSegment(t *testing.T) {
	one, _ := verbsNames(t)
	keysOfAnotherSegment(t, verbsNICs(t, []string{one}))
}

// TestVerbsLinkIsCut takes the link between the NICs down. Parts with another path must use it
// after their queue pairs are fenced; other parts must end with their timeout. When the link is up
// again, all parts use the NICs without a restart.
func TestVerbsLinkIsCut(t *testing.T) {
	const n = 16 << 20
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "only root takes links down")
	}
	p, _, here := verbsPair(t, Options{PartBytes: 128 << 10, Lanes: 2}, n)
	p.do(t, write(here))
	pattern(here.Bytes(), 2)
	b := p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	time.Sleep(5 * time.Millisecond) // during a batch
	setLoss(t, "100%")
	restored := false
	defer func() {
		if !restored {
			setLoss(t, "")
		}
	}()
	must(t, wait(t, b))
	c := b.Completion()
	t.Logf("while the link went down: %+v", c)
	same(t, "written", p.there(t, n), here.Bytes())
	begun := time.Now()
	alone := p.submit(t, SubmitOptions{Timeout: 2 * time.Second, Path: PathRDMA}, write(here))
	wantErr(t, "by rdma alone", wait(t, alone), context.DeadlineExceeded)
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("a batch with a timeout of 2 s ended after %v", took)
	}
	pattern(here.Bytes(), 3)
	b = p.submit(t, SubmitOptions{Timeout: patience}, write(here))
	must(t, wait(t, b))
	wantPath(t, b, PathTCP, true)
	same(t, "written while the link is down", p.there(t, n), here.Bytes())
	setLoss(t, "")
	restored = true
	pattern(here.Bytes(), 4)
	until(t, "it never goes by rdma again", func() bool { return p.do(t, write(here)).Completion().Bytes[PathRDMA] == n })
	same(t, "written after that", p.there(t, n), here.Bytes())
	s := p.initiator.Stats()
	if s.Fences == 0 || s.Fallbacks == 0 {
		t.Errorf("stats %+v", s)
	}
	t.Logf("%+v", s)
}

// TestVerbsLockedMemoryIsShort checks that memory above the target's limit of locked memory is sent
// over sockets, and that the description of the segment names the limit.
func TestVerbsLockedMemoryIsShort(t *testing.T) {
	const n, limit = 4 << 20, "1048576"
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "the target drops a capability of root")
	}
	one, two := verbsNames(t)
	t.Setenv(nicEnv, two)
	t.Setenv(lockedEnv, limit)
	target, err := startTarget(n, t.TempDir()+"/s")
	must(t, err)
	t.Cleanup(target.kill)
	here := host(t, n)
	p := &pair{initiator: engine(t, Options{NICs: verbsNICs(t, []string{one})})}
	p.open(t, target.addr)
	p.local(t, here)
	why := p.remote.RDMA(0)
	wantErr(t, "memory above the limit", why, errdefs.ErrNotSupported)
	if why != nil && !strings.Contains(why.Error(), limit+" bytes of memory (ulimit -l)") {
		t.Errorf("the error does not give the reason: %v", why)
	}
	pattern(here.Bytes(), 1)
	b := p.do(t, write(here))
	wantPath(t, b, PathTCP, false)
	same(t, "written", p.there(t, n), here.Bytes())
	t.Log(why)
}

// setLoss sets the packet loss at both ends of the cable; "" restores the previous value.
func setLoss(t *testing.T, loss string) {
	t.Helper()
	for _, end := range []string{"veth1", "veth2"} {
		args := []string{"qdisc", "replace", "dev", end, "root", "netem", "loss", loss}
		if loss == "" {
			args = []string{"qdisc", "del", "dev", end, "root"}
			if before := os.Getenv(rdmatest.LossEnv); before != "" {
				args = []string{"qdisc", "replace", "dev", end, "root", "netem", "loss", before}
			}
		}
		if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
			t.Fatalf("tc %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

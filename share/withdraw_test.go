package share_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// holds checks that withdrawing e ends with its context, and that the error contains the id of the
// process that may still write.
func holds(t *testing.T, e *share.Export, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := e.Close(ctx)
	if !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("withdraw while process %d may still write: %v", pid, err)
	}
	if want := "process " + strconv.Itoa(pid) + " may still touch"; !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not contain %q", err, want)
	}
}

// TestDefectWithdrawnMemoryIsWrittenLater checks that Close of an export waits for the copies of
// importers, because they could overwrite reused memory. Later copies must not start.
func TestDefectWithdrawnMemoryIsWrittenLater(t *testing.T) {
	const n = 64 << 10
	exporter := simDevice(t, sim.Options{})
	e, r := exported(t, serve(t, share.Options{}), exporter, n)
	must(t, fill(exporter, r, 1))
	faults := fault.New(1, fault.Nth(sim.OpWork, 0).Stall())
	dev := simDevice(t, sim.Options{Index: 1, Faults: faults})
	i := take(t, importer(t, dev), e.Descriptor())
	local, err := dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	s := openStream(t, dev, streamcopy.Options{Path: stream.PathCopyEngine})
	batch := &mem.Batch{Dst: []mem.Extent{mem.All(i.Region())}, Src: []mem.Extent{mem.All(local)}}
	ticket, err := s.Submit(t.Context(), batch)
	must(t, err)
	must(t, faults.Await(t.Context(), 1))
	holds(t, e, os.Getpid())
	lost(t, i)
	if _, err := s.Submit(t.Context(), batch); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("a copy to withdrawn memory begins: %v", err)
	}
	if err := i.Region().Origin().Acquire(); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("withdrawn memory is held: %v", err)
	}
	if err := i.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close an import that is copied to: %v", err)
	}
	faults.Release()
	must(t, withdraw(e))
	must(t, fill(exporter, r, 2))
	if err := wait(t, ticket); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("a copy that ended after the withdrawal: %v", err)
	}
	must(t, check(exporter, r, 2))
	must(t, errors.Join(dev.Free(local), i.Close(), withdraw(e)))
}

// TestWithdrawalFromADeadImporter checks that a dead importer counts as finished, whether it dies
// before or during the withdrawal. An importer that closes its connection without an end request
// counts only after its process has ended.
func TestWithdrawalFromADeadImporter(t *testing.T) {
	s := serve(t, share.Options{})
	dev := simDevice(t, sim.Options{})
	for _, role := range []string{"import", "hang-up", "wrong-end"} {
		e, _ := exported(t, s, dev, 4096)
		line, err := json.Marshal(e.Descriptor())
		must(t, err)
		other := start(t, role)
		_, err = fmt.Fprintf(other.in, "%s\n", line)
		must(t, err)
		if got := other.line(); got != "<nil>" {
			t.Fatal(got)
		}
		if role != "import" {
			holds(t, e, other.cmd.Process.Pid)
		}
		other.kill()
		must(t, withdraw(e))
	}
}

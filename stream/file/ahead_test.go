package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// observedCopies is a copy stream that calls look before it submits a batch.
type observedCopies struct {
	stream.Stream
	look func(b *mem.Batch)
}

func (b observedCopies) Submit(ctx context.Context, mb *mem.Batch) (*stream.Ticket, error) {
	b.look(mb)
	return b.Stream.Submit(ctx, mb)
}

// readByOne reads four pages of a file to a device, one transfer at a time. It calls look with the
// first batch of copies.
func readByOne(t *testing.T, fs *files, look func(b *mem.Batch)) {
	t.Helper()
	const pages = 4
	dev, copies := openSim(t, sim.Options{})
	r, to := fs.alloc(t, pages*file.Align), streamtest.DeviceMemory(dev).Alloc(t, pages*file.Align)
	fs.memory().Write(t, mem.All(r), make([]byte, r.Len()))
	var once sync.Once
	inner := observedCopies{copies, func(b *mem.Batch) { once.Do(func() { look(b) }) }}
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: inner, Transfers: 1, ChunkBytes: file.Align, Chunks: pages}))
	if _, err := try(t, s, mem.All(to), mem.All(r)); err != nil {
		t.Fatal(err)
	}
}

// While the batch's goroutine was in a call of the copy stream, no further read was started.
func TestDefectReadsWaitForTheCopiesCall(t *testing.T) {
	const tries = 7 // a read that ends just before the call does not start another
	observedCopies := int64(0)
	for try := range tries {
		plan := fault.New(1)
		readByOne(t, faulty(t, plan), func(*mem.Batch) {
			for until := time.Now().Add(time.Second << try); plan.Seen("read") < 3 && time.Now().Before(until); {
				time.Sleep(time.Millisecond)
			}
			observedCopies = plan.Seen("read")
		})
		if observedCopies >= 3 {
			return
		}
	}
	t.Errorf("%d reads beside the call", observedCopies)
}

// A worker started its next read from the page cache before the goroutine that it had woken could
// run.
func TestDefectWorkerDelaysTheWokenGoroutine(t *testing.T) {
	needPageCache(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const tries = 9
	prompt := 0
	for range tries {
		readByOne(t, real(t), func(b *mem.Batch) {
			if len(b.Dst) == 1 {
				prompt++
			}
		})
	}
	if prompt <= tries/2 { // the scheduler may run another goroutine first
		t.Errorf("%d of %d first chunks crossed before the next was read", prompt, tries)
	}
}

// needPageCache skips the test if files in temporary folders cannot be read from the page cache
// alone (tmpfs, overlay).
func needPageCache(t *testing.T) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(name, make([]byte, file.Align), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{make([]byte, file.Align)}, 0, unix.RWF_NOWAIT)
	if n < file.Align {
		testkit.Skip(t, "page-cache", fmt.Sprintf("a read that does not wait, of a file that was just written, gave %d bytes: %v", n, err))
	}
}

// If a ring breaks, transfers that wait for space in it also get the error.
func TestURingThatBreaksFailsWhatWaits(t *testing.T) {
	a := uring.System()
	enter := a.Enter
	a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
		if submit > 0 {
			return 0, unix.EPERM
		}
		return enter(fd, submit, atLeast, flags)
	}
	s := openRing(t, file.Options{Transfers: 2, ChunkBytes: file.Align, Path: stream.PathURing}, a, nil)
	const n = 8 * file.Align
	if _, err := try(t, s, mem.All(real(t).alloc(t, n)), mem.All(host.Alloc(t, n))); !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}

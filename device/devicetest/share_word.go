package devicetest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// testShareWord: a word in memory that processes share tells when work is done, to who has it mapped elsewhere: package share announces work by it. What
// the work has written is then there for queues that have waited for nothing.
func testShareWord(t *testing.T, h *harness) {
	const n, at = 8 << 20, 64
	sharer(t, h.dev)
	h.adopter(t)
	page, fd, err := hostmem.AllocShared(4096)
	must(t, err)
	theirs, err := hostmem.MapShared(fd, 4096)
	must(t, err)
	must(t, unix.Close(fd))
	t.Cleanup(func() {
		must(t, hostmem.Free(theirs))
		must(t, hostmem.Free(page))
	})
	word, err := h.dev.RegisterHost(page)
	h.keep(t, word, err)
	far := h.device(t, n)
	from := []*mem.Region{h.pinned(t, n), h.pinned(t, n), h.pinned(t, n)}
	q, late := h.queue(t), h.queue(t)
	tells, own := h.adopt(t)
	for round, p := range from {
		h.random(p.Bytes())
		must(t, q.Copy(mem.All(far), mem.All(p)))
		done, err := q.Record()
		must(t, err)
		must(t, own.Wait(done))
		must(t, tells.WriteValue(extent(word, at, 8), uint64(round+1)))
		for end := time.Now().Add(patience); hostmem.LoadUint64(theirs[at:]) <= uint64(round); time.Sleep(20 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("round %d: nobody tells that the work is done", round)
			}
		}
		if ok, err := done.Done(); !ok || err != nil {
			t.Errorf("round %d: told to be done, and is not: %v", round, err)
		}
		done.Close()
		diff(t, "behind the word", h.get(t, late, far, n), p.Bytes())
	}
}

package sim

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

var _ storage.Enqueuer = (*simFile)(nil)

// failedTransfer is the result of a failed transfer: the negated code of an internal error.
const failedTransfer = -5030

// fileWork is a transfer on a queue. It reads its size and offsets from its words when it runs.
type fileWork struct {
	f     *simFile
	dir   storage.Direction
	at    mem.DevAddr
	words mem.DevAddr
}

// Enqueue implements storage.Enqueuer.
func (f *simFile) Enqueue(dq device.Queue, d storage.Direction, e mem.Extent, w storage.Words) error {
	const call = "simFileEnqueue"
	q, ok := dq.(interface{ simulated() *Queue })
	if !ok || q.simulated().dev != f.s.dev {
		return errInvalidValue(call, fmt.Sprintf("queue=%T", dq), "not a queue of this device")
	}
	if err := f.s.dev.checkExtent(call, e); err != nil {
		return err
	}
	if err := q.simulated().call(OpFileEnqueue, call); err != nil {
		return err
	}
	return q.simulated().enqueue(op{kind: opFile, file: &fileWork{f: f, dir: d, at: e.Dev(), words: w.Dev()}})
}

// simulated returns the queue. Types that wrap a queue in tests inherit it.
func (q *Queue) simulated() *Queue { return q }

// Outcome implements storage.Enqueuer.
func (f *simFile) Outcome(_ storage.Direction, _ mem.Extent, w storage.Words) (int64, error) {
	n := w.Load(storage.WordMoved)
	if n >= 0 {
		return n, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.failures[int64(w.Dev())]
	delete(f.failures, int64(w.Dev()))
	return 0, err
}

// moveFile runs a transfer. It writes the transfer's own failure to the transfer's words. An error
// that it returns breaks the queue.
func (q *Queue) moveFile(o *op) error {
	w := o.file
	var failed error
	if o.hit {
		failed = q.dev.applyFault(fileOp(w.dir), &o.fault)
	}
	x := &q.exec
	x.lockMemory()
	defer x.release()
	words, err := x.machine.View("simFileEnqueue", w.words, storage.WordsBytes)
	if err != nil {
		return fmt.Errorf("read the words of a transfer: %w", err)
	}
	u64 := binary.LittleEndian.Uint64
	size, off, at := u64(words[storage.WordSize:]), u64(words[storage.WordFileOffset:]), u64(words[storage.WordBufferOffset:])
	b, err := x.bytes(fileCall(w.dir), w.at+mem.DevAddr(at), size, &x.lastDst)
	if err != nil {
		return err
	}
	if at != 0 && failed == nil { // like libcufile 1.15 in its compatibility mode
		failed = fmt.Errorf("%s: an offset of %d in the buffer: %w", fileCall(w.dir), at, unix.EIO)
	}
	var n int64
	if failed == nil {
		var struck *fault.Fault
		if o.hit {
			struck = &o.fault
		}
		n, failed = w.f.carry(w.dir, w.at, b, int64(off), struck)
	}
	if failed != nil {
		n = failedTransfer
		w.f.mu.Lock()
		w.f.failures[int64(w.words)] = failed
		w.f.mu.Unlock()
	}
	binary.LittleEndian.PutUint64(words[storage.WordMoved:], uint64(n))
	return nil
}

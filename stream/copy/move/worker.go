package move

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// A worker's memory: the control block, the ring, and a table of descriptors for each entry.
const (
	residentDepth = 64
	residentTable = 8 << 10
	residentRing  = device.ResidentControlBytes
	residentAll   = residentRing + residentDepth*(device.ResidentEntryBytes+residentTable)
	tablesAt      = residentRing + residentDepth*device.ResidentEntryBytes
)

// worker is one resident kernel, of one thread block, that comes and goes.
type worker struct {
	o        ResidentOptions
	region   *mem.Region
	control  []byte
	queue    device.Queue
	launcher device.Launcher
	started  func() // called after each launch; nil: nobody wants to know

	posted uint64 // the last entry that was written; used by whoever issues
	seen   uint64 // an entry that is complete, not always the last one; used by whoever issues
	launch device.Kernel

	// mu is held while the kernel is launched: who posts an entry and who finds that the kernel has left would otherwise
	// both launch it, or neither. Nobody waits for it, since a driver may take long over a launch and no context ends that:
	// who finds it held leaves the rest to those who ask whether the entry has landed, which they do until it has.
	mu         sync.Mutex
	generation atomic.Uint64 // of the last launch; zero before the first; written with mu
	ended      device.Event  // done when that kernel has ended; nil before the first, and once it was seen to be done
	idle       bool          // ended was done: no kernel touches anything
	err        error         // why no kernel will be launched any more
	failed     atomic.Bool   // err is set
}

func newWorker(dev device.Device, o ResidentOptions) (*worker, error) {
	q, err := dev.OpenQueue(device.QueueOptions{HighPriority: true})
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	region, err := dev.AllocHost(residentAll)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), UndoTimeout)
		defer cancel()
		failed, closeErr := CloseQueue(ctx, q)
		return nil, errors.Join(fmt.Errorf("allocate ring: %w", err), failed, closeErr)
	}
	w := &worker{o: o, region: region, control: region.Bytes()[:device.ResidentControlBytes], queue: q}
	w.launcher, _ = q.(device.Launcher) // available has looked at a queue of this device
	binary.LittleEndian.PutUint64(w.control[device.ResidentRing:], uint64(region.Dev())+residentRing)
	binary.LittleEndian.PutUint64(w.control[device.ResidentDepth:], residentDepth)
	return w, nil
}

// done returns the last entry that is complete.
func (w *worker) done() uint64 { return hostmem.LoadUint64(w.control[device.ResidentDone:]) }

// room reports whether another entry can be written. Of whoever issues. It looks at what the kernel has written only if need
// be: to read what a device wrote takes a tenth of a microsecond.
func (w *worker) room() bool {
	if w.posted-w.seen == residentDepth {
		w.seen = w.done()
	}
	return w.posted-w.seen < residentDepth
}

// next returns the memory of the entry that is posted next, and that of its table. There must be room.
func (w *worker) next() (entry, table []byte, tableDev mem.DevAddr) {
	i := (w.posted + 1) % residentDepth
	at, tableAt := residentRing+i*device.ResidentEntryBytes, tablesAt+i*residentTable
	b := w.region.Bytes()
	return b[at : at+device.ResidentEntryBytes], b[tableAt : tableAt+residentTable : tableAt+residentTable], w.region.Dev() + mem.DevAddr(tableAt)
}

// post writes an entry for as much of c as fits and is about so many bytes, none if nothing is left. inline: what is copied is
// written into the entry itself, which costs the kernel a read less. Whether a kernel is there to take it, ensure sees to. Of
// whoever issues.
func (w *worker) post(c *describe.Cursor, limit int64, inline bool) (seq uint64, bytes int64) {
	e, buf, dev := w.next()
	if inline {
		if bytes = inEntry(e, c, limit); bytes > 0 {
			return w.put(e), bytes
		}
	}
	t := describe.Table{Buf: buf, Dev: dev, Limit: limit}
	if c.Launch(&t, &w.launch) == 0 {
		return w.posted, 0
	}
	op := uint64(device.ResidentList)
	if w.launch.Name == device.KernelCopyPaged {
		op = device.ResidentPaged
	}
	word(e, 1, op)
	for i, v := range w.launch.Args[:w.launch.NArgs] {
		word(e, 2+i, v)
	}
	word(e, device.ResidentPieces, 0)
	return w.put(e), t.Bytes
}

// inEntry describes the batch in the entry e, as much as fits and is about so many bytes, and returns how many it is.
func inEntry(e []byte, c *describe.Cursor, limit int64) int64 {
	const first = device.ResidentFirst * device.CopyDescBytes
	t := describe.Table{Buf: e[device.ResidentFirstAt:][:first], Limit: limit}
	n, bytes := c.Pieces(&t), t.Bytes
	if n == device.ResidentFirst && bytes < limit {
		t = describe.Table{Buf: e[device.ResidentMoreAt:], Limit: limit - bytes}
		n += c.Pieces(&t)
		bytes += t.Bytes
	}
	word(e, 1, device.ResidentCopy)
	word(e, device.ResidentPieces, uint64(n))
	return bytes
}

func word(e []byte, i int, v uint64) { binary.LittleEndian.PutUint64(e[8*i:], v) }

// put gives the next entry, whose words are written, its number and its check. The check is stored last and in one step,
// after what the entry points at.
func (w *worker) put(e []byte) (seq uint64) {
	w.posted++
	word(e, 0, w.posted)
	hostmem.StoreUint64(e[device.ResidentLast:], device.ResidentCheck(e))
	return w.posted
}

// ensure makes sure that a kernel is there to take what was put, or comes when that is looked after: one that has not left
// yet may do so without it. After an error the entry may have been taken, and landed tells when nothing is touched any more.
func (w *worker) ensure() error {
	if !w.gone() && !w.failed.Load() {
		return nil
	}
	if !w.mu.TryLock() {
		return nil
	}
	defer w.mu.Unlock()
	if w.err == nil && w.gone() {
		w.start()
	}
	return w.err
}

// gone reports whether no kernel runs. It stays so while the caller holds mu.
func (w *worker) gone() bool {
	return hostmem.LoadUint64(w.control[device.ResidentExited:]) == w.generation.Load()
}

// start launches the kernel, which is gone, and records when it ends. The caller holds mu.
func (w *worker) start() {
	generation := w.generation.Add(1)
	hostmem.StoreUint64(w.control[device.ResidentNext:], w.done()+1)
	k := device.ResidentArgs{
		Control: w.region.Dev(), Stride: device.ResidentControlBytes, Generation: generation,
		Idle: uint64(w.o.Idle), Lease: uint64(w.o.Lease),
	}.Kernel(1)
	err := w.launcher.Launch(&k)
	if w.ended != nil {
		w.ended.Close()
	}
	w.ended, w.idle = Record(w.queue, &err), false
	w.fail(err)
	if w.started != nil {
		w.started()
	}
}

// fail notes why the worker is of no use any more, unless err is nil. The caller holds mu.
func (w *worker) fail(err error) {
	if err != nil {
		w.err = errors.Join(w.err, err)
		w.failed.Store(true)
	}
}

// landed reports whether entry seq is done, and launches the kernel if it has left before that. With an error, done says
// whether the entry will not be touched any more. driver: look also whether the kernel has died.
func (w *worker) landed(seq uint64, driver bool) (done bool, err error) {
	if !w.failed.Load() {
		if w.done() >= seq {
			return true, nil
		}
		if !driver && !w.gone() {
			return false, nil
		}
	}
	if !w.mu.TryLock() {
		return false, nil
	}
	defer w.mu.Unlock()
	if w.err == nil && w.gone() && w.done() < seq {
		w.start()
	}
	if w.err != nil || driver {
		return w.look(seq)
	}
	return false, nil
}

// look asks the driver whether the kernel has ended: one that did so without a word has died, and one whose launch failed
// may take entries until then. After a failure nothing is said to be done for good, as that would hide it. The caller
// holds mu.
func (w *worker) look(seq uint64) (done bool, err error) {
	if w.ended != nil {
		ended, err := w.ended.Done()
		if !ended && err == nil {
			return w.err == nil && w.done() >= seq, nil
		}
		w.fail(err)
		w.ended.Close()
		w.ended, w.idle = nil, ended
	}
	if w.err == nil && w.idle && !w.gone() {
		w.fail(fmt.Errorf("resident kernel ended and did not say so: %w", errdefs.ErrBroken))
	}
	if w.err != nil {
		return w.idle, w.err
	}
	return w.done() >= seq, nil
}

// close has the kernel leave, waits until it has, and closes the queue. failed is what a queue said that is closed all the
// same. After err it may be called again.
func (w *worker) close(ctx context.Context) (failed, err error) {
	w.mu.Lock()
	defer w.mu.Unlock() // nobody else uses the worker any more
	if w.queue == nil {
		return nil, nil
	}
	if !w.gone() && w.posted-w.done() < residentDepth {
		e, _, _ := w.next()
		word(e, 1, device.ResidentStop)
		word(e, device.ResidentPieces, 0)
		w.put(e)
	}
	if w.ended != nil {
		if failed = w.ended.Wait(ctx); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if w.err != nil {
			failed = nil // it was told
		}
	}
	said, err := CloseQueue(ctx, w.queue)
	if err != nil {
		return nil, err
	}
	w.queue = nil
	if w.ended != nil {
		w.ended.Close()
		w.ended = nil
	}
	return errors.Join(failed, said), nil
}

// free gives the memory back, after close.
func (w *worker) free(dev device.Device) error {
	if err := dev.Free(w.region); err != nil {
		return fmt.Errorf("free ring: %w", err)
	}
	return nil
}

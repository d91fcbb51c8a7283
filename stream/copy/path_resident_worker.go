package copy

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

	// mu is held while the kernel is launched: who posts an entry and who finds that the kernel has left would otherwise
	// both launch it, or neither.
	mu     sync.Mutex
	posted uint64       // the last entry that was written
	ended  device.Event // done when that kernel has ended; nil before the first, and once it was seen to be done
	idle   bool         // ended was done: no kernel touches anything
	err    error        // why no kernel will be launched any more
	failed atomic.Bool  // err is set

	generation atomic.Uint64 // of the last launch; zero before the first
}

func newWorker(dev device.Device, o ResidentOptions) (*worker, error) {
	q, err := dev.OpenQueue(device.QueueOptions{HighPriority: true})
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	region, err := dev.AllocHost(residentAll)
	if err != nil {
		// The queue is idle: closing it has nothing to wait for.
		return nil, errors.Join(fmt.Errorf("allocate ring: %w", err), q.Close(context.Background()))
	}
	w := &worker{o: o, region: region, control: region.Bytes()[:device.ResidentControlBytes], queue: q}
	w.launcher, _ = q.(device.Launcher) // available has looked at a queue of this device
	binary.LittleEndian.PutUint64(w.control[device.ResidentRing:], uint64(region.Dev())+residentRing)
	binary.LittleEndian.PutUint64(w.control[device.ResidentDepth:], residentDepth)
	return w, nil
}

// done returns the last entry that is complete.
func (w *worker) done() uint64 { return hostmem.LoadUint64(w.control[device.ResidentDone:]) }

// room reports whether another entry can be written.
func (w *worker) room() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.posted-w.done() < residentDepth
}

// table returns the memory for the descriptors of the entry that is posted next. There must be room.
func (w *worker) table() []byte {
	at := tablesAt + (w.posted+1)%residentDepth*residentTable
	return w.region.Bytes()[at : at+residentTable : at+residentTable]
}

// tableDev returns the device address of table.
func (w *worker) tableDev() uint64 {
	return uint64(w.region.Dev()) + tablesAt + (w.posted+1)%residentDepth*residentTable
}

// post writes an entry that does what k would, whose descriptors start with descs, and makes sure that a kernel is there
// to take it. After an error it may have been taken, and landed tells when nothing is touched any more.
func (w *worker) post(k *device.Kernel, descs []byte) (seq uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seq = w.posted + 1
	var e device.ResidentWords
	e[0] = seq
	switch n := k.Args[1]; {
	case k.Name == device.KernelCopyPaged:
		e[1] = device.ResidentPaged
		copy(e[2:], k.Args[:k.NArgs])
	case n <= device.ResidentInline:
		e[1], e[14] = device.ResidentCopy, n
		for i := range int(n) * device.CopyDescBytes / 8 {
			e[2+i] = binary.LittleEndian.Uint64(descs[8*i:])
		}
	default:
		e[1] = device.ResidentList
		copy(e[2:], k.Args[:k.NArgs])
	}
	w.write(&e)
	if w.err == nil && w.gone() {
		w.start()
	}
	return seq, w.err
}

// write puts an entry into the ring. Its check is stored last and in one step, after what the entry points at. The caller
// holds mu.
func (w *worker) write(e *device.ResidentWords) {
	at := residentRing + e[0]%residentDepth*device.ResidentEntryBytes
	b := w.region.Bytes()[at : at+device.ResidentEntryBytes]
	hostmem.StoreUint64(b[device.ResidentLast:], e.Put(b))
	w.posted = e[0]
}

// gone reports whether no kernel runs. While mu is not held, one may be about to be launched.
func (w *worker) gone() bool {
	return hostmem.LoadUint64(w.control[device.ResidentExited:]) == w.generation.Load()
}

// start launches the kernel, which is gone, and records when it ends. The caller holds mu.
func (w *worker) start() {
	w.generation.Add(1)
	hostmem.StoreUint64(w.control[device.ResidentNext:], w.done()+1)
	k := device.Kernel{Name: device.KernelResident, CTAs: 1, NArgs: 5}
	k.Args = [device.MaxKernelArgs]uint64{
		uint64(w.region.Dev()), device.ResidentControlBytes, w.generation.Load(), uint64(w.o.Idle), uint64(w.o.Lease),
	}
	err := w.launcher.Launch(&k)
	if w.ended != nil {
		w.ended.Close()
	}
	w.ended, w.idle = recordTwice(w.queue, &err), false
	w.fail(err)
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
	if !w.failed.Load() && w.done() >= seq {
		return true, nil
	}
	w.mu.Lock()
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
		w.write(&device.ResidentWords{w.posted + 1, device.ResidentStop})
	}
	if w.ended != nil {
		if failed = w.ended.Wait(ctx); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if w.err != nil {
			failed = nil // it was told
		}
	}
	said, err := closeQueue(ctx, w.queue)
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

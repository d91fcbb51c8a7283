package blockhost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

const (
	diskReads  = 16               // at a time, of an identity
	diskWrites = 8                // at a time
	putTimeout = 30 * time.Second // for a block that waits for space on disk
)

// Disk has a directory for each tenant below Root, with a directory for each identity. Its tiers
// are opened when their identity is declared. Complete blocks are written in the background. Memory has
// the blocks that were used last.
type Disk struct {
	// Root is the directory. Empty: Open needs none, and the directories are only names.
	Root string
	// TenantBytes bounds the leases of a tenant's blocks on disk, to half of it. Zero: no bound.
	TenantBytes int64
	// Identities bounds the identities of a tenant. Zero: 1,024.
	Identities int
	// Open opens the tier of an identity in a directory, which may exist. A Put of the tier returns
	// when the block is durable. A Lookup finds durable blocks only.
	Open func(ctx context.Context, dir string, f block.Format) (tier.Tier, error)
	// Report receives the evictions and failures of a tenant's disk, at most once a minute. It must
	// not block. May be nil.
	Report func(DiskReport)
}

// pendingWrite is a write of a block to disk. err is set before done is closed.
type pendingWrite struct {
	done chan struct{}
	err  error
}

// writers are the goroutines that write blocks to disk. The host's mutex guards queue.
type writers struct {
	queue   []*entry
	wake    *sync.Cond
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

// Durable reports whether blocks are kept on disk.
func (h *Host) Durable() bool { return h.o.Disk != nil }

func (h *Host) startWriters() {
	w := &h.writers
	w.wake = sync.NewCond(&h.mu)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for range diskWrites {
		w.running.Go(h.write)
	}
}

// write writes queued blocks until the host is closed and the queue is empty.
func (h *Host) write() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		// An identity has at most half of the writers, so that a disk that hangs leaves others some.
		next := slices.IndexFunc(h.writers.queue, func(e *entry) bool { return e.space.active < diskWrites/2 })
		if next < 0 {
			if h.closed && len(h.writers.queue) == 0 {
				return
			}
			h.writers.wake.Wait()
			continue
		}
		e := h.writers.queue[next]
		h.writers.queue = slices.Delete(h.writers.queue, next, next+1)
		e.space.active++
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.writers.ctx, putTimeout)
		err := e.space.disk.Put(ctx, e.key, e.extent())
		cancel()
		e.space.noteWrite(err, time.Now())
		h.mu.Lock()
		e.space.active--
		e.written(err)
		h.writers.wake.Broadcast()
	}
}

// extent returns the image's memory.
func (e *entry) extent() mem.Extent {
	return mem.Extent{Region: e.memory.region, Len: int64(len(e.image))}
}

// enqueue queues a complete block to be written to disk. The block is in use until it is written.
// The caller holds mu.
func (e *entry) enqueue() {
	h, t := e.space.h, e.space.t
	e.write = &pendingWrite{done: make(chan struct{})}
	e.use()
	e.space.writes++
	t.unwritten += int64(len(e.memory.bytes))
	h.unwritten += int64(len(e.memory.bytes))
	h.writers.queue = append(h.writers.queue, e)
	h.writers.wake.Signal()
}

// written ends a write to disk. The caller holds mu.
func (e *entry) written(err error) {
	h, t := e.space.h, e.space.t
	e.space.writes--
	t.unwritten -= int64(len(e.memory.bytes))
	h.unwritten -= int64(len(e.memory.bytes))
	if e.kept = err == nil; e.kept {
		t.usage.DiskWrites++
	} else {
		t.usage.DiskErrors++
	}
	close(h.writable)
	h.writable = make(chan struct{})
	e.write.err = err
	close(e.write.done)
	e.write = nil
	e.unuse()
}

// mayWrite returns ErrBusy while more than half of the memory waits to be written to disk. The
// caller holds mu.
func (s *Space) mayWrite() error {
	n := classBytes(s.format.Layout.ImageBytes())
	if s.t.unwritten > 0 && s.t.unwritten+n > s.h.tenantBytes(s.t.name)/2 || s.h.unwritten > 0 && s.h.unwritten+n > s.h.o.CapacityBytes/2 {
		return fmt.Errorf("store a block: %d bytes wait for the disk: %w", s.h.unwritten, errdefs.ErrBusy)
	}
	return nil
}

// WaitWritable waits until a new block can be stored without ErrBusy because of the disk, or until
// ctx ends.
func (s *Space) WaitWritable(ctx context.Context) {
	for {
		s.h.mu.Lock()
		err, written := s.mayWrite(), s.h.writable
		s.h.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-written:
		case <-ctx.Done():
			return
		}
	}
}

// Flush waits until the blocks in memory that are complete are durable. It looks for each on disk,
// and writes those again that are not there, and those whose write has failed. It returns
// ErrNotSupported without a disk, the errors of lookups and writes, and ErrCanceled if ctx ends
// before. A block that is not in memory any more was durable before it was evicted from there.
func (s *Space) Flush(ctx context.Context) error {
	if s.disk == nil {
		return fmt.Errorf("flush to memory: %w", errdefs.ErrNotSupported)
	}
	if err := s.findRemoved(ctx); err != nil {
		return err
	}
	s.h.mu.Lock()
	var pending []*pendingWrite
	for _, e := range s.blocks {
		if e.ready && !e.kept && e.write == nil && !s.h.closed {
			e.enqueue()
		}
		if e.write != nil {
			pending = append(pending, e.write)
		}
	}
	s.h.mu.Unlock()
	var errs []error
	for _, w := range pending {
		select {
		case <-w.done:
		case <-ctx.Done():
			return fmt.Errorf("flush %d blocks: %w: %w", len(pending), errdefs.ErrCanceled, context.Cause(ctx))
		}
		if w.err != nil && len(errs) < 4 {
			errs = append(errs, w.err)
		}
	}
	return errors.Join(errs...)
}

// findRemoved looks on disk for the blocks that were written there, and resets kept of those that
// were evicted or removed since.
func (s *Space) findRemoved(ctx context.Context) error {
	s.h.mu.Lock()
	var keys []block.Key
	for key, e := range s.blocks {
		if e.kept {
			keys = append(keys, key)
		}
	}
	s.h.mu.Unlock()
	states := make([]tier.State, len(keys))
	if err := s.disk.Lookup(ctx, keys, states); err != nil {
		return fmt.Errorf("look for %d blocks on disk: %w", len(keys), err)
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for i, key := range keys {
		if e := s.blocks[key]; e != nil && states[i] != tier.Ready {
			e.kept = false
		}
	}
	return nil
}

// Flush makes the blocks of all identities durable that are complete. Without a disk it does
// nothing. Errors are those of Space.Flush.
func (h *Host) Flush(ctx context.Context) error {
	if h.o.Disk == nil {
		return nil
	}
	var spaces []*Space
	h.mu.Lock()
	for _, t := range h.tenants {
		for _, s := range t.spaces {
			if s.disk != nil {
				spaces = append(spaces, s)
			}
		}
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range spaces {
		errs = append(errs, s.Flush(ctx))
	}
	return errors.Join(errs...)
}

// Read is Get of a block that may be on disk only: then it is read into memory first, once for
// several calls. If ctx ends before, Read returns ErrCanceled, and the block is read all the same.
func (s *Space) Read(ctx context.Context, key block.Key) (Block, error) {
	for {
		b, loading, err := s.pinOrLoad(key)
		if loading == nil {
			return b, err
		}
		select {
		case <-loading:
		case <-ctx.Done():
			return Block{}, fmt.Errorf("read block %s: %w: %w", key, errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
}

// pinOrLoad pins a block, or reads it from disk, or returns the channel that is closed when another
// call has read it.
func (s *Space) pinOrLoad(key block.Key) (Block, <-chan struct{}, error) {
	s.h.mu.Lock()
	e := s.blocks[key]
	if e != nil || s.disk == nil {
		defer s.h.mu.Unlock()
		if e != nil && e.loading != nil {
			return Block{}, e.loading, nil
		}
		b, err := s.pin(key, false)
		return b, nil, err
	}
	s.h.mu.Unlock()
	var state [1]tier.State
	err := s.disk.Lookup(s.h.writers.ctx, []block.Key{key}, state[:])
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	switch {
	case err != nil:
		s.t.usage.DiskErrors++
		return Block{}, nil, err
	case s.blocks[key] != nil: // another call was faster
		return Block{}, closedChan, nil
	case state[0] != tier.Ready:
		b, err := s.pin(key, false) // it counts a miss
		return b, nil, err
	case s.h.closed:
		return Block{}, nil, fmt.Errorf("read block %s: %w", key, errdefs.ErrClosed)
	}
	if e, err = s.newEntry(key); err != nil {
		return Block{}, nil, err
	}
	b, err := e.load()
	return b, nil, err
}

// closedChan is a channel that is always ready.
var closedChan = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// load reads a new block from disk and pins it. The caller holds mu, which load releases meanwhile.
func (e *entry) load() (Block, error) {
	h, t := e.space.h, e.space.t
	loaded := make(chan struct{})
	e.loading = loaded
	e.use()
	h.mu.Unlock()
	e.space.reads <- struct{}{} // reads of the identity end, if the disk does
	err := e.space.disk.Get(h.writers.ctx, e.key, e.extent())
	<-e.space.reads
	h.mu.Lock()
	e.loading = nil
	close(loaded)
	if err != nil {
		if t.usage.Misses++; !errors.Is(err, errdefs.ErrNotFound) {
			t.usage.DiskErrors++
		}
		if !e.gone {
			e.drop()
		}
		e.unuse()
		return Block{}, err
	}
	t.usage.DiskReads++
	t.usage.Hits++
	if !e.gone { // otherwise it was deleted meanwhile
		e.publish()
		e.kept = true
	}
	return Block{e: e}, nil
}

// openDisk opens the tier of the space's identity.
func (s *Space) openDisk(ctx context.Context, tenantName string) error {
	h, d := s.h, s.h.o.Disk
	select {
	case s.t.opening <- struct{}{}:
		defer func() { <-s.t.opening }()
	case <-ctx.Done():
		return fmt.Errorf("open identity %s: %w: %w", s.format.Identity, errdefs.ErrCanceled, context.Cause(ctx))
	}
	if s.disk != nil { // only the holder of opening sets it
		return nil
	}
	parent := filepath.Join(d.Root, tenantName)
	dir := filepath.Join(parent, s.format.Identity.String())
	if d.Root != "" {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return fmt.Errorf("make the directory of a tenant: %w", err)
		}
		if err := h.trim(ctx, s.t, parent, filepath.Base(dir)); err != nil {
			return err
		}
	}
	opened, err := d.Open(ctx, dir, s.format)
	if err != nil {
		return fmt.Errorf("open identity %s: %w", s.format.Identity, err)
	}
	if d.Root != "" {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // the time of the last use, for trim; it counts no failure
	}
	servers := s.serve(opened)
	h.mu.Lock()
	closed := h.closed
	if !closed {
		s.disk, s.servers = opened, servers
	}
	h.mu.Unlock()
	if closed { // Close has not seen the tier
		return errors.Join(fmt.Errorf("open identity %s: %w", s.format.Identity, errdefs.ErrClosed),
			closeServed(context.WithoutCancel(ctx), servers, opened))
	}
	return nil
}

// trim removes directories of identities that are not open, those not used for the longest time
// first, until there are fewer than maxSpaces of them, name included. The caller holds t.opening.
func (h *Host) trim(ctx context.Context, t *tenant, parent, name string) error {
	all, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("list the directories of a tenant: %w", err)
	}
	count := 1
	for _, d := range all {
		if d.Name() != name && d.IsDir() {
			count++
		}
	}
	for ; count > h.maxSpaces(); count-- {
		if err := h.waitClosing(ctx, t); err != nil {
			return err
		}
		var oldest string
		var when time.Time
		for _, d := range all {
			id, err := block.ParseDigest(d.Name())
			if err != nil || d.Name() == name || h.open(t, id) {
				continue
			}
			if info, err := d.Info(); err == nil && (oldest == "" || info.ModTime().Before(when)) {
				if _, err := os.Lstat(filepath.Join(parent, d.Name())); err == nil {
					oldest, when = d.Name(), info.ModTime()
				}
			}
		}
		if oldest == "" {
			return nil // foreign directories, and those in use
		}
		if err := os.RemoveAll(filepath.Join(parent, oldest)); err != nil {
			return fmt.Errorf("remove the directory of an identity that is not used: %w", err)
		}
	}
	return nil
}

// waitClosing waits until the tiers that the tenant has forgotten are closed.
func (h *Host) waitClosing(ctx context.Context, t *tenant) error {
	h.mu.Lock()
	closing := slices.Collect(maps.Values(t.closing))
	h.mu.Unlock()
	for _, c := range closing {
		select {
		case <-c:
		case <-ctx.Done():
			return fmt.Errorf("close an identity that is not used: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
	return nil
}

func (h *Host) open(t *tenant, id block.Digest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return t.spaces[id] != nil || t.closing[id] != nil
}

// closeDisk closes the tier of a space that the tenant has forgotten.
func (s *Space) closeDisk(done chan struct{}) {
	err := closeServed(context.Background(), s.servers, s.disk) // it waits for reads
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if err != nil {
		s.t.usage.DiskErrors++
	}
	delete(s.t.closing, s.format.Identity)
	close(done)
}

// closeDisk ends the writers when the queue is empty, and closes all tiers.
func (h *Host) closeDisk(ctx context.Context) error {
	if h.o.Disk == nil {
		return nil
	}
	h.writers.wake.Broadcast()
	ended := make(chan struct{})
	go func() {
		h.writers.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		return fmt.Errorf("close block host: blocks are being written: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
	var open []*Space
	h.mu.Lock()
	for _, t := range h.tenants {
		for _, s := range t.spaces {
			if s.disk != nil {
				open = append(open, s)
			}
		}
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, closeServed(ctx, s.servers, s.disk)) // a second Close does nothing
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.writers.cancel()
	return nil
}

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	wordBytes = 8
	// The patterns of the two sources are far apart in the sequence of device.Mix64, so that no two words of a run are
	// alike but by accident.
	hostTag = 1 << 60
	devTag  = 1 << 61
	poison  = 0xa5
	// closeTimeout bounds the wait for work that a failed run left behind.
	closeTimeout = 30 * time.Second
)

// rig is the memory of a run. Sources are written once and stay; destinations are poisoned before every point.
type rig struct {
	dev              device.Device
	hostSrc, hostDst *mem.Region // pinned, equally long
	devSrc, devDst   *mem.Region // equally long
	queue            device.Queue
	plain            stream.Stream // copies what the benchmark needs beside what it measures
	closers          []func() error
}

func newRig(ctx context.Context, dev device.Device, open Opener, o *Options) (_ *rig, err error) {
	r := &rig{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	hostBytes := max(o.Bytes, o.ReferenceBytes)
	for _, h := range []**mem.Region{&r.hostSrc, &r.hostDst} {
		if *h, err = dev.AllocHost(hostBytes); err != nil {
			return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", hostBytes, err)
		}
		r.frees(*h)
	}
	for _, d := range []**mem.Region{&r.devSrc, &r.devDst} {
		if *d, err = dev.Alloc(o.PoolBytes, device.AllocOptions{}); err != nil {
			return nil, fmt.Errorf("allocate %d bytes of device memory: %w", o.PoolBytes, err)
		}
		r.frees(*d)
	}
	if r.queue, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	r.onClose(r.queue.Close)
	if r.plain, err = open(stream.PathCopyEngine); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	r.onClose(r.plain.Close)
	return r, r.writeSources(ctx)
}

func (r *rig) frees(m *mem.Region) {
	r.closers = append(r.closers, func() error { return r.dev.Free(m) })
}

// onClose closes something that may have to wait. The run's context may have ended by then, so the wait has its own.
func (r *rig) onClose(f func(context.Context) error) {
	r.closers = append(r.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return f(ctx)
	})
}

// close frees everything in reverse order. It stops at the first failure: a queue or stream that does not close may
// still use the memory.
func (r *rig) close() error {
	for len(r.closers) > 0 {
		last := len(r.closers) - 1
		if err := r.closers[last](); err != nil {
			return fmt.Errorf("close benchmark: %w", err)
		}
		r.closers = r.closers[:last]
	}
	return nil
}

func (r *rig) writeSources(ctx context.Context) error {
	writePattern(r.hostSrc.Bytes(), hostTag, 0)
	for chunk := range chunks(r.devSrc.Len(), r.hostDst.Len()) {
		staged := mem.Extent{Region: r.hostDst, Len: chunk.Len}
		writePattern(staged.Bytes(), devTag, chunk.Off)
		if err := copyOne(ctx, r.plain, mem.Extent{Region: r.devSrc, Off: chunk.Off, Len: chunk.Len}, staged); err != nil {
			return fmt.Errorf("write the device's pattern: %w", err)
		}
	}
	return nil
}

// poisonDestinations overwrites both destinations, so that bytes that a point did not bring cannot pass for right ones.
func (r *rig) poisonDestinations(ctx context.Context) error {
	if err := r.queue.Fill(mem.All(r.devDst), poison); err != nil {
		return fmt.Errorf("poison device memory: %w", err)
	}
	e, err := r.queue.Record()
	if err != nil {
		return fmt.Errorf("poison device memory: record: %w", err)
	}
	defer e.Close()
	host := r.hostDst.Bytes()
	for i := range host {
		host[i] = poison
	}
	if err := e.Wait(ctx); err != nil {
		return fmt.Errorf("poison device memory: %w", err)
	}
	return nil
}

// check compares what a repetition brought with what it should have.
func (r *rig) check(ctx context.Context, p *plan) error {
	if p.dir == ToHost {
		return p.checkBlocks(r.hostDst.Bytes(), devTag, p.hostOff, p.devOff)
	}
	// The device's bytes are read back in long copies, which share nothing with the path under test.
	for chunk := range chunks(p.devSpan(), r.hostDst.Len()/p.size*p.size) {
		staged := mem.Extent{Region: r.hostDst, Len: chunk.Len}
		if err := copyOne(ctx, r.plain, staged, mem.Extent{Region: r.devDst, Off: chunk.Off, Len: chunk.Len}); err != nil {
			return fmt.Errorf("read device memory back: %w", err)
		}
		at := func(i int) int64 { return p.devOff(i) - chunk.Off }
		if err := p.checkBlocks(staged.Bytes(), hostTag, at, p.hostOff); err != nil {
			return err
		}
	}
	return nil
}

// checkBlocks compares every block of the plan that lies in b, at at(i), with the bytes of a source at from(i). It uses
// all processors: checking takes longer than copying.
func (p *plan) checkBlocks(b []byte, tag uint64, at, from func(i int) int64) error {
	var g errgroup.Group
	n, workers := len(p.hostBlock), runtime.GOMAXPROCS(0)
	for w := range workers {
		g.Go(func() error {
			for i := w * n / workers; i < (w+1)*n/workers; i++ {
				off := at(i)
				if off < 0 || off >= int64(len(b)) {
					continue
				}
				if err := checkPattern(b[off:][:p.size], tag, from(i)); err != nil {
					return fmt.Errorf("block %d of %d: %w", i, n, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func copyOne(ctx context.Context, s stream.Stream, dst, src mem.Extent) error {
	t, err := s.Submit(ctx, &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

// span is a part of a region.
type span struct{ Off, Len int64 }

// chunks divides length bytes into parts of at most step bytes.
func chunks(length, step int64) func(yield func(span) bool) {
	return func(yield func(span) bool) {
		for off := int64(0); off < length; off += step {
			if !yield(span{Off: off, Len: min(step, length-off)}) {
				return
			}
		}
	}
}

func writePattern(b []byte, tag uint64, off int64) {
	word := tag + uint64(off)/wordBytes
	for ; len(b) >= wordBytes; b = b[wordBytes:] {
		binary.LittleEndian.PutUint64(b, device.Mix64(word))
		word++
	}
}

func checkPattern(b []byte, tag uint64, off int64) error {
	word := tag + uint64(off)/wordBytes
	for i := 0; i+wordBytes <= len(b); i += wordBytes {
		if got, want := binary.LittleEndian.Uint64(b[i:]), device.Mix64(word); got != want {
			return fmt.Errorf("at byte %d: %#016x in place of %#016x: %w", i, got, want, errdefs.ErrCorrupt)
		}
		word++
	}
	return nil
}

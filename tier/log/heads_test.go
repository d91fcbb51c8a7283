package log_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// heads is a tier that appends to several segments. Block 0 is in the first segment, blocks 2 and 3
// are in the second and third. The write of block 1 to the first segment started before those of 2
// and 3 and hangs until end.
type heads struct {
	*disk
	process *faultfs.Process
	fs      *faultfs.FS
	tr      *log.Tier
	release chan struct{}
	err     chan error // result of the Put of block 1
}

const firstSegment, thirdSegment = "seg-0000000000000001", "seg-0000000000000003"

func newHeads(t *testing.T, policy log.FsyncPolicy, also ...func(*disk)) *heads {
	t.Helper()
	h := &heads{disk: newDisk(t, policy), err: make(chan error, 1)}
	for _, change := range also {
		change(h.disk)
	}
	log.GroupBytes(&h.c, 1)
	h.c.SyncEvery = time.Hour
	h.process = h.Process()
	h.fs = faultfs.New(h.process, nil, nil)
	c := h.c
	c.FS = h.fs
	var err error
	if h.tr, err = log.Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	put(t, h.tr, h.f, tiertest.Key(0))
	h.hang("write", firstSegment, func() { h.err <- h.tr.Put(t.Context(), tiertest.Key(1), image(t, h.f, tiertest.Key(1))) })
	put(t, h.tr, h.f, tiertest.Key(2))
	if policy == log.FsyncInterval { // the header of the next group states the durable position
		if err := log.Checkpoint(h.tr); err != nil {
			t.Error(err)
		}
	}
	put(t, h.tr, h.f, tiertest.Key(3))
	if s := state(t, h.tr, tiertest.Key(1)); s == tier.Ready {
		t.Error("a block is found before it is written")
	}
	return h
}

// hang runs do in a goroutine, and returns when do hangs in an operation on the named file. end
// releases it.
func (h *heads) hang(op, name string, do func()) {
	h.Helper()
	h.release = make(chan struct{})
	there, release := make(chan struct{}), h.release
	var found sync.Once
	h.fs.Forbid(func(o, path string) error {
		if o == op && strings.HasSuffix(path, name) {
			found.Do(func() {
				close(there)
				<-release
			})
		}
		return nil
	})
	go do()
	select {
	case <-there:
	case <-time.After(testkit.Patience()):
		h.Fatal("the write did not start")
	}
}

// end releases hanging operations, which then follow the given rules.
func (h *heads) end(rules ...fault.Rule) {
	h.fs.Use(fault.New(1, rules...))
	close(h.release)
}

// die ends the process.
func (h *heads) die() {
	h.process.Kill()
	_ = h.tr.Close(context.WithoutCancel(h.Context()))
}

// Several groups are being written when the first one fails, is torn, or never ends. The other
// groups must be found and the first must not, even after later processes have opened the log.
func TestOneOfManyGroupsFails(t *testing.T) {
	torn := fault.Nth("write", 0).Partial(unix.EIO)
	for name, rules := range map[string][]fault.Rule{
		"fails":         {fault.Nth("write", 0).Fail(unix.EIO)},
		"torn":          {torn},
		"torn for good": {torn, fault.After("write", 1).Fail(unix.EIO), fault.After("truncate", 0).Fail(unix.EIO), fault.After("sync", 0).Fail(unix.EIO)},
		"crash":         {fault.Nth("write", 0).Crash()},
		"killed":        nil,
	} {
		for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
			t.Run(name+" "+policy.String(), func(t *testing.T) {
				h := newHeads(t, policy)
				if name == "killed" {
					h.process.Kill()
				}
				h.end(rules...)
				if err := <-h.err; err == nil {
					t.Error("a block was stored whose writing failed")
				}
				if s := state(t, h.tr, tiertest.Key(1)); s != tier.Absent {
					t.Errorf("a block whose writing failed is %s", s)
				}
				if name == "fails" || name == "torn" {
					put(t, h.tr, h.f, tiertest.Key(4))
				}
				h.die()
				promised := map[block.Key]bool{tiertest.Key(0): true, tiertest.Key(2): true, tiertest.Key(3): true, tiertest.Key(4): name == "fails" || name == "torn"}
				for range 2 {
					h.check(promised, keys(0, 5))
					_ = h.run(nil, false, func(tr *log.Tier) error {
						if s := state(t, tr, tiertest.Key(1)); s != tier.Absent && policy != log.FsyncNever {
							t.Errorf("a block whose writing failed is %s to the next", s)
						}
						return nil
					})
				}
			})
		}
	}
}

// A power failure loses the group whose sync hangs, but no promised block.
func TestOneOfManyGroupsIsNotSynced(t *testing.T) {
	for seed := range uint64(20) {
		h := newHeads(t, log.FsyncAlways)
		h.end()
		if err := <-h.err; err != nil {
			t.Fatal(err)
		}
		h.hang("sync", firstSegment, func() { h.err <- h.tr.Put(t.Context(), tiertest.Key(4), image(t, h.f, tiertest.Key(4))) })
		put(t, h.tr, h.f, keys(5, 7)...)
		h.PowerFail(faultfs.KeepSome(seed))
		h.end()
		if err := <-h.err; err == nil {
			t.Error("a block was stored that is not durable")
		}
		h.die()
		promised := map[block.Key]bool{tiertest.Key(5): true, tiertest.Key(6): true}
		for _, key := range keys(0, 4) {
			promised[key] = true
		}
		h.check(promised, keys(0, 7))
	}
}

// A deletion was written to an earlier position than the block that it deletes, so the block came
// back.
func TestDefectDeletionBeforeWhatItDeletes(t *testing.T) {
	for name, covered := range map[string]bool{"read from segments": false, "read from a checkpoint": true} {
		t.Run(name, func(t *testing.T) {
			h := newHeads(t, log.FsyncNever)
			h.end()
			err := <-h.err
			if covered {
				err = errors.Join(err, log.Checkpoint(h.tr))
			}
			if err = errors.Join(err, h.tr.Delete(t.Context(), tiertest.Key(2))); err != nil {
				t.Fatal(err)
			}
			h.die()
			_ = h.run(nil, false, func(tr *log.Tier) error {
				if s := state(t, tr, tiertest.Key(2)); s != tier.Absent {
					t.Errorf("a block that was deleted is %s", s)
				}
				return nil
			})
			h.check(map[block.Key]bool{tiertest.Key(0): true, tiertest.Key(1): true, tiertest.Key(3): true}, keys(0, 4))
		})
	}
}

// An old deletion was read again after its segment, and it removed a block that was stored later.
func TestDefectOldDeletionTakesANewBlock(t *testing.T) {
	d := newDisk(t, log.FsyncAlways)
	key := tiertest.Key(1)
	_ = d.run(nil, true, func(tr *log.Tier) error {
		put(t, tr, d.f, key)
		if err := tr.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
		return nil
	})
	process := d.Process()
	c, faults := d.c, faultfs.New(process, nil, nil)
	c.FS = faults
	faults.Forbid(func(op, path string) error {
		if op == "read" && strings.HasSuffix(path, firstSegment) {
			return unix.EIO
		}
		return nil
	})
	tr, err := log.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, tr, d.f, key)
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	process.Kill()
	d.check(map[block.Key]bool{key: true}, []block.Key{key})
}

// A checkpoint covered bytes that were written during its sync.
func TestDefectCheckpointCoversWhatCameLater(t *testing.T) {
	h := newHeads(t, log.FsyncInterval)
	h.end()
	if err := <-h.err; err != nil {
		t.Fatal(err)
	}
	// The first segment is synced already.
	h.hang("sync", thirdSegment, func() { h.err <- log.Checkpoint(h.tr) })
	put(t, h.tr, h.f, tiertest.Key(4))
	h.end()
	if err := <-h.err; err != nil {
		t.Fatal(err)
	}
	h.PowerFail(faultfs.KeepSynced())
	h.die()
	promised := make(map[block.Key]bool)
	for _, key := range keys(0, 4) {
		promised[key] = true
	}
	h.check(promised, keys(0, 5))
}

// GC also evicts the blocks of segments that were being appended to.
func TestCollectAfterManyAppended(t *testing.T) {
	h := newHeads(t, log.FsyncNever)
	h.end()
	if err := <-h.err; err != nil {
		t.Fatal(err)
	}
	if n, err := h.tr.GC(t.Context(), 0); n != 4 || err != nil || log.Used(h.tr) != 0 {
		t.Errorf("collect: %d of 4, %v, %d bytes are left", n, err, log.Used(h.tr))
	}
	if err := get(t, h.tr, h.f, tiertest.Key(2)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Error(err)
	}
	h.die()
}

// TestDefectNoSpaceNextToSegmentsThatAreAppendedTo checks that writes complete on a disk that has
// space only for the segments being appended to. The writer then evicts its own full segment.
func TestDefectNoSpaceNextToSegmentsThatAreAppendedTo(t *testing.T) {
	h := newHeads(t, log.FsyncNever, func(d *disk) {
		d.c.MaxBytes = 64 * d.c.SegmentBytes
		// With the fake clock the log never retries to allocate more space.
		d.c.Clock = clockwork.NewFakeClock()
		d.SetLimit(4*d.c.SegmentBytes - 4096)
	})
	h.end()
	if err := <-h.err; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	for i := 4; i < 40; i++ {
		if err := h.tr.Put(ctx, tiertest.Key(i), image(t, h.f, tiertest.Key(i))); err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
	}
	h.die()
}

// While a write hangs, a second appender writes concurrently if at least 128 KiB wait; fewer bytes
// wait for the first. With FsyncAlways all waiting blocks share the next write.
func TestEnoughThatWaitsIsWrittenConcurrently(t *testing.T) {
	for policy, concurrent := range map[log.FsyncPolicy]bool{log.FsyncAlways: false, log.FsyncInterval: true, log.FsyncNever: true} {
		t.Run(policy.String(), func(t *testing.T) {
			h := &heads{disk: newDisk(t, policy), err: make(chan error, 1)}
			h.c.SegmentBytes, h.c.SyncEvery = 1<<20, time.Hour
			h.process = h.Process()
			h.fs = faultfs.New(h.process, nil, nil)
			h.c.FS = h.fs
			var err error
			if h.tr, err = log.Open(t.Context(), h.c); err != nil {
				t.Fatal(err)
			}
			put(t, h.tr, h.f, tiertest.Key(0))
			h.hang("write", firstSegment, func() { h.err <- h.tr.Put(t.Context(), tiertest.Key(1), image(t, h.f, tiertest.Key(1))) })
			next := 2
			putBytes := func(n int64, patience time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var keys []block.Key
				var srcs []mem.Extent
				for range n/h.f.Layout.ImageBytes() + 1 {
					keys, srcs = append(keys, tiertest.Key(next)), append(srcs, image(t, h.f, tiertest.Key(next)))
					next++
				}
				errs := make([]error, len(keys))
				h.tr.PutMany(ctx, keys, srcs, errs)
				return errors.Join(errs...)
			}
			if err := putBytes(16<<10, 20*time.Millisecond); !errors.Is(err, errdefs.ErrBusy) {
				t.Errorf("little was written beside a write that hangs: %v", err)
			}
			if concurrent {
				err = putBytes(160<<10, testkit.Patience())
			} else if err = putBytes(160<<10, 20*time.Millisecond); errors.Is(err, errdefs.ErrBusy) {
				err = nil
			} else {
				err = fmt.Errorf("written beside a write that hangs, by a sync of its own: %w", err)
			}
			h.end()
			if err := errors.Join(err, <-h.err, h.tr.Close(context.WithoutCancel(t.Context()))); err != nil {
				t.Error(err)
			}
		})
	}
}

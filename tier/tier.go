package tier

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// State is the state of a block in a tier.
type State uint8

// States of a block. Only Ready is a hit.
const (
	Absent  State = iota // not in the tier
	Filling              // being written
	Ready                // complete and published
	Failed               // the fill failed, or the bytes were found corrupt
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Filling:
		return "filling"
	case Ready:
		return "ready"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// Tier stores the block images of a store. All have one identity and layout, or one for each page
// group (block.Formats): then the key identifies the group. All methods are safe for concurrent
// use.
type Tier interface {
	// Name returns the name of the tier in stores and metrics: "cache", "file", "log", or "window"
	// for a transient cache.
	Name() string
	// Lookup sets states[i] to the state of keys[i]. The slices have equal lengths.
	Lookup(ctx context.Context, keys []block.Key, states []State) error
	// Retain pins the blocks of keys in order, up to the first that is not Ready, and returns the
	// number of pins. A pinned block is neither evicted nor overwritten until Release. A key that
	// occurs twice is pinned twice. Checking and pinning a block is atomic. An error describes the
	// block after the last pinned one. The pins stay in that case too.
	Retain(ctx context.Context, keys []block.Key) (int, error)
	// Release undoes one Retain of each key. It panics if a key is not retained.
	Release(keys []block.Key)
	// Get reads the block's image into dst, host memory of the image's length, and verifies it.
	// After Get returns, with or without error, dst is not written any more. It returns ErrNotFound
	// for a miss. It returns ErrCorrupt for a failed check: then the block has been set aside and
	// dst is undefined.
	Get(ctx context.Context, key block.Key, dst mem.Extent) error
	// Put verifies the image in src and stores it. It returns when the block is as durable as the
	// tier's policy requires. src must not change until then. If the block exists, Put checks it as
	// Get does. It makes a sound block durable and returns nil. It sets a damaged block aside and
	// writes the new one. If another Put writes the block, Put waits for it. It returns ErrNoSpace,
	// ErrReadOnly, or ErrBusy if all space is pinned until ctx ends. A failed Put leaves nothing
	// behind.
	Put(ctx context.Context, key block.Key, src mem.Extent) error
	// Delete removes the block. It returns ErrNotFound if there is none, and ErrBusy if it is
	// retained.
	Delete(ctx context.Context, key block.Key) error
	// Close stops background work and releases resources. Later calls return ErrClosed. If ctx ends
	// while operations are in progress, Close returns ErrBusy. Then these may still use the memory
	// passed to them, and Close may be called again.
	Close(ctx context.Context) error
}

// Stats has counters since the tier was opened, and its current contents.
type Stats struct {
	Blocks, Bytes                int64 // stored now
	CapacityBytes                int64 // zero if unbounded
	Hits                         int64 // blocks found by Get, Read and OpenReady, but not by Retain
	Misses                       int64 // of Retain, Get and Read
	Puts, Evictions              int64
	Corrupt                      int64 // blocks found corrupt and set aside
	Replaced                     int64 // corrupt or unreadable blocks that a Put replaced
	Errors                       int64 // failed operations, without misses and aborted fills
	ReadBytes, WrittenBytes      int64
	Retained, Quarantined, Swept int64 // pins now; files set aside; temporary files removed at open
	Newer                        int64 // blocks of another format version: misses that stay
	OthersBytes                  int64 // part of CapacityBytes used or needed by other identities
	Yielded                      int64 // Evictions while other identities share CapacityBytes
	Reclaimed                    int64 // blocks removed of identities that no process used
	Waiting                      int64 // Puts that wait for space now
	Stuck                        int64 // blocks that could not be removed when space was last freed
	// Paused is the reason why the tier does not write for lack of space, or why the last write
	// failed. It is nil after a successful write. It is also set while a full disk keeps the tier
	// below CapacityBytes.
	Paused error
	// Failure is the last error of background work, such as counting blocks and freeing space. It
	// is nil after a success.
	Failure error
}

// Keeper is a Tier that can report durable blocks without reading them.
type Keeper interface {
	// Kept sets kept[i] if a Put of keys[i] would find the block sound and durable by the tier's
	// policy, and do nothing. False means that this is not known. The slices have equal lengths.
	Kept(ctx context.Context, keys []block.Key, kept []bool) error
}

// ReadOnlyTier is a Tier that can be opened for reading only. Then Put and Delete return
// ErrReadOnly, and a store does not count on the tier for durability.
type ReadOnlyTier interface {
	ReadOnly() bool
}

// TransientTier is a SlotTier that can be opened as a window. A window drops a block when its last
// pin ends.
type TransientTier interface {
	Transient() bool
}

// Reader is a Tier that can read without verifying checksums, for callers that verify them.
type Reader interface {
	// Read is Get without verification of the shards. It verifies length, header, identity and key.
	// The caller verifies every shard by the header's checksums before use. If one is wrong it
	// calls Get, which sets the block aside.
	Read(ctx context.Context, key block.Key, dst mem.Extent) error
}

// Errors of DirectReader that do not describe the block.
var (
	// ErrNotDirect means that the tier does not read this block directly. Read shows its state. It
	// comes with ErrNotSupported if the reason is the block's form.
	ErrNotDirect = errors.New("the block is not read directly")
	// ErrDirectFailed means that a transfer failed, or was refused. Read may succeed.
	ErrDirectFailed = errors.New("direct storage failed")
)

// NotDirect returns the error of ReadDirect for a block that Read must examine: the cause of ctx,
// or ErrNotDirect. It hides the class of err, except ErrNotSupported, since Read finds the fault
// again and counts it.
func NotDirect(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errdefs.ErrNotSupported):
		return fmt.Errorf("%w: %w", ErrNotDirect, err)
	}
	return fmt.Errorf("%w: %v", ErrNotDirect, err) //nolint:errorlint // its class is that of Read
}

// DirectReader is a Tier that can read blocks to memory of a device, without host memory.
type DirectReader interface {
	// ReadDirect is Reader.Read to dst, memory of a device of the image's length. It writes the
	// shards, and leaves the header's bytes as they are. It appends the checksums in the header to
	// sums; they are block.SumTree. Errors wrap ErrNotDirect or ErrDirectFailed, or are those of a
	// tier that is closed, or of ctx. If quiesced is not nil, dst may be written until it is
	// closed.
	ReadDirect(ctx context.Context, key block.Key, dst mem.Extent, sums []uint64) (_ []uint64, quiesced <-chan struct{}, err error)
}

// DirectWriter is a Tier that can store blocks from memory of a device, without host memory.
type DirectWriter interface {
	// CanPutDirect returns nil, or why PutDirect stores no block of the tier's formats. The result
	// is always the same.
	CanPutDirect() error
	// PutDirect is Put of a block with the sealed header head, and with its shards in src, memory
	// of a device of the image's length, after the header's bytes. It does not verify the shards.
	// Errors are those of Put, or wrap ErrNotDirect or ErrDirectFailed: then Put may succeed. If
	// quiesced is not nil, src may be read until it is closed.
	PutDirect(ctx context.Context, key block.Key, head []byte, src mem.Extent) (quiesced <-chan struct{}, err error)
}

// Admitter is a SlotTier that decides whether to keep a block that is read from a tier below.
type Admitter interface {
	// Admit reports whether the block was requested, by Admit or as a block of the cache, not long
	// before. Otherwise it notes the request, and the caller need not bring the block.
	Admit(key block.Key) bool
}

// ManyPutter is a Tier that stores many blocks in less time than single Puts.
type ManyPutter interface {
	// PutMany stores srcs[i] as a Put of keys[i], and sets errs[i] to its result. Blocks fail
	// independently. A key may occur twice. If the slices differ in length, all of errs wrap
	// ErrInvalid. PutMany returns when all the Puts would have.
	PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error)
}

// Statter is a Tier with statistics. Every tier of kvlane implements it.
type Statter interface {
	Stats() Stats
}

// SlotTier is a Tier with blocks in slots of host memory. Devices can reach the slots, so a stream
// copies directly between them and GPU pages. If the context of Open or Reserve has already ended,
// they make one attempt without waiting.
type SlotTier interface {
	Tier
	// Slots returns the array of slots.
	Slots() mem.Slots
	// LimitRetained bounds the slots that Retain pins at a time. Retain returns ErrBusy at the
	// first block beyond. There is no bound before the first call.
	LimitRetained(slots int)
	// OpenReady opens many blocks without waiting. It sets states[i] to the state of keys[i]. It
	// sets slots[i] to the pinned slot of a Ready block, else to nil. The slices have equal
	// lengths. After an error nothing is pinned.
	OpenReady(ctx context.Context, keys []block.Key, slots []Slot, states []State) error
	// Open pins a Ready block for reading and returns its slot. It waits while another caller fills
	// the block, until ctx ends. It returns ErrNotFound if the block is absent or its fill failed.
	// Then the caller may call Reserve.
	Open(ctx context.Context, key block.Key) (Slot, error)
	// ReleaseSlots releases slots of this tier in less time than single Releases.
	ReleaseSlots(slots []Slot)
	// Reserve takes a free or evictable slot and makes the block Filling. It returns ErrExists if
	// the block is Ready or Filling, and ErrBusy if all slots are pinned until ctx ends.
	Reserve(ctx context.Context, key block.Key) (Fill, error)
}

// Slot is a pinned block. It has one owner.
type Slot interface {
	Index() uint32
	Extent() mem.Extent
	// Sums returns the checksums of the block's shards, as they were in its header when the block
	// became Ready. Later changes of the slot's memory do not affect them. It returns nil if they
	// are not block.SumTree. The caller must not modify them.
	Sums() []uint64
	// Corrupt reports that the slot's bytes failed a check. The block becomes Failed and is dropped
	// with its last pin.
	Corrupt(cause error)
	// Release unpins the block. A second Release has no effect.
	Release()
}

// Fill is a block that its owner fills. Publish, Abort or Quarantine ends it. Later calls have no
// effect.
type Fill interface {
	Index() uint32
	Extent() mem.Extent
	// Publish makes the block Ready and returns it pinned. The slot must hold the whole image. If
	// Publish fails it aborts the fill.
	Publish() (Slot, error)
	// Abort makes the block Failed with cause, wakes the callers that wait for it, and frees the
	// slot. No hardware may write the slot any more; if that is not certain, call Quarantine.
	Abort(cause error)
	// Quarantine is Abort for a slot that hardware may still write. The slot is not used again
	// until quiesced is closed.
	Quarantine(cause error, quiesced <-chan struct{})
}

package tier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// State is the state of a block in a tier.
type State uint8

// The states of a block. Only Ready is a hit.
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
// group (block.Formats), in which case the key identifies the group. All methods are safe for
// concurrent use.
type Tier interface {
	// Name returns the name of the tier in stores and metrics: "cache", "file", "log", or "window"
	// for a transient cache.
	Name() string
	// Lookup sets states[i] to the state of keys[i]. The slices have equal lengths.
	Lookup(ctx context.Context, keys []block.Key, states []State) error
	// Retain pins the blocks of keys in order, up to the first that is not Ready, and returns the
	// number of pins. A pinned block is neither evicted nor overwritten until Release. A key that
	// occurs twice is pinned twice. Checking and pinning a block is atomic. An error concerns the
	// block after the last pinned one; the pins stay.
	Retain(ctx context.Context, keys []block.Key) (int, error)
	// Release undoes one Retain of each key. It panics if a key is not retained.
	Release(keys []block.Key)
	// Get reads the block's image into dst, host memory of the image's length, and verifies it.
	// After Get has returned, with or without error, dst is no longer written. It returns
	// ErrNotFound for a miss. It returns ErrCorrupt for a failed check: the block is then in
	// quarantine and dst is undefined.
	Get(ctx context.Context, key block.Key, dst mem.Extent) error
	// Put verifies the image in src and stores it. It returns when the block is as durable as the
	// tier's policy requires. src must not change until then. If the block exists, Put checks it
	// like Get: it makes an intact block durable and returns nil, and replaces a damaged block. If
	// another Put is writing the block, Put waits for it. It returns ErrNoSpace, ErrReadOnly, or
	// ErrBusy if all space is pinned until ctx ends. A failed Put leaves no partial block.
	Put(ctx context.Context, key block.Key, src mem.Extent) error
	// Delete removes the block. It returns ErrNotFound if there is none, and ErrBusy if it is
	// retained or pinned by Pinner.
	Delete(ctx context.Context, key block.Key) error
	// Close stops background work and releases resources. Later calls return ErrClosed. If ctx ends
	// while operations are running, Close returns ErrBusy. These operations may then still access
	// the memory passed to them, and Close may be called again.
	Close(ctx context.Context) error
}

// Stats has counters since the tier was opened, and its current contents.
type Stats struct {
	Blocks, Bytes                int64 // currently stored
	CapacityBytes                int64 // zero if unbounded
	Hits                         int64 // blocks found by Get, Read and OpenReady, but not by Retain
	Misses                       int64 // misses of Retain, Get and Read
	Puts, Evictions              int64
	Corrupt                      int64 // blocks found corrupt and moved to quarantine
	Replaced                     int64 // corrupt or unreadable blocks replaced by a Put
	Errors                       int64 // failed operations, except misses and aborted fills
	ReadBytes, WrittenBytes      int64
	Retained, Quarantined, Swept int64 // current pins; files or slots in quarantine; temporary files removed at open
	Pinned, PinnedBytes          int64 // blocks pinned by Pinner
	Newer                        int64 // blocks of another format version, which are misses and stay
	OthersBytes                  int64 // part of CapacityBytes that other identities use or need
	Yielded                      int64 // Evictions while other identities share CapacityBytes
	Reclaimed                    int64 // blocks of unused identities that were removed
	Waiting                      int64 // Puts that currently wait for space
	Stuck                        int64 // blocks that could not be removed when space was last freed
	// Paused is the reason why the tier does not write for lack of space, or the error of the last
	// write. It is nil after a successful write. It is also set while a full disk keeps the tier
	// below CapacityBytes.
	Paused error
	// Failure is the last error of background work, such as counting blocks and freeing space. It
	// is nil after a success.
	Failure error
	// Overrun is the longest time from the deadline of a request to a block server to its end.
	Overrun time.Duration
}

// ErrUnavailable is an error of Put for a block server or an object store that is slow, full or
// gone. A store leaves the
// block out of the tier, and the dump does not fail, because KV can be computed again.
var ErrUnavailable = errors.New("the server is not available")

// Keeper is a Tier that can report durable blocks without reading them.
type Keeper interface {
	// Kept sets kept[i] if a Put of keys[i] would find the block intact and durable under the
	// tier's policy, and would write nothing. False means that this is unknown. The slices have
	// equal lengths.
	Kept(ctx context.Context, keys []block.Key, kept []bool) error
}

// Pinner is a Tier that can pin blocks persistently. A pinned block is neither evicted nor removed,
// also after a restart, until Unpin. It counts toward the tier's bound. Its pin goes with the block
// if the block is found damaged. Both methods are safe for concurrent use.
type Pinner interface {
	// Pin pins the blocks of keys. When it returns nil, blocks and pins are durable. It returns
	// ErrNotFound if a block is missing, and ErrNoSpace if the blocks exceed the limit: half of the
	// tier's bound. A pinned block stays pinned, and one Unpin ends its pin. After an error, no
	// block is pinned, or only those in some directories of a tier with several.
	Pin(ctx context.Context, keys []block.Key) error
	// Unpin removes the pins of keys durably. It ignores blocks that are not pinned.
	Unpin(ctx context.Context, keys []block.Key) error
}

// ReadOnlyTier is a Tier that can be opened read-only. Put and Delete then return ErrReadOnly, and
// a store does not count on the tier for durability.
type ReadOnlyTier interface {
	ReadOnly() bool
}

// TransientTier is a SlotTier that can be opened as a window, which drops a block when its last pin
// ends.
type TransientTier interface {
	Transient() bool
}

// Reader is a Tier that can read without verifying checksums, for callers that verify them.
type Reader interface {
	// Read reads the block like Get, but does not verify the shards. It verifies length, header,
	// identity and key. The caller must verify every shard with the header's checksums before use.
	// If a shard is wrong, the caller calls Get, which moves the block to quarantine.
	Read(ctx context.Context, key block.Key, dst mem.Extent) error
}

// The errors of DirectReader that do not concern the block.
var (
	// ErrNotDirect means that the tier does not read this block directly. Read returns the state of
	// the block. The error also wraps ErrNotSupported if the form of the block is the reason.
	ErrNotDirect = errors.New("the block is not read directly")
	// ErrDirectFailed means that a transfer failed or was refused. Read may succeed.
	ErrDirectFailed = errors.New("direct storage failed")
)

// NotDirect converts an error of ReadDirect for a block that Read must examine. It returns the
// cause of ctx if ctx has ended, and otherwise ErrNotDirect with the text of err. It wraps only
// ErrNotSupported, because Read will find and count other faults.
func NotDirect(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errdefs.ErrNotSupported):
		return fmt.Errorf("%w: %w", ErrNotDirect, err)
	}
	return fmt.Errorf("%w: %v", ErrNotDirect, err) //nolint:errorlint // its class is that of Read
}

// DirectReader is a Tier that can read blocks into device memory without host memory.
type DirectReader interface {
	// ReadDirect reads a block like Reader.Read into dst, device memory of the image's length. It
	// writes the shards, but not the bytes of the header. It appends the checksums in the header,
	// which are block.SumTree, to sums. Errors wrap ErrNotDirect or ErrDirectFailed, or are those
	// of a closed tier or of ctx. If quiesced is not nil, dst may still be written until it is
	// closed.
	ReadDirect(ctx context.Context, key block.Key, dst mem.Extent, sums []uint64) (_ []uint64, quiesced <-chan struct{}, err error)
}

// DirectWriter is a Tier that can store blocks from device memory without host memory.
type DirectWriter interface {
	// CanPutDirect returns nil, or the reason why PutDirect cannot store blocks of the tier's
	// formats. The result never changes.
	CanPutDirect() error
	// PutDirect stores a block like Put. src is device memory with its sealed image, which
	// PutDirect does not verify. written is false if the tier had the block already. Errors are
	// those of Put, or wrap ErrNotDirect or ErrDirectFailed, after which Put may succeed. If
	// quiesced is not nil, src may still be read until it is closed.
	PutDirect(ctx context.Context, key block.Key, src mem.Extent) (written bool, quiesced <-chan struct{}, err error)
}

// Admitter is a SlotTier that decides whether to keep a block that is read from a tier below.
type Admitter interface {
	// Admit reports whether the block was recently requested, by Admit or as a cached block.
	// Otherwise it records the request, and the caller need not store the block in the cache.
	Admit(key block.Key) bool
}

// ManyPutter is a Tier that stores many blocks in less time than by single Puts.
type ManyPutter interface {
	// PutMany stores srcs[i] like a Put of keys[i], and sets errs[i] to its result. Blocks fail
	// independently. A key may occur twice. If the slices differ in length, all errs wrap
	// ErrInvalid. PutMany returns when the last block is done.
	PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error)
}

// Statter is a Tier with statistics. Every tier of kvlane implements it.
type Statter interface {
	Stats() Stats
}

// SlotTier is a Tier with blocks in slots of host memory. Devices can access the slots, so that
// streams copy directly between them and GPU pages. If the context of Open or Reserve has already
// ended, they make one attempt without waiting.
type SlotTier interface {
	Tier
	// Slots returns the array of slots.
	Slots() mem.Slots
	// LimitRetained bounds the number of slots that Retain pins at a time. Retain returns ErrBusy
	// at the first block that exceeds it. There is no bound before the first call.
	LimitRetained(slots int)
	// OpenReady opens many blocks without waiting. It sets states[i] to the state of keys[i]. It
	// sets slots[i] to the pinned slot of a Ready block, and to nil otherwise. The slices have
	// equal lengths. After an error nothing is pinned.
	OpenReady(ctx context.Context, keys []block.Key, slots []Slot, states []State) error
	// Open pins a Ready block for reading and returns its slot. While another caller fills the
	// block, it waits until ctx ends. It returns ErrNotFound if the block is absent or its fill
	// failed; the caller may then call Reserve.
	Open(ctx context.Context, key block.Key) (Slot, error)
	// ReleaseSlots releases slots of this tier in less time than single Releases.
	ReleaseSlots(slots []Slot)
	// Reserve reserves a free or evictable slot and makes the block Filling. It returns ErrExists
	// if the block is Ready or Filling, and ErrBusy if all slots are pinned until ctx ends.
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

// Fill is a block that its owner is filling. Publish, Abort or Quarantine ends it. Later calls have
// no effect.
type Fill interface {
	Index() uint32
	Extent() mem.Extent
	// Publish makes the block Ready and returns it pinned. The slot must hold the whole image. If
	// Publish fails, it aborts the fill.
	Publish() (Slot, error)
	// Abort makes the block Failed with cause, wakes the callers that wait for it, and frees the
	// slot. Hardware must no longer write to the slot; if that is not certain, call Quarantine.
	Abort(cause error)
	// Quarantine ends the fill like Abort, for a slot to which hardware may still write. The slot
	// is not used again until quiesced is closed.
	Quarantine(cause error, quiesced <-chan struct{})
}

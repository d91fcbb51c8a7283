package tier

import (
	"context"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
)

// State is where a block stands in a tier.
type State uint8

// The states of a block. Lookup answers with hits only for Ready.
const (
	Absent  State = iota // not here
	Filling              // somebody is writing it
	Ready                // complete and published
	Failed               // its filling failed, or its bytes were found corrupt
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

// Tier keeps the block images of a store: of one identity and layout, or of one for each of its page groups (block.Formats), where a
// key says of which. All methods are safe for concurrent use.
type Tier interface {
	// Name is the tier's name in pipelines and metrics: "cache", "file"; "window" is where blocks pass that no cache keeps.
	Name() string
	// Lookup sets states[i] to the state of keys[i]; the slices have equal lengths.
	Lookup(ctx context.Context, keys []block.Key, states []State) error
	// Retain pins the blocks of keys in their order, up to the first that is not Ready, and returns how many it has pinned:
	// until Release they are neither evicted nor rewritten. Pins count, those of a key that is named twice too. Check and pin
	// of a block are one step. An error says why the block after them could not be pinned; they are pinned all the same.
	Retain(ctx context.Context, keys []block.Key) (int, error)
	// Release undoes one Retain of each of keys. It panics without one: that is a bug.
	Release(keys []block.Key)
	// Get reads the block's image into dst, host memory as long as the image, and verifies it. When it returns, with or
	// without error, nothing writes dst any more. Errors: ErrNotFound for a miss, ErrCorrupt for a failed check (the
	// block has been set aside; dst is undefined), else the cause.
	Get(ctx context.Context, key block.Key, dst mem.Extent) error
	// Put stores the image in src, which it verifies to carry this key, and returns when it is durable by the tier's
	// policy; until then src must not change. A block already here is looked at as Get would: a whole one is left as it is, made
	// durable if it is not known to be, and Put returns nil; a damaged one is set aside and written anew. One that another Put
	// is writing is waited for. Errors: ErrNoSpace, ErrReadOnly, ErrBusy when every place is pinned until
	// ctx ends. A failed Put leaves nothing behind.
	Put(ctx context.Context, key block.Key, src mem.Extent) error
	// Delete removes the block. ErrNotFound where there is none, ErrBusy where it is retained.
	Delete(ctx context.Context, key block.Key) error
	// Close stops the tier's own work and frees what it holds. Using the tier afterwards gives ErrClosed. If ctx ends while
	// something is still under way, the error wraps ErrBusy, what is under way may still use the memory that it was given, and
	// Close may be called again.
	Close(ctx context.Context) error
}

// Stats counts what a tier did since it was opened, and what it holds.
type Stats struct {
	Blocks, Bytes                int64 // held now
	CapacityBytes                int64 // zero where unbounded
	Hits                         int64 // blocks found by Get, Read and OpenReady; leases do not count
	Misses                       int64 // of Retain, Get and Read
	Puts, Evictions              int64
	Corrupt                      int64 // blocks found corrupt and set aside
	Replaced                     int64 // blocks found corrupt or unreadable by a Put, which wrote them anew
	Errors                       int64 // operations that failed for another reason than a miss; not fillings, which their fillers give up
	ReadBytes, WrittenBytes      int64
	Retained, Quarantined, Swept int64 // pins held now; files set aside; temporary files removed at open
	Newer                        int64 // blocks met that are of another format version: misses, and left as they are
	OthersBytes                  int64 // of CapacityBytes, held or needed by other identities
	Yielded                      int64 // Evictions while other identities share CapacityBytes
	Reclaimed                    int64 // blocks removed of identities that no process used
	Waiting                      int64 // Puts that wait for room now
	Stuck                        int64 // blocks that could not be removed when room was last made
	// Paused is why the tier does not write, or the last write failed, for want of room; nil once one has succeeded. It is also why a
	// full disk keeps the tier below CapacityBytes; then nil once more was written than was removed for the disk.
	Paused error
	// Failure is what the tier's own work, counting its blocks and making room, last failed for; nil where that went well.
	Failure error
}

// Keeper is a Tier that may know, without reading them, that blocks are whole and durable.
type Keeper interface {
	// Kept sets kept[i] where the tier knows that a Put of keys[i] would find the block whole and as durable as the tier's
	// policy promises, and so would do nothing. The slices have equal lengths. Not to know is no error.
	Kept(ctx context.Context, keys []block.Key, kept []bool) error
}

// ReadOnlyTier is a Tier that may have been opened for reading only. Then Put and Delete always return ErrReadOnly, and nobody
// expects blocks to become durable there.
type ReadOnlyTier interface {
	ReadOnly() bool
}

// TransientTier is a SlotTier that may have been opened as a window: then a block is forgotten once nothing pins it.
type TransientTier interface {
	Transient() bool
}

// Reader is a Tier that reads without summing what it reads, for who sums the bytes anyway.
type Reader interface {
	// Read is Get but for the shards, which are not verified: length, header, identity and key are. Whoever calls it verifies
	// every shard by the header's checksums before anybody uses it, and where one is wrong asks Get, which sets the block aside.
	Read(ctx context.Context, key block.Key, dst mem.Extent) error
}

// ManyPutter is a Tier that stores many blocks for less than as many Puts take.
type ManyPutter interface {
	// PutMany puts the image in srcs[i] as Put of keys[i] would, and sets errs[i] to what that would return: one block's failure is no
	// other's. A key may be named twice. The slices have equal lengths, else all of errs wrap ErrInvalid. It returns when Put of each would have.
	PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error)
}

// Statter is a Tier that counts. Every tier of kvlane does.
type Statter interface {
	Stats() Stats
}

// SlotTier is a Tier whose blocks lie in slots of host memory that devices can reach, so that a stream copies straight
// between them and GPU pages. All slots are of one mem.Slots array. Open and Reserve with a context that has already ended
// try once without waiting: what can be had at once is had, and only what would have to be waited for is refused.
type SlotTier interface {
	Tier
	// Slots returns the array that slots index.
	Slots() mem.Slots
	// LimitRetained bounds the slots that Retain may pin at a time, a slot counting once: at a block beyond them Retain stops
	// with ErrBusy. Unlimited until it is called.
	LimitRetained(slots int)
	// OpenReady is Open, without waiting, for many: it sets states[i] to the state of keys[i], and slots[i] to the pinned slot
	// of a block that is Ready and to nil for others. The slices have equal lengths. After an error nothing is pinned.
	OpenReady(ctx context.Context, keys []block.Key, slots []Slot, states []State) error
	// Open pins a Ready block for reading and returns its slot. It waits while another is filling the block, until ctx
	// ends, and returns ErrNotFound if the block is absent or its filling failed (the caller may then Reserve).
	Open(ctx context.Context, key block.Key) (Slot, error)
	// ReleaseSlots releases each of slots, which are this tier's, for less than as many Releases take.
	ReleaseSlots(slots []Slot)
	// Reserve takes a free or evictable slot and makes the block Filling. ErrExists when the block is Ready or
	// Filling; ErrBusy when every slot is pinned until ctx ends.
	Reserve(ctx context.Context, key block.Key) (Fill, error)
}

// Slot is a pinned block. One owner.
type Slot interface {
	Index() uint32
	Extent() mem.Extent
	// Sums returns the checksums of the block's shards, as its header had them when the block became Ready: what comes of the
	// slot's memory later does not change them. Nil where they are not block.SumTree. Not to be written.
	Sums() []uint64
	// Corrupt reports that the slot's bytes failed their check: the block becomes Failed and is dropped once unpinned.
	Corrupt(cause error)
	// Release unpins the block. A second Release does nothing.
	Release()
}

// Fill is a block that its owner is filling. Exactly one of Publish and Abort ends it; a second end does nothing.
type Fill interface {
	Index() uint32
	Extent() mem.Extent
	// Publish makes the block Ready and returns it pinned. The slot holds its whole image. If the tier refuses, it aborts.
	Publish() (Slot, error)
	// Abort makes the block Failed, wakes who waits for it with cause, and frees the slot. Nothing may write the slot
	// any more: where that cannot be promised, call Quarantine.
	Abort(cause error)
	// Quarantine is Abort for a slot that hardware may still write: it is not used again until quiesced is closed.
	Quarantine(cause error, quiesced <-chan struct{})
}

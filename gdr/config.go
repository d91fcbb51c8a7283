package gdr

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// Provider names whose NICs are used.
type Provider string

// The providers.
const (
	// IBV has the NICs of the machine, through libibverbs.
	IBV Provider = "ibv"
	// Soft has NICs in software, "soft0" and on, whose bytes a copy stream moves. They are there to try the path
	// without hardware; it is then reported as stream.PathNICSoft. Under auto nothing takes them.
	Soft Provider = "soft"
)

// Config selects NICs and says how they are used. The zero value is the default.
type Config struct {
	Provider Provider // default IBV
	// NICs are the names of those to use, by this engine's device; copies are striped over them. Empty: the nearest one by
	// PCIe and NUMA node, or Count of the nearest.
	NICs []string
	// NICsByDevice takes the place of NICs in a configuration that engines of several devices share: the names for each
	// device, by its index. An engine whose device has none there is not opened, which is ErrInvalid.
	NICsByDevice [][]string
	// Count is how many NICs to use at most, of those that are equally near, where none is named. Default 1.
	Count int
	// Port of each NIC, from 1. Zero: the first that is active.
	Port int
	// GIDIndex is the entry of the port's table of addresses, 0 to 255. Nil: the best, RoCE v2 and IPv4 first.
	GIDIndex *int
	// MTU in bytes, from 256 to 4096 in powers of two. Zero: the port's active one.
	MTU int
	// QueuePairs on each NIC, of each stream, 256 at most. Zero is the stream's default.
	QueuePairs int
	// RegisterOnUse registers memory that a copy names and that was not given to Register. That holds the copy up for milliseconds,
	// and the memory must be given to Unregister before it is freed all the same.
	// Under auto NICs that cannot register it are not used any more.
	RegisterOnUse bool
}

// Bounds of a Config: more than any host has, and than any NIC is faster by.
const (
	maxNICs       = 64
	maxQueuePairs = 256
)

// Validate reports everything wrong at once.
func (r *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch r.Provider {
	case "", IBV, Soft:
	default:
		bad("unknown RDMA provider %q: it is ibv or soft", r.Provider)
	}
	if len(r.NICs) > 0 && r.NICsByDevice != nil {
		bad("NICs are named both for this device and by device")
	}
	for _, names := range append([][]string{r.NICs}, r.NICsByDevice...) {
		for i, name := range names {
			switch {
			case name == "":
				bad("NIC %d of those named has no name", i)
			case slices.Contains(names[:i], name):
				bad("NIC %q is named twice", name)
			}
		}
	}
	if r.Count < 0 || r.Count > maxNICs {
		bad("number of NICs %d is not 0 to %d", r.Count, maxNICs)
	}
	if r.Port < 0 || r.Port > 255 {
		bad("port %d of a NIC is not one of 1 to 255", r.Port)
	}
	if r.GIDIndex != nil && (*r.GIDIndex < 0 || *r.GIDIndex > 255) {
		bad("GID index %d is not one of 0 to 255", *r.GIDIndex)
	}
	switch r.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		bad("MTU %d is not one of 256, 512, 1024, 2048 and 4096", r.MTU)
	}
	if r.QueuePairs < 0 || r.QueuePairs > maxQueuePairs {
		bad("number of queue pairs %d is not 0 to %d", r.QueuePairs, maxQueuePairs)
	}
	return errors.Join(errs...)
}

// Named reports whether NICs are asked for by their names.
func (r *Config) Named() bool { return len(r.NICs) > 0 || r.NICsByDevice != nil }

// Choice is a NIC, and why it is the one to use.
type Choice struct {
	Name   string
	Reason string // where it is, which of its ports and addresses is used, and how it reaches the device's memory
}

package gdr

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// Provider is a source of NICs.
type Provider string

// The providers.
const (
	// IBV has the NICs of the machine, through libibverbs.
	IBV Provider = "ibv"
	// Soft has NICs in software, named "soft0", "soft1" and so on. A copy stream moves their bytes.
	// They serve to try the path without hardware; stream.PathNICSoft reports them. The auto mode
	// never uses them.
	Soft Provider = "soft"
)

// Config selects and configures NICs. The zero value is the default.
type Config struct {
	Provider Provider `config:"provider"` // default IBV
	// NICs are the names of the NICs for this engine's device; copies are striped over them. Empty:
	// the nearest NIC by PCIe and NUMA node, or Count of the nearest.
	NICs []string `config:"nics"`
	// NICsByDevice replaces NICs in a configuration shared by engines of several devices: the names
	// for each device, by its index. It is ErrInvalid to open an engine whose device has no names.
	NICsByDevice [][]string `config:"nics_by_device"`
	// Count is the number of NICs to use of those that are equally near, if none is named. Default
	// 1.
	Count int `config:"count"`
	// Port is the port of each NIC, from 1. Zero: the first active one.
	Port int `config:"port"`
	// GIDIndex is the index in the port's address table, 0 to 255. Nil: the best entry; RoCE v2 and
	// IPv4 are preferred.
	GIDIndex *int `config:"gid_index"`
	// MTU is in bytes, a power of two from 256 to 4096. Zero: the port's active MTU.
	MTU int `config:"mtu"`
	// QueuePairs is the number for each NIC and stream, at most 256. Zero: the stream's default.
	QueuePairs int `config:"queue_pairs"`
	// RegisterOnUse registers memory that a copy names and Register was not called for. The copy
	// takes milliseconds longer. The caller must still pass the memory to Unregister before it is
	// freed. In auto mode, NICs that cannot register it are no longer used.
	RegisterOnUse bool `config:"register_on_use"`
}

// Limits of a Config, above any useful value.
const (
	maxNICs       = 64
	maxQueuePairs = 256
)

// Validate reports all errors.
func (r *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	switch r.Provider {
	case "", IBV, Soft:
	default:
		bad("unknown RDMA provider %q: must be ibv or soft", r.Provider)
	}
	if len(r.NICs) > 0 && r.NICsByDevice != nil {
		bad("NICs are given both for this device and by device")
	}
	for _, names := range append([][]string{r.NICs}, r.NICsByDevice...) {
		for i, name := range names {
			switch {
			case name == "":
				bad("NIC %d of the list has no name", i)
			case slices.Contains(names[:i], name):
				bad("NIC %q is given twice", name)
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

// Named reports whether NICs are selected by name.
func (r *Config) Named() bool { return len(r.NICs) > 0 || r.NICsByDevice != nil }

// Choice is a selected NIC with the reason.
type Choice struct {
	Name   string
	Reason string // its location, its port and address, and its access to the device's memory
}

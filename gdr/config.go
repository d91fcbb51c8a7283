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
	// IBV uses the machine's NICs through libibverbs.
	IBV Provider = "ibv"
	// Soft uses software NICs named "soft0", "soft1" and so on. Their bytes are moved by a copy
	// stream. They are for testing the path without hardware; completions report
	// stream.PathNICSoft. The auto mode never uses them.
	Soft Provider = "soft"
)

// Config selects and configures NICs. The zero value is the default.
type Config struct {
	Provider Provider `config:"provider"` // default IBV
	// NICs are the names of the NICs for this engine's device. Copies are striped over them. Empty:
	// the NIC nearest by PCIe and NUMA node, or Count of the nearest NICs.
	NICs []string `config:"nics"`
	// NICsByDevice replaces NICs if engines of several devices share a configuration. It lists the
	// names for each device, by index. Opening an engine whose device has no names returns
	// ErrInvalid.
	NICsByDevice [][]string `config:"nics_by_device"`
	// Count is the maximum number of equally near NICs to use if no names are given. Default 1.
	Count int `config:"count"`
	// Port is the port of each NIC, from 1. Zero: the first active port.
	Port int `config:"port"`
	// GIDIndex is the index in the port's GID table, 0 to 255. Nil: the best entry, preferring RoCE
	// v2 and IPv4.
	GIDIndex *int `config:"gid_index"`
	// MTU is the path MTU in bytes, a power of two from 256 to 4096. Zero: the port's active MTU.
	MTU int `config:"mtu"`
	// QueuePairs is the number of queue pairs for each NIC and stream, at most 256. Zero: the
	// stream's default.
	QueuePairs int `config:"queue_pairs"`
	// RegisterOnUse registers memory when a copy uses it and it is not registered. Such a copy
	// takes some milliseconds longer. The caller must still call Unregister before it frees the
	// memory. In auto mode, NICs that fail to register memory are no longer used.
	RegisterOnUse bool `config:"register_on_use"`
}

// Limits of a Config.
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

// Choice is a selected NIC and the reason for its selection.
type Choice struct {
	Name   string
	Reason string // location, port, address, and how it accesses the device's memory
}

package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
)

// Defaults of Options.
const (
	DefaultLanes     = 4
	DefaultPartBytes = 4 << 20
	DefaultStall     = 5 * time.Second
	DefaultTimeout   = 30 * time.Second
	DefaultLease     = 15 * time.Second
	DefaultConns     = 1024
	DefaultBatches   = 1024
	DefaultNotices   = 1024
)

// Options are the options of an Engine. The zero value transfers host memory between processes of
// this host.
type Options struct {
	// Listen is the address for control and data connections. There is no authentication: every
	// process that can connect can read and write registered memory. Default 127.0.0.1:0.
	Listen string
	// Advertise is the address that other engines connect to. Default: the listener's address,
	// which then must not be unspecified.
	Advertise string
	// Store maps names of segments to engines. Nil: a segment is opened by the address of its
	// engine, "host:port/name".
	Store metadata.Store
	// Lease is the time after which the store removes a segment whose location was not renewed.
	// Default DefaultLease.
	Lease time.Duration

	// Device is the device whose memory is transferred. It also provides pinned memory for staging.
	// Nil: host memory only.
	Device device.Device
	// Copy copies to and from Device's memory. The caller closes it after the engine.
	Copy stream.Stream
	// ChunkBytes and Chunks are the length of a staging chunk for device memory and their number
	// for each direction. They are used for transfers over sockets. Zero: the defaults of package
	// wire.
	ChunkBytes int64
	Chunks     int
	// Share exports registered memory to processes of this host. Importer imports their memory for
	// Device. The caller closes both after the engine. Nil: memory is not shared.
	Share    *share.Server
	Importer *share.Importer

	// NICs transfer data to engines with NICs by RDMA. The caller closes them after the engine.
	// Optional.
	NICs *rail.NICs
	// NICsOptional permits other paths for memory that the NICs refuse, for example above a limit.
	// Stats has the number of refusals and the last cause.
	NICsOptional bool

	// Lanes is the maximum number of data connections to one engine, and of queue pairs to one
	// segment. If either side has more NICs than that, each NIC still gets one queue pair. Default
	// DefaultLanes.
	Lanes int
	// PartBytes is the approximate length of a request over a socket. Default DefaultPartBytes.
	PartBytes int64
	// Stall is the maximum time without progress before a busy connection fails. Default
	// DefaultStall.
	Stall time.Duration
	// Timeout is the default of SubmitOptions.Timeout. Default DefaultTimeout.
	Timeout time.Duration
	// Conns is the maximum number of connections from other engines. Default DefaultConns.
	Conns int
	// Batches is the maximum number of unresolved batches. Default DefaultBatches.
	Batches int
	// Notices is the maximum number of notifications that are queued for Engine.Receive. Further
	// ones are refused, and their senders retry. Default DefaultNotices.
	Notices int
}

// Validate reports every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
		}
	}
	check(o.Lanes >= 0 && o.Conns >= 0 && o.Batches >= 0 && o.Notices >= 0, "%d lanes, %d connections, %d batches, %d notifications",
		o.Lanes, o.Conns, o.Batches, o.Notices)
	check(o.PartBytes >= 0 && o.PartBytes <= maxLength, "parts of %d bytes", o.PartBytes)
	check(o.Lease >= 0 && o.Stall >= 0 && o.Timeout >= 0, "a lease of %v, a stall of %v, a timeout of %v", o.Lease, o.Stall, o.Timeout)
	check((o.Device == nil) == (o.Copy == nil), "a device and its stream must be given together")
	addr := cmp.Or(o.Advertise, o.Listen)
	for _, a := range []string{o.Advertise, o.Listen} {
		_, _, err := net.SplitHostPort(a)
		check(a == "" || err == nil, "%q is not HOST:PORT, an IPv6 address in brackets: [::1]:7200", a)
	}
	check(!unspecified(addr), "%q is not an address that other engines can reach: listen at one, or advertise one", addr)
	return errors.Join(errs...)
}

// unspecified reports whether an address has no host or an unspecified IP address.
func unspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

func (o Options) withDefaults() Options {
	o.Listen = cmp.Or(o.Listen, "127.0.0.1:0")
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.Lanes = cmp.Or(o.Lanes, DefaultLanes)
	o.PartBytes = cmp.Or(o.PartBytes, DefaultPartBytes)
	o.Stall = cmp.Or(o.Stall, DefaultStall)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Conns = cmp.Or(o.Conns, DefaultConns)
	o.Batches = cmp.Or(o.Batches, DefaultBatches)
	o.Notices = cmp.Or(o.Notices, DefaultNotices)
	return o
}

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

// Options are the options of an Engine. The zero value moves host memory between processes of this
// host.
type Options struct {
	// Listen is the address on which the engine listens for control and data. There is no
	// authentication: every process that reaches it can read and write registered memory. Default
	// 127.0.0.1:0.
	Listen string
	// Advertise is the address that other engines connect to. Default: the address of the listener,
	// which must not be unspecified then.
	Advertise string
	// Store has the locations of segments. Nil: a segment is opened by the address of its engine,
	// "host:port/name".
	Store metadata.Store
	// Lease is the time after which the store removes the location of a segment that this engine
	// does not renew. Default DefaultLease.
	Lease time.Duration

	// Device has the device memory that is registered or copied, and pinned memory to stage it in.
	// Nil: host memory only.
	Device device.Device
	// Copy copies to and from Device's memory. The caller owns it and closes it after the engine.
	Copy stream.Stream
	// ChunkBytes and Chunks are the length and number, for each direction, of the chunks that
	// device memory is staged in on its way to sockets. Zero: the defaults of package wire.
	ChunkBytes int64
	Chunks     int
	// Share exports registered memory to processes of this host. Importer imports theirs for
	// Device. The caller owns both. Nil: no memory is shared.
	Share    *share.Server
	Importer *share.Importer

	// NICs carry data to engines with NICs by RDMA. The caller owns them and closes them after the
	// engine. Nil: none.
	NICs *rail.NICs
	// NICsOptional lets memory that the NICs refuse, for example above a limit, use other paths.
	// Stats counts the refusals and has the last cause.
	NICsOptional bool

	// Lanes is the number of data connections to one engine, and of queue pairs to one segment.
	// Each NIC of either side has at least one queue pair. Default DefaultLanes.
	Lanes int
	// PartBytes is the approximate length of a request over a socket. Default DefaultPartBytes.
	PartBytes int64
	// Stall is the time without progress after which a busy connection fails. Default DefaultStall.
	Stall time.Duration
	// Timeout is the default of SubmitOptions.Timeout. Default DefaultTimeout.
	Timeout time.Duration
	// Conns is the maximum number of connections from other engines. Default DefaultConns.
	Conns int
	// Batches is the maximum number of unresolved batches. Default DefaultBatches.
	Batches int
	// Notices is the maximum number of notifications that wait for Engine.Receive. Further ones are
	// refused, and their senders retry. Default DefaultNotices.
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

// unspecified reports whether an address has no host or the unspecified one.
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

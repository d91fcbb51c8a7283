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

// Options say how an Engine is opened. The zero value moves host memory between processes of this host.
type Options struct {
	// Listen is where the engine listens, for control and data. Whoever reaches it may read and write what is registered: there is no
	// authentication. Default 127.0.0.1:0.
	Listen string
	// Advertise is the address by which others reach it. Default: that of the listener, which must be one then.
	Advertise string
	// Store says where segments are. Nil: a segment is opened by its engine's address, "host:port/name".
	Store metadata.Store
	// Lease is for how long the store keeps what this engine has put there and does not renew. Default DefaultLease.
	Lease time.Duration

	// Device has the device memory that is registered or copied, and pinned memory to stage it in. Nil: host memory only.
	Device device.Device
	// Copy copies to and from Device's memory. It stays the caller's, and outlives the engine.
	Copy stream.Stream
	// ChunkBytes and Chunks, each way, are of the memory that device memory is staged in on its way to sockets. Zero: package wire's defaults.
	ChunkBytes int64
	Chunks     int
	// Share exports registered memory to processes of this host, and Importer imports theirs, for Device. Both stay the caller's. Nil:
	// everything goes by sockets.
	Share    *share.Server
	Importer *share.Importer

	// NICs carry what goes to engines that have some too, by RDMA. They stay the caller's, and outlive the engine. Nil: there are none.
	NICs *rail.NICs
	// NICsOptional says that nobody asked for them: what they refuse, memory above a limit for example, goes by other paths. Stats counts that
	// and says why.
	NICsOptional bool

	// Lanes is how many connections carry data to one engine, and queue pairs to one segment: of those each NIC of either side has one at
	// least. Default DefaultLanes.
	Lanes int
	// PartBytes is how much of a batch one request over a socket moves, about. Default DefaultPartBytes.
	PartBytes int64
	// Stall is for how long a connection may get nothing done that has something to do. Default DefaultStall.
	Stall time.Duration
	// Timeout is for how long a batch may take that does not say. Default DefaultTimeout.
	Timeout time.Duration
	// Conns bounds the connections that others have to this engine. Default DefaultConns.
	Conns int
	// Batches bounds how many batches are unresolved. Default DefaultBatches.
	Batches int
	// Notices bounds how many notifications wait for Engine.Receive: others are refused, and tried again. Default DefaultNotices.
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
	check((o.Device == nil) == (o.Copy == nil), "a device and its stream go together")
	addr := cmp.Or(o.Advertise, o.Listen)
	for _, a := range []string{o.Advertise, o.Listen} {
		_, _, err := net.SplitHostPort(a)
		check(a == "" || err == nil, "%q is not HOST:PORT, an IPv6 address in brackets: [::1]:7200", a)
	}
	check(!unspecified(addr), "%q is no address by which others reach this engine: listen at one, or advertise one", addr)
	return errors.Join(errs...)
}

// unspecified reports whether an address has no host, or that of all there are.
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

package rdma

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Endpoint is the data that a peer needs to connect to a queue pair. The two processes exchange it
// over another connection.
type Endpoint struct {
	QPNum uint32
	PSN   uint32 // packet sequence number of the first packet that this queue pair sends, 24 bits
	GID   GID
	LID   uint16
	// maximum MTU of this queue pair's port; 0: unknown
	MTU MTU
	// maximum number of concurrent RDMA reads that this queue pair serves
	RDepth uint8
}

// ConnectOptions are the options of a connection. The zero value has the defaults.
type ConnectOptions struct {
	Port     int    // default: 1
	GIDIndex int    // index in the port's GID table
	Access   Access // access that the peer gets; default: AccessRemoteWrite | AccessRemoteRead
	// MTU is the maximum MTU. Default: that of the port. The connection uses the smaller MTU of the
	// two sides.
	MTU MTU
	// PSN is the packet sequence number of the first packet to send, 24 bits.
	PSN uint32
	// AckTimeout is the time to wait for an acknowledgement before a retry. Default: 67 ms, code
	// 14.
	AckTimeout time.Duration
	// RetryCount is the number of retransmissions without an acknowledgement, 1 to 7. Default: 6.
	// With 7, rdma_rxe retries forever and never reports a missing peer.
	RetryCount uint8
	// RNRRetry is the number of retries if the peer has no receive posted: 1 to 6, or 7 for no
	// limit. Default: 7.
	RNRRetry uint8
	// RNRTimer is the delay that this side asks its peer to wait before such a retry. Default: 0.64
	// ms, code 12.
	RNRTimer     time.Duration
	HopLimit     uint8 // default: 64
	TrafficClass uint8
	ServiceLevel uint8
}

func (o *ConnectOptions) setDefaults() {
	setDefault(&o.Port, 1)
	setDefault(&o.Access, AccessRemoteWrite|AccessRemoteRead)
	setDefault(&o.AckTimeout, AckTimeout(14))
	setDefault(&o.RetryCount, 6)
	setDefault(&o.RNRRetry, 7)
	setDefault(&o.RNRTimer, RNRTimer(12))
	setDefault(&o.HopLimit, 64)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// LocalEndpoint returns the endpoint of q, a queue pair of d. It returns ErrBroken if the port is
// not active.
func LocalEndpoint(d Device, q QP, o ConnectOptions) (Endpoint, error) {
	o.setDefaults()
	port, err := d.QueryPort(o.Port)
	if err != nil {
		return Endpoint{}, fmt.Errorf("describe queue pair %d: %w", q.Num(), err)
	}
	if port.State != PortActive {
		return Endpoint{}, fmt.Errorf("describe queue pair %d: port %d of %s is %s: %w", q.Num(), o.Port, d.Info().Name, port.State, errdefs.ErrBroken)
	}
	gid, err := d.QueryGID(o.Port, o.GIDIndex)
	if err != nil {
		return Endpoint{}, fmt.Errorf("describe queue pair %d: %w", q.Num(), err)
	}
	mtu := port.ActiveMTU
	if o.MTU != 0 {
		mtu = min(mtu, o.MTU)
	}
	return Endpoint{
		QPNum: q.Num(), PSN: o.PSN, GID: gid.GID, LID: port.LID, MTU: mtu, RDepth: depth(d.Info().MaxQPRDAtomic),
	}, nil
}

// depth caps n at the maximum of the 8-bit attribute.
func depth(n int) uint8 { return uint8(min(n, 255)) }

// Connect moves q, a queue pair of d in QPSReset, to QPSRTS and connects it to remote: the endpoint
// of a peer, or q's own LocalEndpoint for a loopback. o must equal the options passed to
// LocalEndpoint. Connect permits as many outstanding RDMA reads as both devices support. On error,
// q is in an intermediate state; the caller must move it to QPSReset before a retry.
func Connect(d Device, q QP, o ConnectOptions, remote Endpoint) error {
	o.setDefaults()
	if o.MTU == 0 {
		port, err := d.QueryPort(o.Port)
		if err != nil {
			return fmt.Errorf("connect queue pair %d: %w", q.Num(), err)
		}
		o.MTU = port.ActiveMTU
	}
	if remote.MTU != 0 {
		o.MTU = min(o.MTU, remote.MTU)
	}
	info := d.Info()
	a := QPAttr{
		Port: o.Port, Access: o.Access,
		Address: Address{
			GID: remote.GID, GIDIndex: o.GIDIndex, LID: remote.LID,
			HopLimit: o.HopLimit, TrafficClass: o.TrafficClass, ServiceLevel: o.ServiceLevel,
		},
		PathMTU: o.MTU, DestQPNum: remote.QPNum, RQPSN: remote.PSN,
		MaxDestRDAtomic: depth(info.MaxQPRDAtomic), MinRNRTimer: RNRTimerCode(o.RNRTimer),
		SQPSN: o.PSN, MaxRDAtomic: min(depth(info.MaxQPInitRDAtomic), remote.RDepth),
		Timeout: AckTimeoutCode(o.AckTimeout), RetryCount: o.RetryCount, RNRRetry: o.RNRRetry,
	}
	for _, a.State = range []QPState{QPSInit, QPSRTR, QPSRTS} {
		if err := q.Modify(a); err != nil {
			return fmt.Errorf("connect queue pair %d to %d at %s: to %s: %w", q.Num(), remote.QPNum, remote.GID, a.State, err)
		}
	}
	return nil
}

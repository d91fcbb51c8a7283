package rdma

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Endpoint is what a peer has to know to connect to a queue pair; the two sides exchange theirs by other means.
type Endpoint struct {
	QPNum  uint32
	PSN    uint32 // of the first packet that this side sends, 24 bits
	GID    GID
	LID    uint16
	MTU    MTU   // the largest that this side takes; 0: it does not say
	RDepth uint8 // RDMA reads that this side answers at once
}

// ConnectOptions say how a queue pair is connected. The zero value asks for the defaults.
type ConnectOptions struct {
	Port     int    // default: 1
	GIDIndex int    // index in the port's GID table
	Access   Access // what the peer may do; default: AccessRemoteWrite | AccessRemoteRead
	MTU      MTU    // the largest of this side, default: the port's; the path's is the smaller of the two sides'
	PSN      uint32 // of the first packet that this side sends; 24 bits
	// AckTimeout is how long to wait for an answer before trying again. Default: 67 ms, code 14.
	AckTimeout time.Duration
	// RetryCount is how often to try again without an answer, 1 to 7. Default: 6, since rdma_rxe takes 7 as without end, and a
	// peer that is gone would never be given up.
	RetryCount uint8
	// RNRRetry is how often to try again when the peer has no receive posted: 1 to 6, and 7 without end. Default: 7.
	RNRRetry uint8
	// RNRTimer is how long the peer shall wait before it does that. Default: 0.64 ms, code 12.
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

// LocalEndpoint returns what the peer of q, a queue pair of d, has to know. ErrBroken where the port is not active.
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

// depth fits a device's limit into the field that attributes have for it.
func depth(n int) uint8 { return uint8(min(n, 255)) }

// Connect takes q, a queue pair of d in QPSReset, to QPSRTS, connected to remote: a peer's, or its own LocalEndpoint for a
// loopback. o must be what LocalEndpoint was given. It keeps as many RDMA reads outstanding as both devices take. Where it
// fails, q is in some state between; Modify to QPSReset before the next try.
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

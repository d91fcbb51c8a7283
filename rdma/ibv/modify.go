package ibv

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// Attribute masks of each step of a reliable connection, as required by ibv_modify_qp(3).
const (
	maskInit = ibverbs.MaskState | ibverbs.MaskPKeyIndex | ibverbs.MaskPort | ibverbs.MaskAccessFlags
	maskRTR  = ibverbs.MaskState | ibverbs.MaskAV | ibverbs.MaskPathMTU | ibverbs.MaskDestQPN | ibverbs.MaskRQPSN |
		ibverbs.MaskMaxDestRDAtomic | ibverbs.MaskMinRNRTimer
	maskRTS = ibverbs.MaskState | ibverbs.MaskSQPSN | ibverbs.MaskMaxQPRDAtomic | ibverbs.MaskTimeout |
		ibverbs.MaskRetryCount | ibverbs.MaskRNRRetry
	maskQuery = maskInit | maskRTR | maskRTS | ibverbs.MaskCap
)

// Limits of attributes by the protocol.
const (
	max24Bits = 1<<24 - 1
	maxTimer  = 31
	maxRetry  = 7
)

// resolveTries is the maximum number of attempts to move a queue pair to QPSRTR that fail with
// ETIMEDOUT. In this step the kernel resolves the peer's link address, and it gives up after a
// second if packets are lost. The queue pair is then unchanged.
const resolveTries = 4

// Modify implements rdma.QP.
func (q *QP) Modify(a rdma.QPAttr) error {
	fail := func(err error) error {
		return fmt.Errorf("move %s to %s: %w", q.what, a.State, err)
	}
	if err := q.beginCall(); err != nil {
		return fail(err)
	}
	defer q.endCall()
	// The lock covers the native call so that recorded attributes have the order of the steps.
	q.modify.Lock()
	defer q.modify.Unlock()
	from := rdma.QPState(q.state.Load())
	if err := checkStep(from, a.State); err != nil {
		return fail(err)
	}
	next := q.attr
	native := ibverbs.QPAttr{State: int32(a.State)}
	mask, err := q.set(&native, &next, &a)
	if err != nil {
		return fail(err)
	}
	errno := q.pd.dev.api.ModifyQP(q.native, &native, mask)
	for try := 1; a.State == rdma.QPSRTR && errno == unix.ETIMEDOUT && try < resolveTries; try++ {
		q.pd.dev.retries.Add(1)
		errno = q.pd.dev.api.ModifyQP(q.native, &native, mask)
	}
	if err := check(errno, "ibv_modify_qp", "qp=%d from=%s to=%s mask=%#x", q.num, from, a.State, mask); err != nil {
		return fail(err)
	}
	next.State = a.State
	q.attr = next
	q.state.Store(uint32(a.State))
	return nil
}

// checkStep returns an error for a transition that the specification does not permit, even if the
// library or a device accepts it.
func checkStep(from, to rdma.QPState) error {
	ok := false
	switch to {
	case rdma.QPSReset:
		ok = true
	case rdma.QPSInit:
		ok = from == rdma.QPSReset
	case rdma.QPSRTR:
		ok = from == rdma.QPSInit
	case rdma.QPSRTS:
		ok = from == rdma.QPSRTR
	case rdma.QPSErr:
		ok = from != rdma.QPSReset
	default: // other states
	}
	if !ok {
		return fmt.Errorf("no transition from %s: %w", from, errdefs.ErrInvalid)
	}
	return nil
}

// set writes the attributes for the step to a.State to native and the resulting attributes to next.
// It returns the attribute mask of the step.
func (q *QP) set(native *ibverbs.QPAttr, next, a *rdma.QPAttr) (int32, error) {
	switch a.State {
	case rdma.QPSReset:
		*next = rdma.QPAttr{}
	case rdma.QPSInit:
		next.Port, next.PKeyIndex, next.Access = a.Port, a.PKeyIndex, a.Access
		native.Port, native.PKeyIndex, native.AccessFlags = uint8(a.Port), uint16(a.PKeyIndex), uint32(a.Access)
		return maskInit, errors.Join(within("as port", a.Port, 1, q.pd.dev.info.Ports), within("as key index", a.PKeyIndex, 0, 1<<16-1))
	case rdma.QPSRTR:
		next.Address, next.PathMTU, next.DestQPNum, next.RQPSN = a.Address, a.PathMTU, a.DestQPNum, a.RQPSN
		next.MaxDestRDAtomic, next.MinRNRTimer = a.MaxDestRDAtomic, a.MinRNRTimer
		native.AH = addressOf(&a.Address, uint8(next.Port))
		native.PathMTU, native.DestQPNum, native.RQPSN = int32(a.PathMTU), a.DestQPNum, a.RQPSN
		native.MaxDestRDAtomic, native.MinRNRTimer = a.MaxDestRDAtomic, a.MinRNRTimer
		return maskRTR, errors.Join(
			within("as path MTU", int(a.PathMTU), int(rdma.MTU256), int(rdma.MTU4096)),
			within("as queue pair number", int(a.DestQPNum), 0, max24Bits),
			within("as packet sequence number", int(a.RQPSN), 0, max24Bits),
			within("as receiver-not-ready timer", int(a.MinRNRTimer), 0, maxTimer),
			within("as GID index", a.Address.GIDIndex, 0, 255),
			within("as service level", int(a.Address.ServiceLevel), 0, 15),
		)
	case rdma.QPSRTS:
		next.SQPSN, next.MaxRDAtomic, next.Timeout = a.SQPSN, a.MaxRDAtomic, a.Timeout
		next.RetryCount, next.RNRRetry = a.RetryCount, a.RNRRetry
		native.SQPSN, native.MaxRDAtomic, native.Timeout = a.SQPSN, a.MaxRDAtomic, a.Timeout
		native.RetryCount, native.RNRRetry = a.RetryCount, a.RNRRetry
		return maskRTS, errors.Join(
			within("as packet sequence number", int(a.SQPSN), 0, max24Bits),
			within("as timeout", int(a.Timeout), 0, maxTimer),
			within("as retry count", int(a.RetryCount), 0, maxRetry),
			within("as receiver-not-ready retry count", int(a.RNRRetry), 0, maxRetry),
		)
	default: // QPSErr keeps the attributes
	}
	return ibverbs.MaskState, nil
}

func addressOf(a *rdma.Address, port uint8) ibverbs.AHAttr {
	ah := ibverbs.AHAttr{DLID: a.LID, SL: a.ServiceLevel, Port: port}
	if a.GID != (rdma.GID{}) {
		ah.IsGlobal = 1
		ah.DGID, ah.SGIDIndex, ah.HopLimit, ah.TrafficClass = a.GID, uint8(a.GIDIndex), a.HopLimit, a.TrafficClass
	}
	return ah
}

// Query implements rdma.QP. The state is read from the device. The attributes are those set by
// Modify, because devices return advanced sequence numbers.
func (q *QP) Query() (rdma.QPInfo, error) {
	if err := q.beginCall(); err != nil {
		return rdma.QPInfo{}, err
	}
	defer q.endCall()
	var native ibverbs.QPAttr
	var init ibverbs.QPInitAttr
	if err := check(q.pd.dev.api.QueryQP(q.native, &native, maskQuery, &init), "ibv_query_qp", "qp=%d", q.num); err != nil {
		return rdma.QPInfo{}, fmt.Errorf("query %s: %w", q.what, err)
	}
	q.modify.Lock()
	defer q.modify.Unlock()
	attr := q.attr
	attr.State = rdma.QPState(native.State)
	return rdma.QPInfo{Attr: attr, Caps: q.caps}, nil
}

package rdma

import (
	"fmt"
	"net/netip"
	"strings"
)

// GID is a port's global identifier: 16 bytes in network order. On Ethernet it is an IPv6 address.
type GID [16]byte

// String returns the GID in IPv6 notation: "fe80::…", "::ffff:10.0.0.1".
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// GIDType is an enum ibv_gid_type: the network protocol of a GID.
type GIDType uint8

// The GID types.
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

// String returns the type's name as in sysfs, or the name in the verbs if sysfs has none.
func (t GIDType) String() string {
	return enumName("GID_TYPE", []string{"IB", "RoCE v1", "RoCE v2"}, uint64(t))
}

// MTU is an enum ibv_mtu: the maximum payload of a packet.
type MTU uint8

// The MTUs.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the payload in bytes, or zero for an invalid value.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String returns the payload in bytes.
func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// PortState is an enum ibv_port_state.
type PortState uint8

// The port states.
const (
	PortNOP PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// String returns the verbs' name without its prefix.
func (s PortState) String() string {
	return enumName("PORT", []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}, uint64(s))
}

// LinkLayer is the IBV_LINK_LAYER of a port.
type LinkLayer uint8

// The link layers.
const (
	LinkLayerUnspecified LinkLayer = iota
	LinkLayerInfiniBand
	LinkLayerEthernet
)

// String returns the link layer's name in sysfs.
func (l LinkLayer) String() string {
	return enumName("LINK_LAYER", []string{"unspecified", "InfiniBand", "Ethernet"}, uint64(l))
}

// Access is an enum ibv_access_flags: the permitted operations on a memory region, or through a
// queue pair.
type Access uint32

// The access flags. Local reads are always permitted.
const (
	AccessLocalWrite   Access = 1 << 0 // local receives and RDMA reads may write the region
	AccessRemoteWrite  Access = 1 << 1 // requires AccessLocalWrite
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3 // requires AccessLocalWrite
	// AccessRelaxedOrdering permits PCIe relaxed ordering. Devices without the feature ignore it.
	AccessRelaxedOrdering Access = 1 << 20
)

// String lists the flags by the verbs' names without their prefix.
func (a Access) String() string {
	return flagNames([]flag{
		{uint64(AccessLocalWrite), "LOCAL_WRITE"},
		{uint64(AccessRemoteWrite), "REMOTE_WRITE"},
		{uint64(AccessRemoteRead), "REMOTE_READ"},
		{uint64(AccessRemoteAtomic), "REMOTE_ATOMIC"},
		{uint64(AccessRelaxedOrdering), "RELAXED_ORDERING"},
	}, uint64(a))
}

// QPState is an enum ibv_qp_state.
type QPState uint8

// The states of a queue pair.
const (
	QPSReset QPState = iota
	QPSInit
	QPSRTR // ready to receive
	QPSRTS // ready to send
	QPSSQD // send queue drains
	QPSSQE // send queue in error
	QPSErr
	QPSUnknown
)

// String returns the verbs' name without its prefix.
func (s QPState) String() string {
	return enumName("QPS", []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN"}, uint64(s))
}

// WROpcode is an enum ibv_wr_opcode: the operation of a request in the send queue.
type WROpcode uint8

// The opcodes of work requests.
const (
	WRRDMAWrite WROpcode = iota // write local bytes to RemoteAddr
	// WRRDMAWriteWithImm is WRRDMAWrite that also completes a receive of the peer with Imm.
	WRRDMAWriteWithImm
	WRSend        // send local bytes to a posted receive of the peer
	WRSendWithImm // like WRSend; the receive's completion has Imm
	WRRDMARead    // read bytes at RemoteAddr into local memory
)

// String returns the verbs' name without its prefix.
func (o WROpcode) String() string {
	return enumName("WR", []string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ"}, uint64(o))
}

// SendFlags is an enum ibv_send_flags.
type SendFlags uint8

// The flags of work requests.
const (
	SendFence     SendFlags = 1 << iota // start after all earlier reads have finished
	SendSignaled                        // report a completion
	SendSolicited                       // the completion at the peer is a solicited one
	SendInline                          // the payload is SendWR.Inline
)

// String lists the flags by the verbs' names without their prefix.
func (f SendFlags) String() string {
	return flagNames([]flag{
		{uint64(SendFence), "FENCE"},
		{uint64(SendSignaled), "SIGNALED"},
		{uint64(SendSolicited), "SOLICITED"},
		{uint64(SendInline), "INLINE"},
	}, uint64(f))
}

// WCOpcode is an enum ibv_wc_opcode: the operation that completed.
type WCOpcode uint8

// The opcodes of completions.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1 // with or without immediate data
	WCRDMARead        WCOpcode = 2
	WCRecv            WCOpcode = 1 << 7
	WCRecvRDMAWithImm WCOpcode = 1<<7 + 1
)

// String returns the verbs' name without its prefix.
func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	default:
		return enumName("WC", []string{"SEND", "RDMA_WRITE", "RDMA_READ"}, uint64(o))
	}
}

// WCFlags is an enum ibv_wc_flags.
type WCFlags uint8

// WCWithImm means that WC.Imm is valid.
const WCWithImm WCFlags = 1 << 1

// WCStatus is an enum ibv_wc_status: the result of a work request.
type WCStatus uint8

// The statuses of completions.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
)

// String returns the verbs' name without its prefix.
func (s WCStatus) String() string {
	return enumName("WC", []string{
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
		"LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",
		"REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
		"TM_ERR", "TM_RNDV_INCOMPLETE",
	}, uint64(s))
}

// EventType is an enum ibv_event_type.
type EventType uint8

// The asynchronous events.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

// String returns the verbs' name without its prefix.
func (e EventType) String() string {
	return enumName("EVENT", []string{
		"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR", "DEVICE_FATAL",
		"PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED",
		"CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
	}, uint64(e))
}

func enumName(kind string, names []string, v uint64) string {
	if v < uint64(len(names)) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

type flag struct {
	bit  uint64
	name string
}

func flagNames(flags []flag, v uint64) string {
	var set []string
	for _, f := range flags {
		if v&f.bit != 0 {
			set = append(set, f.name)
			v &^= f.bit
		}
	}
	if v != 0 {
		set = append(set, fmt.Sprintf("%#x", v))
	}
	if len(set) == 0 {
		return "none"
	}
	return strings.Join(set, "|")
}

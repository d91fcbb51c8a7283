package ibverbs

// Objects of the library: opaque addresses of its structures. They are never Go pointers.
type (
	// Device is a struct ibv_device.
	Device uintptr
	// Context is a struct ibv_context.
	Context uintptr
	// PD is a struct ibv_pd.
	PD uintptr
	// MR is a struct ibv_mr.
	MR uintptr
	// CompChannel is a struct ibv_comp_channel.
	CompChannel uintptr
	// CQ is a struct ibv_cq.
	CQ uintptr
	// QP is a struct ibv_qp.
	QP uintptr
	// SRQ is a struct ibv_srq.
	SRQ uintptr
)

// DeviceList is the result of ibv_get_device_list. Its devices are valid until it is freed. Opened
// devices remain valid.
type DeviceList struct {
	Devices []Device
	array   uintptr
}

// Bits of enum ibv_qp_attr_mask: which fields of a QPAttr are set.
const (
	MaskState           int32 = 1 << 0
	MaskAccessFlags     int32 = 1 << 3
	MaskPKeyIndex       int32 = 1 << 4
	MaskPort            int32 = 1 << 5
	MaskAV              int32 = 1 << 7
	MaskPathMTU         int32 = 1 << 8
	MaskTimeout         int32 = 1 << 9
	MaskRetryCount      int32 = 1 << 10
	MaskRNRRetry        int32 = 1 << 11
	MaskRQPSN           int32 = 1 << 12
	MaskMaxQPRDAtomic   int32 = 1 << 13
	MaskMinRNRTimer     int32 = 1 << 15
	MaskSQPSN           int32 = 1 << 16
	MaskMaxDestRDAtomic int32 = 1 << 17
	MaskCap             int32 = 1 << 19
	MaskDestQPN         int32 = 1 << 20
)

// QPTypeRC is IBV_QPT_RC, a reliable connection.
const QPTypeRC int32 = 2

// SGE is a struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a struct ibv_send_wr of a read, a write or a send. A SendChain sets the unexported
// fields.
type SendWR struct {
	WRID       uint64
	next       uintptr
	sgList     uintptr
	numSGE     int32
	Opcode     int32
	Flags      uint32
	Imm        uint32 // network byte order
	RemoteAddr uint64
	RKey       uint32
	_          [76]byte // fields of other request types
}

// RecvWR is a struct ibv_recv_wr. A RecvChain sets the unexported fields.
type RecvWR struct {
	WRID   uint64
	next   uintptr
	sgList uintptr
	numSGE int32
	_      [4]byte
}

// WC is a struct ibv_wc.
type WC struct {
	WRID         uint64
	Status       int32
	Opcode       int32
	VendorErr    uint32
	ByteLen      uint32
	Imm          uint32 // network byte order
	QPNum        uint32
	SrcQP        uint32
	Flags        uint32
	PKeyIndex    uint16
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	_            [2]byte
}

// AsyncEvent is a struct ibv_async_event. Element is a CQ, a QP, an SRQ or a port number, depending
// on the type.
type AsyncEvent struct {
	Element uintptr
	Type    int32
	_       [4]byte
}

// DeviceAttr is a struct ibv_device_attr.
type DeviceAttr struct {
	Firmware          [64]byte // zero-terminated
	NodeGUID          uint64   // network byte order
	SysImageGUID      uint64   // network byte order
	MaxMRSize         uint64
	PageSizeCap       uint64
	VendorID          uint32
	VendorPartID      uint32
	HWVersion         uint32
	MaxQP             int32
	MaxQPWR           int32
	DeviceCapFlags    uint32
	MaxSGE            int32
	MaxSGERead        int32
	MaxCQ             int32
	MaxCQE            int32
	MaxMR             int32
	MaxPD             int32
	MaxQPRDAtomic     int32
	MaxEERDAtomic     int32
	MaxResRDAtomic    int32
	MaxQPInitRDAtomic int32
	MaxEEInitRDAtomic int32
	AtomicCap         int32
	MaxEE             int32
	MaxRDD            int32
	MaxMW             int32
	MaxRawIPv6QP      int32
	MaxRawEthyQP      int32
	MaxMcastGroup     int32
	MaxPerMcastGroup  int32
	MaxTotalMcast     int32
	MaxAH             int32
	MaxFMR            int32
	MaxMapPerFMR      int32
	MaxSRQ            int32
	MaxSRQWR          int32
	MaxSRQSGE         int32
	MaxPKeys          uint16
	LocalCAACKDelay   uint8
	PhysicalPortCount uint8
}

// PortAttr is a struct ibv_port_attr.
type PortAttr struct {
	State          int32
	MaxMTU         int32
	ActiveMTU      int32
	GIDTableLen    int32
	PortCapFlags   uint32
	MaxMsgSize     uint32
	BadPKeyCounter uint32
	QKeyViolations uint32
	PKeyTableLen   uint16
	LID            uint16
	SMLID          uint16
	LMC            uint8
	MaxVLNum       uint8
	SMSL           uint8
	SubnetTimeout  uint8
	InitTypeReply  uint8
	ActiveWidth    uint8
	ActiveSpeed    uint8
	PhysState      uint8
	LinkLayer      uint8
	Flags          uint8
	PortCapFlags2  uint16
}

// GIDEntry is a struct ibv_gid_entry.
type GIDEntry struct {
	GID       [16]byte
	Index     uint32
	Port      uint32
	Type      uint32
	NetDevice uint32 // index of the interface
}

// QPCap is a struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
}

// QPInitAttr is a struct ibv_qp_init_attr.
type QPInitAttr struct {
	Context uintptr
	SendCQ  CQ
	RecvCQ  CQ
	SRQ     SRQ
	Cap     QPCap
	Type    int32
	SigAll  int32
	_       [4]byte
}

// AHAttr is a struct ibv_ah_attr, including its struct ibv_global_route.
type AHAttr struct {
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	_            [1]byte
	DLID         uint16
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     uint8
	Port         uint8
	_            [1]byte
}

// QPAttr is a struct ibv_qp_attr.
type QPAttr struct {
	State           int32
	CurState        int32
	PathMTU         int32
	PathMigState    int32
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPNum       uint32
	AccessFlags     uint32
	Cap             QPCap
	AH              AHAttr
	AltAH           AHAttr
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	SQDAsyncNotify  uint8
	SQDraining      uint8
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8
	Port            uint8
	Timeout         uint8
	RetryCount      uint8
	RNRRetry        uint8
	AltPort         uint8
	AltTimeout      uint8
	_               [1]byte
	RateLimit       uint32
	_               [4]byte
}

// SRQAttr is a struct ibv_srq_attr.
type SRQAttr struct {
	MaxWR  uint32
	MaxSGE uint32
	Limit  uint32
}

// srqInitAttr is a struct ibv_srq_init_attr.
type srqInitAttr struct {
	Context uintptr
	Attr    SRQAttr
	_       [4]byte
}

// Offsets in bytes of members of the library's structures. The public header defines them, so they
// cannot change within libibverbs.so.1.
const (
	offContextReqNotifyCQ = 104 // struct ibv_context: ops.req_notify_cq
	offContextPollCQ      = 96  // struct ibv_context: ops.poll_cq
	offContextPostSRQRecv = 168 // struct ibv_context: ops.post_srq_recv
	offContextPostSend    = 208 // struct ibv_context: ops.post_send
	offContextPostRecv    = 216 // struct ibv_context: ops.post_recv
	offContextAsyncFD     = 268 // struct ibv_context: async_fd
	offContextVectors     = 272 // struct ibv_context: num_comp_vectors
	offObjectContext      = 0   // struct ibv_qp, ibv_cq, ibv_srq: context
	offMRLKey             = 36  // struct ibv_mr: lkey
	offMRRKey             = 40  // struct ibv_mr: rkey
	offChannelFD          = 8   // struct ibv_comp_channel: fd
	offCQEntries          = 28  // struct ibv_cq: cqe
	offQPNum              = 52  // struct ibv_qp: qp_num
)

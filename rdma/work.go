package rdma

// SGE is a scatter-gather entry: Length bytes of local memory from Addr, in the memory region of
// LKey. The key of an entry with length zero is ignored.
type SGE struct {
	Addr   uint64 // relative to MRInfo.Addr
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a request for the send queue. The caller may reuse its slices when PostSend has
// returned. The device owns the memory of SGEs until the request has completed.
type SendWR struct {
	WRID       uint64 // returned in the completion
	Opcode     WROpcode
	Flags      SendFlags
	Imm        uint32 // immediate data in host byte order, for opcodes with immediate data
	RKey       uint32 // key of RemoteAddr, for reads and writes
	RemoteAddr uint64 // address of the peer's first byte; for reads and writes
	// SGEs are the local bytes in order. Writes and sends read them, reads write them.
	SGEs []SGE
	// Inline is the payload of a write or send with SendInline; then SGEs is empty. PostSend copies
	// it. It may be any Go memory of at most QPCaps.MaxInlineBytes.
	Inline []byte
}

// RecvWR is a request for a receive queue. It provides the buffer for one send, or completes for
// one immediate value.
type RecvWR struct {
	WRID uint64
	SGEs []SGE // filled in order; may be empty
}

// Bytes returns the length of the message.
func (w *SendWR) Bytes() int64 {
	if w.Flags&SendInline != 0 {
		return int64(len(w.Inline))
	}
	return sgeBytes(w.SGEs)
}

// Bytes returns the maximum length of a message that fits.
func (w *RecvWR) Bytes() int64 { return sgeBytes(w.SGEs) }

func sgeBytes(sges []SGE) int64 {
	var n int64
	for i := range sges {
		n += int64(sges[i].Length)
	}
	return n
}

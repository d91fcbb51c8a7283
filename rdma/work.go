package rdma

// SGE is a scatter-gather entry: Length bytes of local memory from Addr, in the memory region of
// LKey. An entry of no bytes is valid; its key is ignored.
type SGE struct {
	Addr   uint64 // relative to MRInfo.Addr
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a request for the send queue. Its slices may be reused when PostSend has returned. The
// device owns the memory of SGEs until the request has completed.
type SendWR struct {
	WRID       uint64 // returned in the completion
	Opcode     WROpcode
	Flags      SendFlags
	Imm        uint32 // immediate data in host byte order, for opcodes with it
	RKey       uint32 // of RemoteAddr; for reads and writes
	RemoteAddr uint64 // address of the peer's first byte; for reads and writes
	// SGEs are the local bytes in order. Writes and sends read them, reads write them.
	SGEs []SGE
	// Inline is the payload of a write or a send with SendInline, which has no SGEs. PostSend
	// copies it. It may be any Go memory, of at most QPCaps.MaxInlineBytes.
	Inline []byte
}

// RecvWR is a request for a receive queue: a buffer for one send, or a place for one immediate.
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

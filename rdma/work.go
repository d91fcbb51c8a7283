package rdma

// SGE is a scatter-gather entry: Length bytes of local memory from Addr, in the memory region of LKey. An entry of no bytes
// is valid and its key is not looked at.
type SGE struct {
	Addr   uint64 // as MRInfo.Addr counts
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a request for the send queue. Its slices may be reused as soon as PostSend has returned; the memory that SGEs
// name belongs to the device until the request has completed.
type SendWR struct {
	WRID       uint64 // comes back in the completion
	Opcode     WROpcode
	Flags      SendFlags
	Imm        uint32 // immediate data, host byte order, of the opcodes that have it
	RKey       uint32 // of RemoteAddr; of reads and writes
	RemoteAddr uint64 // where the peer's bytes start; of reads and writes
	// SGEs are the local bytes, in order: read by writes and sends, written by reads.
	SGEs []SGE
	// Inline is the payload of a write or a send with SendInline, which then has no SGEs. It is copied before PostSend
	// returns and may be any Go memory, of up to QPCaps.MaxInlineBytes.
	Inline []byte
}

// RecvWR is a request for a receive queue: a buffer for one incoming send, or a place for one incoming immediate.
type RecvWR struct {
	WRID uint64
	SGEs []SGE // written in order; may be empty
}

// Bytes returns the length of the message.
func (w *SendWR) Bytes() int64 {
	if w.Flags&SendInline != 0 {
		return int64(len(w.Inline))
	}
	return sgeBytes(w.SGEs)
}

// Bytes returns the length of the longest message that fits.
func (w *RecvWR) Bytes() int64 { return sgeBytes(w.SGEs) }

func sgeBytes(sges []SGE) int64 {
	var n int64
	for i := range sges {
		n += int64(sges[i].Length)
	}
	return n
}

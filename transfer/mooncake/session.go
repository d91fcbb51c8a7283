package mooncake

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/wire"
)

// rejectTime is the maximum time for which the rest of a rejected write is read and discarded, so
// that the sender can receive the status.
const rejectTime = 2 * time.Second

// session executes the requests of one data connection in order.
func (s *Server) session(c net.Conn, slot *wire.Slot) {
	f := newFlow(c, s.o.StallTime)
	pace := wire.NewPace(s.o.StallTime)
	out := newBufferedWriter(f)
	in := newBufferedConn(flushingReader{out})
	head := make([]byte, headerBytes)
	for {
		f.limit(s.o.IdleTime)
		f.pace = nil
		slot.Idle()
		if _, err := in.Peek(1); err != nil {
			return // the peer disconnected or was idle for too long
		}
		slot.Busy()
		f.limit(s.o.StallTime)
		f.pace = pace
		pace.Begin()
		if _, err := io.ReadFull(in, head); err != nil {
			s.malformed.Add(1)
			return
		}
		h, err := parseHeader(head)
		if err != nil {
			s.malformed.Add(1)
			f.reset()
			return
		}
		if !s.carryOut(h, f, in, out) {
			return
		}
	}
}

// carryOut executes a request and reports whether the connection can be used for another one.
func (s *Server) carryOut(h header, f *flow, in *bufferedConn, out *bufferedWriter) bool {
	if h.length == 0 || s.o.Memory.Check(h.addr, h.length) != nil {
		s.rejected.Add(1)
		s.reject(h, f, out)
		return false
	}
	var err error
	if h.op == transfer.Read {
		if h.v2 {
			err = writeStatus(out, statusOK)
		}
		if err == nil {
			err = s.o.Memory.Send(s.ctx, out, h.addr, h.length)
		}
		s.count(err, &s.reads, &s.readBytes, h.length)
	} else {
		err = s.o.Memory.Receive(s.ctx, in, h.addr, h.length)
		s.count(err, &s.writes, &s.writtenBytes, h.length)
		if err != nil && f.broken == nil { // a failure of the memory, not of the connection
			s.reject(h, f, out)
			return false
		}
		if err == nil && h.v2 {
			err = writeStatus(out, statusOK) // all bytes have arrived
		}
	}
	if err != nil {
		f.reset() // the peer must not take a partial result for a complete one
	}
	return err == nil
}

type count interface{ Add(n uint64) uint64 }

func (s *Server) count(err error, requests, bytes count, length uint64) {
	if err != nil {
		s.failed.Add(1)
		return
	}
	requests.Add(1)
	bytes.Add(length)
}

// reject sends the status of a rejected request. Version 1 has no status, so reject resets the
// connection.
func (s *Server) reject(h header, f *flow, out *bufferedWriter) {
	if !h.v2 || writeStatus(out, statusRejected) != nil || out.Flush() != nil {
		f.reset()
		return
	}
	closeGracefully(f.Conn, rejectTime)
}

func writeStatus(out *bufferedWriter, status uint64) error {
	var b [statusBytes]byte
	binary.LittleEndian.PutUint64(b[:], status)
	_, err := out.Write(b[:])
	return err
}

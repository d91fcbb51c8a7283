package mooncake

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/kvlane/kvlane/wire"
)

// rejectTime is how long the rest of a rejected write is read and thrown away, so that its sender learns why.
const rejectTime = 2 * time.Second

// session carries out the requests of one connection of data, in order.
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
			return // it has ended, or was idle for long
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

// carryOut reports whether more may follow on the connection.
func (s *Server) carryOut(h header, f *flow, in *bufferedConn, out *bufferedWriter) bool {
	if h.length == 0 || s.o.Memory.Check(h.addr, h.length) != nil {
		s.rejected.Add(1)
		s.reject(h, f, out)
		return false
	}
	var err error
	if h.op == Read {
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
		if err != nil && f.broken == nil { // the memory, not the connection
			s.reject(h, f, out)
			return false
		}
		if err == nil && h.v2 {
			err = writeStatus(out, statusOK) // the bytes are there
		}
	}
	if err != nil {
		f.reset() // a reader must not take for whole what is not
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

// reject says so in version 2, which can, and resets the connection in version 1.
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

package share

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
)

// GrantUnnamed answers the request of a process that s cannot identify, and returns the status as
// an error.
func (s *Server) GrantUnnamed(c *net.UnixConn) error {
	_, why := s.grant(c, nil, 0)
	return why.err()
}

// ReadPacket is readPacket, which also reads the last packet before the end of a connection.
var ReadPacket = readPacket

// Functions that copy and wait.
var (
	Through = through
	Moved   = moved
)

// EncodeRequest returns the request of an importer.
func EncodeRequest(id Identity) []byte { return encodeRequest(id, forMemory) }

// EncodeEnd returns the end request of an importer.
func EncodeEnd(id Identity) []byte { return encodeRequest(id, forEnd) }

// EncodeReply returns the reply of a server.
func EncodeReply(h device.Handle, length int64) []byte {
	return (&reply{status: statusOK, handle: h, length: length}).encode()
}

// Ends returns both ends of a connection between an importer and a server.
func Ends() (near, far *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, cerr := net.FileConn(f)
		conns[i], _ = c.(*net.UnixConn)
		err = errors.Join(err, cerr, f.Close())
	}
	return conns[0], conns[1], err
}

package share

import (
	"net"

	"github.com/kvlane/kvlane/device"
)

// GrantUnnamed has s answer the request of a process that it cannot name, and returns what it says.
func (s *Server) GrantUnnamed(c *net.UnixConn) error {
	_, why := s.grant(c, nil, 0)
	return why.err()
}

// Copies that are waited for.
var (
	Through = through
	Moved   = moved
)

// EncodeRequest returns what an importer sends.
func EncodeRequest(id Identity) []byte { return encodeRequest(id, forMemory) }

// EncodeEnd returns what an importer says last.
func EncodeEnd(id Identity) []byte { return encodeRequest(id, forEnd) }

// EncodeReply returns what a server answers.
func EncodeReply(h device.Handle, length int64) []byte {
	return (&reply{status: statusOK, handle: h, length: length}).encode()
}

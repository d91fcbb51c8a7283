package mooncake

import "sync/atomic"

// ServerStats are the statistics of a Server.
type ServerStats struct {
	Reads, Writes           uint64 // completed requests
	ReadBytes, WrittenBytes uint64
	Rejected                uint64 // requests for unregistered memory or without length
	Failed                  uint64 // requests that failed because the peer disconnected or stalled
	Malformed               uint64 // malformed requests on either port
	Handshakes              uint64 // handshake requests
	Notifications           uint64 // accepted notifications, included in Handshakes
	RefusedRDMA             uint64 // RDMA requests, included in Handshakes
	RefusedConnections      uint64 // connections above the limit
	AcceptFailures          uint64
	DirectoryFailures       uint64
}

type counters struct {
	reads, writes, readBytes, writtenBytes, rejected, failed, malformed, handshakes, notifications atomic.Uint64
	refusedRDMA, refusedConnections, acceptFailures, directoryFailures                             atomic.Uint64
}

// Stats returns the statistics of the server.
func (c *counters) Stats() ServerStats {
	return ServerStats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Rejected: c.rejected.Load(), Failed: c.failed.Load(), Malformed: c.malformed.Load(),
		Handshakes: c.handshakes.Load(), Notifications: c.notifications.Load(), RefusedRDMA: c.refusedRDMA.Load(),
		RefusedConnections: c.refusedConnections.Load(), AcceptFailures: c.acceptFailures.Load(), DirectoryFailures: c.directoryFailures.Load(),
	}
}

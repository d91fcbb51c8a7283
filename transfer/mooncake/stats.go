package mooncake

import "sync/atomic"

// ServerStats are what a Server has done and refused, since it began.
type ServerStats struct {
	Reads, Writes           uint64 // requests that were carried out
	ReadBytes, WrittenBytes uint64
	Rejected                uint64 // requests for memory that is not registered, or of no length
	Failed                  uint64 // requests that were begun and not carried out: peers that went away, or stalled
	Malformed               uint64 // requests that are none, on either port
	Handshakes              uint64 // requests of the handshake
	Notifications           uint64 // of those, notifications that were taken
	RefusedRDMA             uint64 // of those, for RDMA
	RefusedConnections      uint64 // over the number that may be open at a time
	AcceptFailures          uint64
	DirectoryFailures       uint64
}

type counters struct {
	reads, writes, readBytes, writtenBytes, rejected, failed, malformed, handshakes, notifications atomic.Uint64
	refusedRDMA, refusedConnections, acceptFailures, directoryFailures                             atomic.Uint64
}

// Stats returns what the server has done.
func (c *counters) Stats() ServerStats {
	return ServerStats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Rejected: c.rejected.Load(), Failed: c.failed.Load(), Malformed: c.malformed.Load(),
		Handshakes: c.handshakes.Load(), Notifications: c.notifications.Load(), RefusedRDMA: c.refusedRDMA.Load(),
		RefusedConnections: c.refusedConnections.Load(), AcceptFailures: c.acceptFailures.Load(), DirectoryFailures: c.directoryFailures.Load(),
	}
}

package telemetry

import (
	"maps"
	"slices"

	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/internal/blockhost"
)

const labelTenant = "tenant"

// BlockServer has the figures of a block server.
type BlockServer struct {
	Server        server.Stats
	RDMA          *gateway.Stats             // nil: clients use sockets only
	CapacityBytes int64                      // length of the memory
	Identities    int                        // open now
	Tenants       map[string]blockhost.Usage // by name
}

// SetBlockServer makes stats the source of the metrics of a block server; nil removes it.
func (m *Metrics) SetBlockServer(stats func() BlockServer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks = stats
}

// blockFamilies are read from a block server's own figures.
var blockFamilies = []family[*BlockServer]{
	blockFigure("kvlane_blockd_connections", "connections", Gauge, "Connections of clients.", func(s *BlockServer) int64 { return s.Server.Connections }),
	blockFigure("kvlane_blockd_accepted_connections_total", "connections", Counter, "Connections accepted.", func(s *BlockServer) int64 { return s.Server.Accepted }),
	blockFigure("kvlane_blockd_refused_total", "connections", Counter, "Connections refused or ended: no valid hello, a request that is not valid, or too many connections.", func(s *BlockServer) int64 { return s.Server.Refused }),
	blockFigure("kvlane_blockd_denied_total", "connections", Counter, "Connections whose credentials were wrong.", func(s *BlockServer) int64 { return s.Server.Denied }),
	blockFigure("kvlane_blockd_full_total", "connections", Counter, "Connections refused because of the bound of connections, in all or of a tenant.", func(s *BlockServer) int64 { return s.Server.Full }),
	blockFigure("kvlane_blockd_requests_total", "requests", Counter, "Requests served.", func(s *BlockServer) int64 { return s.Server.Requests }),
	blockFigure("kvlane_blockd_failed_entries_total", "entries", Counter, "Entries of requests that were refused or failed, other than by a miss.", func(s *BlockServer) int64 { return s.Server.FailedEntries }),
	blockFigure("kvlane_blockd_late_requests_total", "requests", Counter, "Requests whose remaining time ended before their result.", func(s *BlockServer) int64 { return s.Server.TimedOut }),
	blockFigure("kvlane_blockd_delayed_requests_total", "requests", Counter, "Requests that waited for memory for requests.", func(s *BlockServer) int64 { return s.Server.Waited }),
	blockFigure("kvlane_blockd_canceled_requests_total", "requests", Counter, "Requests that clients cancelled.", func(s *BlockServer) int64 { return s.Server.Canceled }),
	rdmaFigure("kvlane_blockd_rdma_attached_total", "connections", "Connections that attached a queue pair.", func(s *gateway.Stats) int64 { return s.Attached }),
	rdmaFigure("kvlane_blockd_rdma_denied_total", "connections", "Connections that may not attach a queue pair, because they are not authenticated.", func(s *gateway.Stats) int64 { return s.Denied }),
	rdmaFigure("kvlane_blockd_rdma_requests_total", "requests", "Requests by RDMA.", func(s *gateway.Stats) int64 { return s.Requests }),
	rdmaFigure("kvlane_blockd_rdma_failed_total", "connections", "Connections with a queue pair that ended by a request that is not valid or a failure of the NIC.", func(s *gateway.Stats) int64 { return s.Refused }),
	blockFigure("kvlane_blockd_capacity_bytes", "bytes", Gauge, "Bound of the memory.", func(s *BlockServer) int64 { return s.CapacityBytes }),
	blockFigure("kvlane_blockd_identities", "identities", Gauge, "Identities of all tenants in memory.", func(s *BlockServer) int64 { return int64(s.Identities) }),
	tenantFigure("kvlane_blockd_blocks", "blocks", Gauge, "Blocks in memory.", func(u *blockhost.Usage) int64 { return u.Blocks }),
	tenantFigure("kvlane_blockd_bytes", "bytes", Gauge, "Bytes of the blocks in memory.", func(u *blockhost.Usage) int64 { return u.Bytes }),
	tenantFigure("kvlane_blockd_unwritten_bytes", "bytes", Gauge, "Bytes of blocks that wait to be written to disk.", func(u *blockhost.Usage) int64 { return u.Unwritten }),
	tenantFigure("kvlane_blockd_leased_blocks", "blocks", Gauge, "Blocks leased now.", func(u *blockhost.Usage) int64 { return u.Leased }),
	tenantFigure("kvlane_blockd_hits_total", "blocks", Counter, "Blocks found.", func(u *blockhost.Usage) int64 { return u.Hits }),
	tenantFigure("kvlane_blockd_misses_total", "blocks", Counter, "Blocks not found.", func(u *blockhost.Usage) int64 { return u.Misses }),
	tenantFigure("kvlane_blockd_stores_total", "blocks", Counter, "Blocks stored.", func(u *blockhost.Usage) int64 { return u.Stores }),
	tenantFigure("kvlane_blockd_evictions_total", "blocks", Counter, "Blocks evicted from memory.", func(u *blockhost.Usage) int64 { return u.Evictions }),
	tenantFigure("kvlane_blockd_disk_reads_total", "blocks", Counter, "Blocks read from disk.", func(u *blockhost.Usage) int64 { return u.DiskReads }),
	tenantFigure("kvlane_blockd_disk_writes_total", "blocks", Counter, "Blocks written to disk.", func(u *blockhost.Usage) int64 { return u.DiskWrites }),
	tenantFigure("kvlane_blockd_disk_errors_total", "operations", Counter, "Failed operations on disk.", func(u *blockhost.Usage) int64 { return u.DiskErrors }),
	tenantFigure("kvlane_blockd_disk_blocks", "blocks", Gauge, "Blocks on disk, of identities in use since the start.", func(u *blockhost.Usage) int64 { return u.DiskBlocks }),
	tenantFigure("kvlane_blockd_disk_bytes", "bytes", Gauge, "Bytes of these blocks.", func(u *blockhost.Usage) int64 { return u.DiskBytes }),
	tenantFigure("kvlane_blockd_disk_evictions_total", "blocks", Counter, "Blocks removed from disk for others.", func(u *blockhost.Usage) int64 { return u.DiskEvictions }),
	tenantFigure("kvlane_blockd_disk_full_total", "operations", Counter, "Writes to a full disk, which failed or replaced older blocks.", func(u *blockhost.Usage) int64 { return u.DiskFull }),
}

func blockFigure(name, unit string, kind Type, help string, read func(*BlockServer) int64) family[*BlockServer] {
	return family[*BlockServer]{Metric{Name: name, Unit: unit, Type: kind, Help: help}, func(s *BlockServer, out emit) { out(float64(read(s))) }}
}

// rdmaFigure is a counter of a server with RDMA.
func rdmaFigure(name, unit, help string, read func(*gateway.Stats) int64) family[*BlockServer] {
	return family[*BlockServer]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *BlockServer, out emit) {
		if s.RDMA != nil {
			out(float64(read(s.RDMA)))
		}
	}}
}

func tenantFigure(name, unit string, kind Type, help string, read func(*blockhost.Usage) int64) family[*BlockServer] {
	return family[*BlockServer]{
		Metric{name, unit, kind, help, []string{labelTenant}},
		func(s *BlockServer, out emit) {
			for _, name := range slices.Sorted(maps.Keys(s.Tenants)) {
				u := s.Tenants[name]
				out(float64(read(&u)), name)
			}
		},
	}
}

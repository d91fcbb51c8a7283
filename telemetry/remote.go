package telemetry

import (
	"github.com/kvlane/kvlane/tier/remote"
)

const labelServer = "server"

// peerStatter is a tier of block servers. remote.Tier implements it.
type peerStatter interface{ PeerStats() remote.PeerStats }

// remoteFamilies are the metrics of a tier of block servers, at a client of the servers.
var remoteFamilies = []family[*remote.PeerStats]{
	remoteCounter("kvlane_remote_unavailable_total", "requests", "Requests that found a block server slow or gone, or were not sent for that reason. They are misses.", func(s *remote.PeerStats) int64 { return s.Unavailable }),
	remoteCounter("kvlane_remote_dropped_total", "blocks", "Blocks that were not written to block servers because too many writes were in progress.", func(s *remote.PeerStats) int64 { return s.Dropped }),
	remoteCounter("kvlane_remote_unanchored_total", "blocks", "Accesses of blocks without an anchor, which are placed by their own key.", func(s *remote.PeerStats) int64 { return s.Unanchored }),
	remoteCounter("kvlane_remote_lost_leases_total", "leases", "Leases that ended at the block server before they were released: its connection ended, or it was not reached in time.", func(s *remote.PeerStats) int64 { return s.LostLeases }),
	remoteCounter("kvlane_remote_list_changes_total", "changes", "Changes of the list of block servers, in DNS or etcd.", func(s *remote.PeerStats) int64 { return s.List.Changes }),
	remoteCounter("kvlane_remote_list_failures_total", "reads", "Reads of this list that failed. The last list stays.", func(s *remote.PeerStats) int64 { return s.List.Failures }),
	remoteCounter("kvlane_remote_filled_total", "blocks", "Blocks that were stored at a block server that missed them and should have them: replicas of hot runs, and blocks of servers that join or leave.", func(s *remote.PeerStats) int64 { return s.Filled }),
	{Metric{Name: "kvlane_remote_servers", Unit: "1", Type: Gauge, Help: "Block servers in the list. While there are none, all of their blocks are misses."}, func(s *remote.PeerStats, out emit) { out(float64(len(s.Servers))) }},
	serverFigure("kvlane_remote_open", "1", Gauge, "1 while no requests are sent to the block server, except for probes, because it failed.", func(s *remote.ServerStats) int64 { return flag(s.State != "closed") }),
	serverFigure("kvlane_remote_opened_total", "times", Counter, "Times that requests to the block server were stopped because it failed.", func(s *remote.ServerStats) int64 { return s.Opened }),
	serverFigure("kvlane_remote_refused_total", "requests", Counter, "Requests that were not sent meanwhile.", func(s *remote.ServerStats) int64 { return s.Refused }),
	serverFigure("kvlane_remote_probes_total", "requests", Counter, "Requests that were sent meanwhile to find out whether the block server works again.", func(s *remote.ServerStats) int64 { return s.Probes }),
	serverFigure("kvlane_remote_failures_total", "requests", Counter, "Requests that failed because the block server is slow or gone.", func(s *remote.ServerStats) int64 { return s.Failures }),
	serverFigure("kvlane_remote_timeouts_total", "requests", Counter, "Of these, requests without an answer in time.", func(s *remote.ServerStats) int64 { return s.Timeouts }),
	{
		Metric{"kvlane_remote_overrun_seconds", "seconds", Gauge, "Longest time from the deadline of a request to its end. More than 0.2 s points to a client without free CPUs.", []string{labelServer}},
		func(s *remote.PeerStats, out emit) {
			for i := range s.Servers {
				out(s.Servers[i].Overrun.Seconds(), s.Servers[i].Address)
			}
		},
	},
	serverFigure("kvlane_remote_connections_total", "connections", Counter, "Connections opened to the block server.", func(s *remote.ServerStats) int64 { return s.Client.Connections }),
	serverFigure("kvlane_remote_restarts_total", "times", Counter, "Restarts of the block server between two connections. Its blocks in memory are gone.", func(s *remote.ServerStats) int64 { return s.Client.Restarts }),
	serverFigure("kvlane_remote_retries_total", "requests", Counter, "Entries and requests that were sent again.", func(s *remote.ServerStats) int64 { return s.Client.Retries }),
	serverFigure("kvlane_remote_fences_total", "requests", Counter, "Requests that ended early, once the block server no longer accessed their memory.", func(s *remote.ServerStats) int64 { return s.Client.Fences }),
	serverFigure("kvlane_remote_rdma_batches_total", "requests", Counter, "Stores and retrieves that were sent by RDMA.", func(s *remote.ServerStats) int64 { return s.Client.Remote }),
	serverFigure("kvlane_remote_rdma_missed_total", "requests", Counter, "Stores and retrieves over the socket of a connection with RDMA, because memory is not registered or too many are in progress.", func(s *remote.ServerStats) int64 { return s.Client.RemoteMissed }),
	serverFigure("kvlane_remote_rdma_refused_total", "connections", Counter, "Connections without RDMA, because the block server or the NIC refused it.", func(s *remote.ServerStats) int64 { return s.Client.RemoteRefused }),
	serverFigure("kvlane_remote_corrupt_total", "entries", Counter, "Entries whose bytes failed their check after the transfer.", func(s *remote.ServerStats) int64 { return s.Client.Corrupt }),
}

func remoteCounter(name, unit, help string, read func(*remote.PeerStats) int64) family[*remote.PeerStats] {
	return family[*remote.PeerStats]{Metric{Name: name, Unit: unit, Type: Counter, Help: help}, func(s *remote.PeerStats, out emit) { out(float64(read(s))) }}
}

func serverFigure(name, unit string, kind Type, help string, read func(*remote.ServerStats) int64) family[*remote.PeerStats] {
	return family[*remote.PeerStats]{
		Metric{name, unit, kind, help, []string{labelServer}},
		func(s *remote.PeerStats, out emit) {
			for i := range s.Servers {
				out(float64(read(&s.Servers[i])), s.Servers[i].Address)
			}
		},
	}
}

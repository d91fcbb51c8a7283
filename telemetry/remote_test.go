package telemetry_test

import (
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/remote"
)

// peers is a tier of block servers with fixed statistics.
type peers struct{ countingTier }

func (peers) Stats() tier.Stats { return tier.Stats{} }

func (peers) PeerStats() remote.PeerStats {
	return remote.PeerStats{
		Unavailable: 21, Dropped: 22, Unanchored: 23, LostLeases: 27,
		Servers: []remote.ServerStats{{Address: "a:1", State: "closed", Failures: 24}, {Address: "b:1", State: "open", Opened: 25, Timeouts: 26}},
	}
}

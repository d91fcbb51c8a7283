package telemetry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/remote"
)

// peers is a tier of block servers with fixed statistics.
type peers struct{ countingTier }

func (peers) Stats() tier.Stats { return tier.Stats{} }

func (peers) PeerStats() remote.PeerStats {
	return remote.PeerStats{
		Unavailable: 21, Dropped: 22, Unanchored: 23, LostLeases: 27, Filled: 20, List: metadata.ListStats{Changes: 28, Failures: 29},
		Servers: []remote.ServerStats{{Address: "a:1", State: "closed", Failures: 24}, {Address: "b:1", State: "open", Opened: 25, Timeouts: 26, Overrun: 1500 * time.Millisecond, Client: blockio.ClientStats{Remote: 28, Restarts: 19, RemoteMissed: 29, RemoteRefused: 30}}},
	}
}

// bucket is a tier of a bucket with fixed statistics.
type bucket struct{ countingTier }

func (bucket) Stats() tier.Stats { return tier.Stats{} }

func (bucket) RequestStats() object.RequestStats {
	return object.RequestStats{
		Requests: 31, Retries: 32, Unavailable: 33, Timeouts: 34, Unanchored: 35,
		Reads: breaker.Stats{State: breaker.HalfOpen, Opened: 36}, Writes: breaker.Stats{Refused: 37},
	}
}

// The requests of a bucket have metrics, those of its breakers with a label.
func TestBucketIsExposed(t *testing.T) {
	m := telemetry.New()
	if err := m.SetTier("object", bucket{}); err != nil {
		t.Fatal(err)
	}
	got := text(t, m)
	for _, want := range []string{
		"kvlane_object_requests_total 31",
		"kvlane_object_retries_total 32",
		"kvlane_object_unavailable_total 33",
		"kvlane_object_timeouts_total 34",
		"kvlane_object_unanchored_total 35",
		`kvlane_object_open{requests="read"} 1`,
		`kvlane_object_open{requests="write"} 0`,
		`kvlane_object_opened_total{requests="read"} 36`,
		`kvlane_object_refused_total{requests="write"} 37`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("the metrics lack %q", want)
		}
	}
	if err := m.SetTier("object", nil); err != nil || strings.Contains(text(t, m), "kvlane_object") {
		t.Errorf("the metrics stay: %v", err)
	}
}

// The tier of block servers has metrics, those of a server with its label.
func TestServersAreExposed(t *testing.T) {
	m := telemetry.New()
	if err := m.SetTier("remote", peers{}); err != nil {
		t.Fatal(err)
	}
	got := text(t, m)
	for _, want := range []string{
		`kvlane_remote_rdma_batches_total{server="b:1"} 28`, `kvlane_remote_rdma_missed_total{server="b:1"} 29`, `kvlane_remote_rdma_refused_total{server="b:1"} 30`,
		`kvlane_remote_restarts_total{server="b:1"} 19`, `kvlane_remote_overrun_seconds{server="b:1"} 1.5`, "kvlane_remote_filled_total 20", "kvlane_remote_servers 2",
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("the metrics lack %q", want)
		}
	}
}

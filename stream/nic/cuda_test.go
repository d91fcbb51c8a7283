package nic_test

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestConformanceCUDA lets one and two software NICs copy the bytes of a GPU.
func TestConformanceCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprintf("nics=%d", nics), func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return newRig(t, rigOptions{dev: dev, nics: nics, stream: true}).env(t, nic.Options{QueuePairs: 2, StripeBytes: 4096})
			})
		})
	}
}

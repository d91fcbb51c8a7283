package nic_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestConformanceCUDA has NICs in software move the bytes of a GPU: one, and two that copy at once.
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

// BenchmarkCUDA copies blocks that are scattered on the GPU, and in a list on the host as well, through the stream over NICs in
// software: what the stream's own cost leaves of the copy paths below, and how many CPUs it takes. It is no figure of a NIC.
func BenchmarkCUDA(b *testing.B) {
	dev := cudatest.Open(b)
	const arena, under, most = 256 << 20, 8, 16 << 20
	for _, nics := range []int{1, 2, 4} {
		for _, size := range []int64{4 << 10, 16 << 10, 64 << 10} {
			for _, form := range []string{"pages", "lists"} {
				for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
					b.Run(fmt.Sprintf("nics=%d/%d/%s/%s/cpus=%d", nics, size, form, dir, runtime.GOMAXPROCS(0)), func(b *testing.B) {
						g := newRig(b, rigOptions{dev: dev, nics: nics, stream: true})
						s := g.openUntilEnd(b, nic.Options{SendDepth: 8192})
						all := blocks(g.pinned(b, arena), g.device(b, arena), dir, size)
						b.SetBytes(most)
						benchmarkBatches(b, s, batches(all, form == "lists", most), under)
					})
				}
			}
		}
	}
}

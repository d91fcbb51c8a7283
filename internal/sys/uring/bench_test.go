package uring_test

import (
	"testing"

	"github.com/kvlane/kvlane/internal/sys/uring"
)

// BenchmarkNOP measures the cost of a request in the ring, with 32 no-ops in each submission.
func BenchmarkNOP(b *testing.B) {
	r, err := uring.Open(uring.Options{Depth: 32})
	if err != nil {
		b.Skip(err)
	}
	defer func() { _ = r.Close() }() // nothing is in flight
	ops, done := make([]uring.Op, 32), make([]uring.Completion, 32)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		sent, err := r.Submit(ops...)
		if err != nil {
			b.Fatal(err)
		}
		for n += sent; r.InFlight() > 0; {
			if _, err := r.Wait(done); err != nil {
				b.Fatal(err)
			}
		}
	}
}

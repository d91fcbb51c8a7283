package nic_test

import (
	"errors"
	"os"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// The tests of this file use the NICs of this machine, for example those of tools/rxe/run, and need
// no GPU. Device memory is host memory with a device address.

// verbs returns the machine's NICs, or skips the test if it has none.
func verbs(t *testing.T) *rig {
	t.Helper()
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOK(t, p) })
	names, err := p.Devices()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{prov: p, set: registry.NewDevices(p).NewSet(registry.Options{})}
	t.Cleanup(func() { closeOK(t, g.set) })
	for _, name := range names {
		n, err := g.set.NIC(name)
		if err != nil {
			t.Fatal(err)
		}
		g.nics = append(g.nics, n)
	}
	return g
}

// plainMemory is host memory, with its CPU address or with a device address.
func plainMemory(kind mem.Kind) streamtest.Memory {
	backing := make(map[*mem.Region][]byte)
	return streamtest.Memory{
		Name: kind.String(),
		Alloc: func(tb testing.TB, n int64) *mem.Region {
			tb.Helper()
			b, err := hostmem.Alloc(n)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() {
				if err := hostmem.Free(b); err != nil {
					tb.Error(err)
				}
			})
			r, err := hostmem.Region(b)
			if kind == mem.KindDevice { // without a GPU: host memory that the NIC gets by a device address
				r, err = mem.NewRegion(mem.RegionSpec{Kind: kind, Len: n, Dev: mem.DevAddr(hostmem.Addr(b))})
			}
			if err != nil {
				tb.Fatal(err)
			}
			backing[r] = b
			return r
		},
		Write: func(_ testing.TB, to mem.Extent, b []byte) { copy(backing[to.Region][to.Off:to.Off+to.Len], b) },
		Read: func(_ testing.TB, from mem.Extent) []byte {
			return append([]byte(nil), backing[from.Region][from.Off:from.Off+from.Len]...)
		},
	}
}

func TestVerbsConformance(t *testing.T) {
	rdmatest.Lossy(t)
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		g := verbs(t)
		return streamtest.Env{
			Open: func(tb testing.TB, depth int) stream.Stream {
				tb.Helper()
				return g.open(tb, nic.Options{QueueDepth: depth, QueuePairs: 2, StripeBytes: 4096})
			},
			A: g.memory(plainMemory(mem.KindHost)), B: g.memory(plainMemory(mem.KindDevice)), Path: stream.PathNIC,
			Unreachable: streamtest.Pageable(t, 4096),
		}
	})
}

// TestVerbsFailures moves queue pairs to the error state, by keys of no memory and without
// informing the stream. Tickets must fail with the status, and new streams must work. With packet
// loss, soft-RoCE may flush the failed queue pair before the refusal returns.
func TestVerbsFailures(t *testing.T) { failures(t, verbs(t), os.Getenv(rdmatest.LossEnv) != "") }

func TestFailures(t *testing.T) { failures(t, newRig(t, rigOptions{}), false) }

func failures(t *testing.T, g *rig, mayFlush bool) {
	t.Helper()
	host, device := plainMemory(mem.KindHost), plainMemory(mem.KindDevice)
	if g.dev != nil {
		host, device = streamtest.Pinned(g.dev), streamtest.DeviceMemory(g.dev)
	}
	src, gpu := g.memory(host).Alloc(t, 4000), g.memory(device).Alloc(t, 4000)
	for round := range 4 {
		s := g.open(t, nic.Options{})
		ok(t, submit(t, s, streamtest.Strided(gpu, src, 100, 8)))
		dst, from, opcode := gpu, src, rdma.WRRDMAWrite
		if round%2 == 1 {
			dst, from, opcode = src, gpu, rdma.WRRDMARead
		}
		var ticket *stream.Ticket
		status := rdma.WCRemAccessErr
		if round < 2 {
			ticket = s.SubmitSpoiled(t, streamtest.Strided(dst, from, 100, 8))
		} else {
			status = rdma.WCWRFlushErr
			s.FailPairs(t)
			ticket = submit(t, s, streamtest.Strided(dst, from, 100, 8))
		}
		var failed *nic.RequestError
		if err := ticket.Wait(deadline(t)); !errors.As(err, &failed) {
			t.Fatalf("round %d: %v", round, err)
		}
		if mayFlush && failed.WC.Status == rdma.WCWRFlushErr {
			status = rdma.WCWRFlushErr
		}
		if failed.WC.Status != status || failed.Opcode != opcode || failed.Bytes != 8 {
			t.Errorf("round %d: %v, want status %s", round, failed, status)
		}
		_, err := s.Submit(t.Context(), &mem.Batch{})
		wantErr(t, err, errdefs.ErrBroken)
		if err := s.Close(deadline(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

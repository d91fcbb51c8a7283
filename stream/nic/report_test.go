package nic_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// layers is a batch with one page group for each layer, between blocks on the host and a paged
// cache on the device. It records reports of completed groups.
type layers struct {
	*streamtest.Reports
	batch *mem.Batch
}

// layers returns a batch of groups with two planes each. Each report checks that the bytes of the
// group are at their destination.
func (g *rig) layers(tb testing.TB, dir mem.Direction, groups, pages int, plane int64) *layers {
	tb.Helper()
	l := &layers{batch: &mem.Batch{Paged: &mem.Paged{Dir: dir}}}
	p := l.batch.Paged
	host, dev := g.memory(streamtest.Pinned(g.dev)), g.memory(streamtest.DeviceMemory(g.dev))
	slot := int64(groups) * 2 * plane
	slots := host.Alloc(tb, int64(pages)*slot)
	noise := make([]byte, max(slots.Len(), int64(pages)*plane))
	for i := range noise {
		noise[i] = byte(i*7 + i>>8 + i>>16)
	}
	if dir == mem.ToPages {
		copy(slots.Bytes(), noise)
	}
	for i := range groups {
		group := mem.PageGroup{Slots: mem.Slots{Region: slots, Stride: slot}}
		for j := range int64(2) {
			r := dev.Alloc(tb, int64(pages)*plane)
			if dir == mem.ToSlots {
				dev.Write(tb, mem.All(r), noise[:r.Len()])
			}
			group.Planes = append(group.Planes, mem.Plane{Region: r, Stride: plane, Bytes: plane, SlotOff: (int64(i)*2 + j) * plane})
		}
		for n := range pages {
			group.Pairs = append(group.Pairs, mem.PageSlot{Page: uint32((3*n + 1) % pages), Slot: uint32(n)})
		}
		p.Groups = append(p.Groups, group)
	}
	read := func(e mem.Extent) []byte {
		if e.Region.Bytes() != nil {
			return e.Bytes()
		}
		return dev.Read(tb, e)
	}
	l.Reports = streamtest.Record(tb, p, func(group int) {
		one := mem.Paged{Dir: dir, Groups: p.Groups[group : group+1]}
		for dst, src := range one.Extents() {
			want := noise[src.Off : src.Off+src.Len]
			if !bytes.Equal(read(dst), want) {
				tb.Errorf("group %d is reported before it has completed", group)
				return
			}
		}
	})
	return l
}

func (l *layers) submit(tb testing.TB, s *nic.Stream) *stream.Ticket {
	tb.Helper()
	t := submit(tb, s, l.batch)
	l.SetTicket(t)
	return t
}

// eventually waits until n groups are reported, and checks that no further group is reported.
func (l *layers) eventually(tb testing.TB, n int) {
	tb.Helper()
	for end := time.Now().Add(testkit.Patience()); l.Completed() < n && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(3 * time.Millisecond)
	if l.Completed() != n {
		tb.Errorf("%d groups reported, want %d", l.Completed(), n)
	}
}

// holder is a mover that delays selected transfers.
type holder struct {
	soft.Mover
	holds func(t *soft.Transfer) bool // selects one transfer at a time

	mu   sync.Mutex
	held []*soft.Transfer
}

func (h *holder) Move(t *soft.Transfer) {
	h.mu.Lock()
	if h.holds != nil && h.holds(t) {
		h.held = append(h.held, t)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.Mover.Move(t)
}

func (h *holder) hold(these func(t *soft.Transfer) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = these
}

// release moves the delayed transfers and selects no more.
func (h *holder) release() {
	h.mu.Lock()
	held := h.held
	h.holds, h.held = nil, nil
	h.mu.Unlock()
	for _, t := range held {
		h.Mover.Move(t)
	}
}

// holding returns a rig whose NICs' transfers can be delayed.
func holding(tb testing.TB, nics int) (*rig, *holder) {
	tb.Helper()
	dev := simulated(tb)
	mover := newCopyMover(dev)
	tb.Cleanup(mover.close)
	h := &holder{Mover: mover}
	g := newRig(tb, rigOptions{dev: dev, nics: nics, soft: soft.Options{Mover: h}})
	tb.Cleanup(h.release) // if the test fails and must close the stream
	return g, h
}

// groupOf returns the first group of a transfer, or -1 if it belongs to another batch.
func (l *layers) groupOf(tr *soft.Transfer) int {
	g := &l.batch.Paged.Groups[0]
	for _, e := range []mem.Extent{tr.Batch.Dst[0], tr.Batch.Src[0]} {
		if e.Region == g.Slots.Region {
			return int(e.Off % g.Slots.Stride / (g.Slots.Stride / int64(len(l.batch.Paged.Groups))))
		}
	}
	return -1
}

// TestReportsGroupsInOrder delays a request of each group in turn while other queue pairs continue.
// Meanwhile only the groups before it may be reported. The later groups are reported after that
// request has completed.
func TestReportsGroupsInOrder(t *testing.T) {
	const groups, pages, plane = 6, 4, 64 << 10
	for _, rails := range []struct{ nics, pairs, requests int }{{1, 1, 2}, {3, 1, 5}, {2, 2, 5}} {
		for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
			t.Run(fmt.Sprintf("%d NICs of %d, %s", rails.nics, rails.pairs, dir), func(t *testing.T) {
				for group := range groups {
					g, h := holding(t, rails.nics)
					s := g.openUntilEnd(t, nic.Options{QueuePairs: rails.pairs, StripeBytes: 32 << 10, MaxSGE: 4})
					l := g.layers(t, dir, groups, pages, plane)
					skip := group % rails.requests
					h.hold(func(tr *soft.Transfer) bool {
						if l.groupOf(tr) != group {
							return false
						}
						skip--
						return skip == -1
					})
					ticket := l.submit(t, s)
					if rails.pairs == 1 {
						l.eventually(t, group)
					}
					time.Sleep(3 * time.Millisecond)
					if n := l.Completed(); n > group { // a software NIC has one engine, which may not have completed all earlier groups
						t.Errorf("%d groups reported while a request of group %d is delayed", n, group)
					}
					h.release()
					ok(t, ticket)
				}
			})
		}
	}
}

// TestReportsGroupsThatShareARequest uses requests of four groups each, and delays one of them.
func TestReportsGroupsThatShareARequest(t *testing.T) {
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		for n := range 3 {
			g, h := holding(t, 1)
			s := g.openUntilEnd(t, nic.Options{MaxSGE: 8})
			l := g.layers(t, dir, 12, 1, 64<<10)
			h.hold(func(tr *soft.Transfer) bool { return l.groupOf(tr) == n*4 })
			ticket := l.submit(t, s)
			l.eventually(t, n*4)
			h.release()
			ok(t, ticket)
		}
	}
}

// TestReportsNoFailedGroup fails each request of a batch in turn, over two NICs. No failed group
// may be reported.
func TestReportsNoFailedGroup(t *testing.T) {
	for dir, op := range map[mem.Direction]string{mem.ToSlots: soft.OpRead, mem.ToPages: soft.OpWrite} {
		for n := 0; ; n++ {
			plan := fault.New(1, fault.Nth(op, n).Fail(nil))
			g := newRig(t, rigOptions{nics: 2, soft: soft.Options{Faults: plan}})
			s := g.open(t, nic.Options{QueuePairs: 2, StripeBytes: 128 << 10})
			l := g.layers(t, dir, 5, 2, 128<<10)
			ticket := l.submit(t, s)
			err := ticket.Wait(deadline(t))
			if reported := l.Completed(); err != nil && reported == 5 {
				t.Errorf("%s %d failed, and %d groups have landed", op, n, reported)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
			if plan.Injected() == 0 {
				ok(t, ticket)
				break
			}
			wantErr(t, err, fault.ErrInjected)
		}
	}
}

// TestReportsGroupsThatDevicesSee uses a NIC whose writes are visible to the device only after a
// flush. Small groups share a flush.
func TestReportsGroupsThatDevicesSee(t *testing.T) {
	for name, tt := range map[string]struct {
		groups, pages int
		plane         int64
		flushes       int64
	}{
		"large groups": {6, 4, 64 << 10, 6},
		"small groups": {96, 1, 4 << 10, 4},
	} {
		t.Run(name, func(t *testing.T) {
			m := &lateMover{}
			g := newRig(t, rigOptions{dev: simulated(t), soft: soft.Options{Mover: m}})
			var flushes atomic.Int64
			s := g.openUntilEnd(t, nic.Options{Flush: func(int) error {
				flushes.Add(1)
				m.flush(t, g.dev)
				return nil
			}})
			l := g.layers(t, mem.ToPages, tt.groups, tt.pages, tt.plane)
			ok(t, l.submit(t, s))
			if l.Completed() == 0 || flushes.Load() > tt.flushes {
				t.Errorf("%d groups of %d reported, with %d flushes", l.Completed(), tt.groups, flushes.Load())
			}
		})
	}
}

// TestReportsNoUnflushedGroup checks that a failed flush fails the batch, and that no group
// is reported.
func TestReportsNoUnflushedGroup(t *testing.T) {
	cause := errors.New("no flush today")
	g, h := holding(t, 1)
	var flushes atomic.Int64
	s := g.openUntilEnd(t, nic.Options{Flush: func(int) error {
		if flushes.Add(1) == 1 {
			return cause
		}
		return nil
	}})
	l := g.layers(t, mem.ToPages, 6, 4, 64<<10)
	h.hold(func(tr *soft.Transfer) bool { return l.groupOf(tr) == 4 })
	ticket := l.submit(t, s)
	for s.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	h.release()
	wantErr(t, ticket.Wait(deadline(t)), cause)
	if l.Completed() > 0 {
		t.Errorf("%d groups reported", l.Completed())
	}
}

func simulated(tb testing.TB) device.Device {
	tb.Helper()
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeOK(tb, dev) })
	return dev
}

// lateMover is a mover whose writes become visible to the device only when it is flushed.
type lateMover struct {
	mu     sync.Mutex
	unseen []mem.Batch
}

func (m *lateMover) Reaches(*mem.Region) error { return nil }

func (m *lateMover) Move(t *soft.Transfer) {
	m.mu.Lock()
	m.unseen = append(m.unseen, mem.Batch{Dst: slices.Clone(t.Batch.Dst), Src: slices.Clone(t.Batch.Src)})
	m.mu.Unlock()
	time.Sleep(2 * time.Millisecond) // longer than a flush, so that groups are reported before the batch has completed
	t.Done(nil)
}

func (m *lateMover) flush(tb testing.TB, dev device.Device) {
	tb.Helper()
	m.mu.Lock()
	unseen := m.unseen
	m.unseen = nil
	m.mu.Unlock()
	s, err := streamcopy.Open(dev, streamcopy.Options{Path: stream.PathKernel})
	if err != nil {
		tb.Error(err)
		return
	}
	for i := range unseen {
		if err := copyOnce(s, &unseen[i]); err != nil {
			tb.Error(err)
		}
	}
	if err := s.Close(deadline(tb)); err != nil {
		tb.Error(err)
	}
}

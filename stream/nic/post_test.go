package nic_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// refuser is a provider whose queue pairs accept half of the next chain if cause is set. It records
// the states of its queue pairs.
type refuser struct {
	rdma.Provider
	cause error // nil: accept everything

	mu     sync.Mutex
	states []rdma.QPState // states that queue pairs were moved to
}

type refuserDevice struct {
	rdma.Device
	r *refuser
}

type refuserPD struct {
	rdma.PD
	r *refuser
}

type refuserQP struct {
	rdma.QP
	r *refuser
}

func (r *refuser) Open(name string) (rdma.Device, error) {
	d, err := r.Provider.Open(name)
	return &refuserDevice{d, r}, err
}

func (d *refuserDevice) AllocPD() (rdma.PD, error) {
	p, err := d.Device.AllocPD()
	return &refuserPD{p, d.r}, err
}

func (p *refuserPD) CreateQP(o rdma.QPOptions) (rdma.QP, error) {
	q, err := p.PD.CreateQP(o)
	return &refuserQP{q, p.r}, err
}

func (q *refuserQP) PostSend(wrs []rdma.SendWR) (int, error) {
	if q.r.cause == nil {
		return q.QP.PostSend(wrs)
	}
	n, err := q.QP.PostSend(wrs[:len(wrs)/2])
	return n, errors.Join(err, q.r.cause)
}

func (q *refuserQP) Modify(a rdma.QPAttr) error {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	q.r.states = append(q.r.states, a.State)
	return q.QP.Modify(a)
}

// refusing returns g with its first NIC opened through a refuser.
func (g *rig) refusing(t *testing.T, p rdma.Provider) (*rig, *refuser) {
	t.Helper()
	r := &refuser{Provider: p}
	set := registry.NewDevices(r).NewSet(registry.Options{})
	t.Cleanup(func() { closeOK(t, set) })
	n, err := set.NIC(g.nics[0].Name())
	if err != nil {
		t.Fatal(err)
	}
	return &rig{dev: g.dev, set: set, nics: []*registry.Registry{n}}, r
}

// TestPostRefusedHalfWay checks a chain that is accepted in part. The accepted requests are not
// signaled, so the stream must stop the queue pair to know that they have ended.
func TestPostRefusedHalfWay(t *testing.T) {
	g := newRig(t, rigOptions{})
	g, r := g.refusing(t, g.prov)
	refusedHalfWay(t, g, r, g.pinned(t, 1000), g.device(t, 1000), 50, 8)
}

// TestVerbsPostRefusedHalfWay does the same with packets in flight when the queue pair is stopped.
func TestVerbsPostRefusedHalfWay(t *testing.T) {
	g := verbs(t)
	g, r := g.refusing(t, g.prov)
	const n, size = 8, 1 << 20
	host, device := g.memory(plainMemory(mem.KindHost)), g.memory(plainMemory(mem.KindDevice))
	refusedHalfWay(t, g, r, host.Alloc(t, n*(size+1)), device.Alloc(t, n*(size+1)), n, size)
}

func refusedHalfWay(t *testing.T, g *rig, r *refuser, dst, src *mem.Region, n int, size int64) {
	t.Helper()
	for range 2 { // the NIC must work as before
		s := g.openUntilEnd(t, nic.Options{})
		ok(t, submit(t, s, streamtest.Strided(dst, src, n, size)))
		r.cause = errors.New("no room")
		ticket := submit(t, s, streamtest.Strided(dst, src, n, size))
		wantErr(t, ticket.Wait(deadline(t)), r.cause)
		if err := ticket.Err(); errors.Is(err, errdefs.ErrBroken) {
			t.Errorf("the first failure is not of an earlier one: %v", err)
		}
		noLateWrites(t, dst)
		_, err := s.Submit(t.Context(), &mem.Batch{})
		wantErr(t, err, errdefs.ErrBroken, r.cause)
		r.cause = nil
	}
}

// TestErrorBeforeReset checks that queue pairs are reset if completions cannot be polled, but only
// after they have been in the error state for a while.
func TestErrorBeforeReset(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	g, r := g.refusing(t, g.prov)
	s := g.openUntilEnd(t, nic.Options{})
	dst, src := g.pinned(t, 1000), g.device(t, 1000)
	plan.Add(fault.After(soft.OpPoll, 0).Fail(nil))
	connected := len(r.states)
	began := time.Now()
	wantErr(t, submit(t, s, streamtest.Strided(dst, src, 50, 8)).Wait(deadline(t)), fault.ErrInjected)
	if got, want := r.states[connected:], []rdma.QPState{rdma.QPSErr, rdma.QPSReset}; !slices.Equal(got, want) {
		t.Errorf("queue pair went to %v, want %v", got, want)
	}
	if d := time.Since(began); d < nic.FlushTime {
		t.Errorf("reset after %v", d)
	}
}

package endpoint_test

import (
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// recordingProvider records the calls of Modify and the sends of all queue pairs.
type recordingProvider struct {
	rdma.Provider
	delay time.Duration // of CreateQP

	mu    sync.Mutex
	attrs []rdma.QPAttr
	sends []rdma.SendWR
}

func (p *recordingProvider) Open(name string) (rdma.Device, error) {
	d, err := p.Provider.Open(name)
	return &recordingDevice{d, p}, err
}

type recordingDevice struct {
	rdma.Device
	p *recordingProvider
}

func (d *recordingDevice) AllocPD() (rdma.PD, error) {
	pd, err := d.Device.AllocPD()
	return &recordingPD{pd, d.p}, err
}

type recordingPD struct {
	rdma.PD
	p *recordingProvider
}

func (pd *recordingPD) CreateQP(o rdma.QPOptions) (rdma.QP, error) {
	time.Sleep(pd.p.delay)
	q, err := pd.PD.CreateQP(o)
	return &recordingQP{q, pd.p}, err
}

type recordingQP struct {
	rdma.QP
	p *recordingProvider
}

func (q *recordingQP) Modify(a rdma.QPAttr) error {
	q.p.mu.Lock()
	q.p.attrs = append(q.p.attrs, a)
	q.p.mu.Unlock()
	return q.QP.Modify(a)
}

func (q *recordingQP) PostSend(wrs []rdma.SendWR) (int, error) {
	q.p.mu.Lock()
	q.p.sends = append(q.p.sends, wrs...)
	q.p.mu.Unlock()
	return q.QP.PostSend(wrs)
}

// Queue pairs have brpc's settings. Each send has immediate data. An acknowledgement without data
// is solicited and signaled.
func TestSettingsOfQueuePairs(t *testing.T) {
	p, err := soft.New(soft.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	r := &recordingProvider{Provider: p}
	k := connect(t, newSide(t, r, "soft0", 8), newSide(t, r, "soft0", 8), hello.V2)
	for range 50 { // in one direction, so that acknowledgements have no data to go with
		check(t, k.client.Send([]endpoint.Piece{{Bytes: []byte("hello")}}))
		receive(t, k.server, 5)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	states := make(map[rdma.QPState]int)
	for _, a := range r.attrs {
		states[a.State]++
		switch a.State {
		case rdma.QPSInit:
			if a.PKeyIndex != 0 || a.Access != rdma.AccessRemoteWrite {
				t.Errorf("INIT: %+v", a)
			}
		case rdma.QPSRTR:
			if a.PathMTU != rdma.MTU1024 || a.RQPSN != 0 || a.Address.HopLimit != 16 || a.MinRNRTimer != 0 || a.MaxDestRDAtomic != 0 {
				t.Errorf("RTR: %+v", a)
			}
		case rdma.QPSRTS:
			if a.SQPSN != 0 || a.Timeout != 14 || a.RetryCount != 7 || a.RNRRetry != 0 || a.MaxRDAtomic != 0 {
				t.Errorf("RTS: %+v", a)
			}
		default:
		}
	}
	if states[rdma.QPSInit] != 2 || states[rdma.QPSRTR] != 2 || states[rdma.QPSRTS] != 2 {
		t.Errorf("states %v", states)
	}
	acks := 0
	for i := range r.sends {
		wr := &r.sends[i]
		if wr.Opcode != rdma.WRSendWithImm {
			t.Errorf("a request %v", wr.Opcode)
		}
		if wr.Bytes() > 0 {
			continue
		}
		if acks++; wr.Flags&rdma.SendSolicited == 0 || wr.Flags&rdma.SendSignaled == 0 || wr.Imm == 0 {
			t.Errorf("an acknowledgement with flags %v and %d receives", wr.Flags, wr.Imm)
		}
	}
	if acks == 0 {
		t.Error("no acknowledgement without data")
	}
}

// A queue pair that takes longer to open than the wait for blocks may take still leaves time for that
// wait.
func TestSlowQueuePairLeavesTimeForBlocks(t *testing.T) {
	p, err := soft.New(soft.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	r := &recordingProvider{Provider: p, delay: 1200 * time.Millisecond}
	k := connect(t, newSide(t, r, "soft0", 8), newSide(t, p, "soft0", 8), hello.V2)
	check(t, k.client.Send([]endpoint.Piece{{Bytes: []byte("hello")}}))
	receive(t, k.server, 5)
}

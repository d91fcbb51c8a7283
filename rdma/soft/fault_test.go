package soft_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestEveryVerbFails fails each call in turn. The failure must be reported, everything can be
// closed, and no resource is left.
func TestEveryVerbFails(t *testing.T) {
	host := region(t, 8192)
	cause := errors.New("cause")
	for _, op := range append(rdmatest.Verbs(), soft.OpWrite, soft.OpRead, soft.OpSend) {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, cause, func(t *testing.T, plan *fault.Plan) error {
				t.Helper()
				return everything(t, plan, host)
			})
		})
	}
}

// everything uses every verb up to the first failure, closes all objects, and returns all failures.
func everything(t *testing.T, plan *fault.Plan, host *mem.Region) (err error) {
	t.Helper()
	var opened []io.Closer
	defer func() {
		for i := len(opened) - 1; i >= 0; i-- {
			if e := opened[i].Close(); e != nil {
				err = errors.Join(err, e)
				check(t, opened[i].Close()) // an object that failed to close is unchanged
			}
		}
	}()
	p, err := soft.New(soft.Options{Faults: plan})
	check(t, err)
	opened = append(opened, p)
	dev, err := p.Open("soft0")
	if err != nil {
		return err
	}
	opened = append(opened, dev)
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	opened = append(opened, pd)
	mr, err := pd.RegMR(mem.All(host), rdma.MROptions{Access: access})
	if err != nil {
		return err
	}
	opened = append(opened, mr)
	ch, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	opened = append(opened, ch)
	cq, err := dev.CreateCQ(rdma.CQOptions{Entries: 16, Channel: ch})
	if err != nil {
		return err
	}
	opened = append(opened, cq)
	srq, err := pd.CreateSRQ(rdma.SRQCaps{MaxWR: 4, MaxSGE: 1})
	if err != nil {
		return err
	}
	opened = append(opened, srq)
	qp, err := pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq, Caps: rdma.QPCaps{MaxSendWR: 8, MaxSendSGE: 1, MaxInlineBytes: 8}})
	if err != nil {
		return err
	}
	opened = append(opened, qp)
	return work(dev, ch, cq, srq, qp, mr.Info())
}

func work(dev rdma.Device, ch rdma.CompChannel, cq rdma.CQ, srq rdma.SRQ, qp rdma.QP, i rdma.MRInfo) error {
	if err := rdmatest.Loopback(dev, qp, rdma.ConnectOptions{}); err != nil {
		return err
	}
	if _, err := qp.Query(); err != nil {
		return err
	}
	if _, err := srq.PostRecv([]rdma.RecvWR{{SGEs: []rdma.SGE{i.SGE(0, 8)}}}); err != nil {
		return err
	}
	if err := cq.RequestNotify(false); err != nil {
		return err
	}
	w := rdma.SendWR{Flags: rdma.SendSignaled, RKey: i.RKey, RemoteAddr: i.Addr, SGEs: []rdma.SGE{i.SGE(4096, 64)}}
	wrs := []rdma.SendWR{w, w, w}
	wrs[1].Opcode, wrs[2].Opcode, wrs[2].SGEs = rdma.WRRDMARead, rdma.WRSend, []rdma.SGE{i.SGE(4096, 8)}
	if _, err := qp.PostSend(wrs); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := ch.Wait(ctx); err != nil {
		return err
	}
	var errs []error
	for got, wcs := 0, make([]rdma.WC, 4); got < 3 && ctx.Err() == nil; {
		n, err := cq.Poll(wcs)
		if err != nil {
			return err
		}
		for k := range n {
			errs = append(errs, wcs[k].Err())
			if wcs[k].Opcode != rdma.WCRecv {
				got++
			}
		}
		time.Sleep(10 * time.Microsecond)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := dev.WaitEvent(ended); err != nil && !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func TestPartialRequest(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpWrite, 1).Partial(nil))
	r := newRig(t, soft.Options{Faults: plan}, rdma.ConnectOptions{})
	w := r.write(2, 0, 1<<19, 1000)
	w.SGEs = []rdma.SGE{r.info.SGE(1<<19, 400), r.info.SGE(1<<19+400, 600)}
	before := bytes.Clone(r.mem.Bytes()[:1000])
	post(t, r.qp, r.write(1, 4096, 1<<19, 8), w)
	wcs := await(t, r.cq, 2)
	check(t, wcs[0].Err())
	if err := wcs[1].Err(); wcs[1].Status != rdma.WCGeneralErr || len(plan.Unreported(err)) > 0 {
		t.Errorf("%v", err)
	}
	if got := r.mem.Bytes()[:1000]; !bytes.Equal(got[:500], r.mem.Bytes()[1<<19:][:500]) || !bytes.Equal(got[500:], before[500:]) {
		t.Error("the first half was not moved, or more than it")
	}
}

func TestCorruptRequest(t *testing.T) {
	for _, op := range []rdma.WROpcode{rdma.WRRDMAWrite, rdma.WRRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			plan := fault.New(1, fault.Nth(soft.OpWrite, 0).Corrupt(), fault.Nth(soft.OpRead, 0).Corrupt())
			r := newRig(t, soft.Options{Faults: plan}, rdma.ConnectOptions{})
			post(t, r.qp, r.move(op, 1, 0, 4096, 4096))
			good(t, r.cq, 1)
			a, b := r.mem.Bytes()[:4096], r.mem.Bytes()[4096:8192]
			if bytes.Equal(a, b) || !bytes.Equal(a[8:], b[8:]) {
				t.Error("the bytes are not wrong where they should be")
			}
		})
	}
}

func TestStalledRequest(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpRead, 0).Stall())
	r := newRig(t, soft.Options{Faults: plan}, rdma.ConnectOptions{})
	other := r.newQP(t, rdma.ConnectOptions{})
	post(t, r.qp, r.move(rdma.WRRDMARead, 1, 0, 4096, 8), r.write(2, 0, 4096, 8))
	check(t, plan.Await(t.Context(), 1))
	idle(t, r.cq)
	post(t, other, r.write(3, 8192, 12288, 8)) // another queue pair is not delayed
	if wc := good(t, r.cq, 1)[0]; wc.WRID != 3 {
		t.Errorf("completion %+v", wc)
	}
	plan.Release()
	for i, wc := range good(t, r.cq, 2) {
		if wc.WRID != uint64(i+1) {
			t.Errorf("completion %d is of request %d", i, wc.WRID)
		}
	}
}

func TestDelayedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := fault.New(1, fault.Nth(soft.OpWrite, 0).Delay(time.Minute))
		r := newRig(t, soft.Options{Faults: plan}, rdma.ConnectOptions{})
		start := time.Now()
		post(t, r.qp, r.write(1, 0, 4096, 8))
		for range 7 {
			time.Sleep(10 * time.Second)
			if n, err := r.cq.Poll(make([]rdma.WC, 1)); n == 1 {
				if d := time.Since(start); d < time.Minute {
					t.Errorf("done after %v", d)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Error("the request is not done after a minute")
	})
}

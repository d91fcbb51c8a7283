package channel_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestOpensWithinTheDevicesLimits(t *testing.T) {
	p := provider(t, soft.Options{Devices: []soft.DeviceOptions{{
		Limits: rdma.DeviceInfo{MaxQPWR: 100, MaxCQE: 150, MaxSGE: 5, MaxSGERead: 2},
		Ports:  []soft.PortOptions{{Down: true}, {MaxMessageBytes: 4096}},
	}}})
	d := newDomain(t, p)
	c := d.open(t, channel.Options{Pairs: 2, Depth: 1000, SGEs: 1000})
	if len(c.Pairs) != 2 || c.Depth != 75 || c.MaxSGE(rdma.WRRDMAWrite) != 5 || c.MaxSGE(rdma.WRRDMARead) != 2 || c.MessageBytes != 4096 {
		t.Errorf("%d pairs %d deep, %d and %d entries, %d bytes", len(c.Pairs), c.Depth, c.MaxSGE(rdma.WRRDMAWrite), c.MaxSGE(rdma.WRRDMARead), c.MessageBytes)
	}
	check(t, c.Pairs[1].Connect(c.Pairs[1].Endpoint)) // on the active port
	for what, o := range map[string]channel.Options{
		"no NIC": {}, "depth": {NIC: d.nic, Depth: -1}, "receives": {NIC: d.nic, Receives: -1}, "entries": {NIC: d.nic, SGEs: -1},
		"pairs": {NIC: d.nic, Pairs: channel.MaxPairs + 1}, "port": {NIC: d.nic, Connect: rdma.ConnectOptions{Port: 9}},
	} {
		if _, err := channel.Open(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := channel.Open(channel.Options{NIC: d.nic, Connect: rdma.ConnectOptions{Port: 1}})
	wantErr(t, err, errdefs.ErrBroken)
}

// TestConnectsToAPeer connects to a peer of another domain that has sent its key and posted
// receives.
func TestConnectsToAPeer(t *testing.T) {
	p := provider(t, soft.Options{})
	near, far := newDomain(t, p), newDomain(t, p)
	clear(far.region.Bytes())
	a, b := near.open(t, channel.Options{Pairs: 2, Depth: 4}), far.open(t, channel.Options{Pairs: 2, Depth: 4, Receives: 2})
	for i, q := range a.Pairs {
		check(t, q.Connect(b.Pairs[i].Endpoint))
		check(t, b.Pairs[i].Connect(q.Endpoint))
		_, err := b.Pairs[i].QP.PostRecv([]rdma.RecvWR{{WRID: uint64(i)}})
		check(t, err)
		w := near.write(far, int64(i)*100, 100)
		w.Opcode = rdma.WRRDMAWriteWithImm
		post(t, q, near.write(far, 4096, 8), w)
		for k := range 2 {
			wc := next(t, a.CQ)
			check(t, wc.Err())
			if index, seq, over := a.Completed(&wc); index != i || seq != uint64(k) || over != 1 || q.Outstanding() != uint64(1-k) {
				t.Errorf("completion of request %d of queue pair %d, %d over, %d outstanding", seq, index, over, q.Outstanding())
			}
			if _, _, over := a.Completed(&wc); over != 0 {
				t.Error("the same completion counts twice")
			}
		}
		wc := next(t, b.Receives)
		check(t, wc.Err())
	}
	if !bytes.Equal(far.region.Bytes()[:100], near.region.Bytes()[:100]) || !bytes.Equal(far.region.Bytes()[100:200], near.region.Bytes()[:100]) {
		t.Error("wrong bytes arrived")
	}
}

// TestDomainsAreApart checks that a queue pair of one domain cannot access memory of another domain
// with any key.
func TestDomainsAreApart(t *testing.T) {
	p := provider(t, soft.Options{})
	own, other := newDomain(t, p), newDomain(t, p)
	if own.nic.Covers(mem.All(other.region), 0) {
		t.Error("a domain covers memory of another domain")
	}
	local := own.write(own, 0, 8)
	local.SGEs[0] = other.info.SGE(0, 8)
	for name, tt := range map[string]struct {
		w    rdma.SendWR
		want rdma.WCStatus
	}{
		"its own":             {own.write(own, 100, 8), rdma.WCSuccess},
		"another's key":       {own.write(other, 100, 8), rdma.WCRemAccessErr},
		"another's local key": {local, rdma.WCLocProtErr},
	} {
		t.Run(name, func(t *testing.T) {
			c, q := own.loopback(t, 1)
			post(t, q, tt.w)
			if wc := next(t, c.CQ); wc.Status != tt.want {
				t.Errorf("%s, not %s: %v", wc.Status, tt.want, wc.Err())
			}
		})
	}
}

// TestResetAfterAnError checks that a failed queue pair works again after it is stopped and
// connected.
func TestResetAfterAnError(t *testing.T) {
	d := newDomain(t, provider(t, soft.Options{}))
	c, q := d.loopback(t, 4)
	for range 2 {
		bad := d.write(d, 4096, 8)
		bad.RKey ^= 0x5a5a00
		post(t, q, bad, d.write(d, 4096, 8))
		wc := next(t, c.CQ)
		if _, _, over := c.Completed(&wc); over != 1 || wc.Status != rdma.WCRemAccessErr {
			t.Errorf("completion %+v, %d over", wc, over)
		}
		flushed := next(t, c.CQ)
		stop(t, q, 0)
		if q.Outstanding() != 0 || c.Outstanding() != 0 {
			t.Errorf("%d requests are outstanding after a reset", q.Outstanding())
		}
		if _, _, over := c.Completed(&flushed); over != 0 {
			t.Error("a completion from before the reset counts")
		}
		check(t, q.Connect(q.Endpoint))
		post(t, q, d.write(d, 4096, 100))
		wc = next(t, c.CQ)
		check(t, wc.Err())
		if _, seq, over := c.Completed(&wc); over != 1 || seq != q.Posted()-1 {
			t.Errorf("request %d of %d, %d over", seq, q.Posted(), over)
		}
	}
}

// TestStopWithPostedWork checks that posted requests are flushed. After the reset no request may be
// outstanding or access memory, whether or not it was polled.
func TestStopWithPostedWork(t *testing.T) {
	for _, polled := range []bool{true, false} {
		d := newDomain(t, provider(t, soft.Options{}))
		c, q := d.loopback(t, 8)
		// The peer has posted no receive.
		send := rdma.SendWR{Opcode: rdma.WRSend, SGEs: []rdma.SGE{d.info.SGE(0, 8)}}
		post(t, q, send, send, send, d.write(d, 4096, 8))
		const flush = 20 * time.Millisecond
		began := time.Now()
		if wait, err := q.Stop(flush); wait <= 0 || wait > flush || err != nil {
			t.Fatalf("reset at once: %v, %v", wait, err)
		}
		for i := range uint64(4) {
			if !polled {
				break
			}
			wc := next(t, c.CQ)
			if _, seq, over := c.Completed(&wc); seq != i || over != 1 || wc.Status != rdma.WCWRFlushErr {
				t.Errorf("completion %+v of request %d", wc, seq)
			}
		}
		stop(t, q, flush)
		if n := q.Outstanding(); n != 0 || time.Since(began) < flush {
			t.Errorf("%d requests outstanding after %v", n, time.Since(began))
		}
	}
}

// TestCloseWhileBusy checks that Close drops waiting requests, and returns ErrBusy while bytes are
// being moved.
func TestCloseWhileBusy(t *testing.T) {
	m := &stuck{began: make(chan struct{}), let: make(chan struct{})}
	d := newDomain(t, provider(t, soft.Options{Mover: m, DrainTimeout: 10 * time.Millisecond}))
	c, q := d.loopback(t, 4)
	post(t, q, d.write(d, 4096, 8))
	<-m.began
	wantErr(t, c.Close(), errdefs.ErrBusy)
	if _, err := q.Stop(0); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("stopped while bytes are on their way: %v", err)
	}
	close(m.let)
	check(t, c.Close())
	check(t, c.Close())

	c, q = d.loopback(t, 4)
	post(t, q, rdma.SendWR{Opcode: rdma.WRSend, SGEs: []rdma.SGE{d.info.SGE(0, 8)}})
	check(t, c.Close())
}

// TestWaitAndAlarm checks that completions end a wait, and that OnFailure is called for failures
// without a completion.
func TestWaitAndAlarm(t *testing.T) {
	d := newDomain(t, provider(t, soft.Options{}))
	alarms := make(chan error, 1)
	c, peer := d.open(t, channel.Options{Depth: 1}), d.open(t, channel.Options{OnFailure: func(err error) { alarms <- err }})
	q := c.Pairs[0]
	check(t, q.Connect(peer.Pairs[0].Endpoint))
	check(t, peer.Pairs[0].Connect(q.Endpoint))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check(t, c.CQ.RequestNotify(false))
	post(t, q, d.write(d, 4096, 8))
	check(t, c.Wait(ctx))
	wc := next(t, c.CQ)
	c.Completed(&wc)
	bad := d.write(d, 4096, 8)
	bad.RKey ^= 0x5a5a00
	post(t, q, bad)
	select {
	case err := <-alarms:
		if err == nil {
			t.Error("an alarm without a reason")
		}
	case <-ctx.Done():
		t.Error("the refused request was not reported")
	}
}

// TestEveryVerbFails fails each call while a channel is opened, connected, used, reset and closed.
// The failure must be reported, and no resource may be left.
func TestEveryVerbFails(t *testing.T) {
	for _, op := range []string{
		soft.OpQueryPort, soft.OpQueryGID, soft.OpCreateChannel, soft.OpCreateCQ, soft.OpCreateQP, soft.OpModifyQP, soft.OpPostSend, soft.OpPoll,
		soft.OpClose, soft.OpWrite,
	} {
		t.Run(op, func(t *testing.T) {
			r := streamtest.Pageable(t, 8192)
			testkit.Sweep(t, op, errdefs.ErrNoMemory, func(t *testing.T, plan *fault.Plan) error { t.Helper(); return useAll(t, plan, r) })
		})
	}
}

// useAll uses all functions of a channel up to the first failure, closes it, and returns all
// failures.
func useAll(t *testing.T, plan *fault.Plan, r *mem.Region) (err error) {
	t.Helper()
	twice := func(close func() error) {
		if closeErr := close(); closeErr != nil {
			err = errors.Join(err, closeErr, close())
		}
	}
	p, err := soft.New(soft.Options{Faults: plan})
	check(t, err)
	defer twice(p.Close)
	set := registry.NewDevices(p).NewSet(registry.Options{})
	defer twice(set.Close)
	nic, err := set.NIC("soft0")
	if err != nil {
		return err
	}
	if err := nic.Register(rdma.MROptions{Access: access}, r); err != nil {
		return err
	}
	m, err := nic.Acquire(mem.All(r), access)
	check(t, err)
	defer m.Release()
	d := &domain{nic: nic, region: r, info: m.Info()}
	c, err := channel.Open(channel.Options{NIC: nic, Pairs: 2, Depth: 2, Receives: 1, OnFailure: func(error) {}})
	if err != nil {
		return err
	}
	defer twice(c.Close)
	for range 2 {
		for _, q := range c.Pairs {
			if err := use(d, c, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// use connects q, writes, and resets it.
func use(d *domain, c *channel.Channel, q *channel.Pair) error {
	if err := q.Connect(q.Endpoint); err != nil {
		return err
	}
	if _, err := q.Post([]rdma.SendWR{d.write(d, 4096, 8)}); err != nil {
		return err
	}
	var wcs [1]rdma.WC
	for q.Outstanding() > 0 {
		n, err := c.CQ.Poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range n {
			if err := wcs[i].Err(); err != nil {
				return err
			}
			c.Completed(&wcs[i])
		}
		time.Sleep(10 * time.Microsecond)
	}
	_, err := q.Stop(0)
	return err
}

package channel_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/streamtest"
)

const access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantErr(tb testing.TB, err, target error) {
	tb.Helper()
	if !errors.Is(err, target) {
		tb.Errorf("error %v is not %q", err, target)
	}
}

func closing(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
}

func provider(tb testing.TB, o soft.Options) *soft.Provider {
	tb.Helper()
	p, err := soft.New(o)
	check(tb, err)
	closing(tb, p)
	return p
}

// domain is a NIC of one trust domain with registered memory.
type domain struct {
	nic    *registry.Registry
	region *mem.Region
	info   rdma.MRInfo
}

func newDomain(tb testing.TB, p rdma.Provider) *domain {
	tb.Helper()
	set := registry.NewDevices(p).NewSet(registry.Options{})
	closing(tb, set)
	nic, err := set.NIC("soft0")
	check(tb, err)
	d := &domain{nic: nic, region: streamtest.Pageable(tb, 8192)}
	check(tb, nic.Register(rdma.MROptions{Access: access}, d.region))
	m, err := nic.Acquire(mem.All(d.region), access)
	check(tb, err)
	m.Release()
	d.info = m.Info()
	for i := range d.region.Bytes() {
		d.region.Bytes()[i] = byte(i*7 + i>>8)
	}
	return d
}

// open opens a channel and closes it when the test ends.
func (d *domain) open(tb testing.TB, o channel.Options) *channel.Channel {
	tb.Helper()
	o.NIC = d.nic
	c, err := channel.Open(o)
	check(tb, err)
	closing(tb, c)
	return c
}

// loopback opens a channel with one queue pair, connected to itself.
func (d *domain) loopback(tb testing.TB, depth int) (*channel.Channel, *channel.Pair) {
	tb.Helper()
	c := d.open(tb, channel.Options{Depth: depth})
	p := c.Pairs[0]
	check(tb, p.Connect(p.Endpoint))
	return c, p
}

// write returns a request that writes n bytes from the start of d's memory to offset off in another
// domain's memory.
func (d *domain) write(to *domain, off int64, n uint32) rdma.SendWR {
	return rdma.SendWR{
		Flags: rdma.SendSignaled, RKey: to.info.RKey, RemoteAddr: to.info.Addr + uint64(off), SGEs: []rdma.SGE{d.info.SGE(0, n)},
	}
}

func post(tb testing.TB, p *channel.Pair, wrs ...rdma.SendWR) {
	tb.Helper()
	if n, err := p.Post(wrs); n != len(wrs) || err != nil {
		tb.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// next returns the next completion.
func next(tb testing.TB, q rdma.CQ) rdma.WC {
	tb.Helper()
	var wcs [1]rdma.WC
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Microsecond) {
		if n, err := q.Poll(wcs[:]); n > 0 || err != nil {
			check(tb, err)
			return wcs[0]
		}
	}
	tb.Fatal("no request completed")
	return rdma.WC{}
}

// stop stops p without polling completions.
func stop(tb testing.TB, p *channel.Pair, flush time.Duration) {
	tb.Helper()
	for {
		wait, err := p.Stop(flush)
		check(tb, err)
		if wait == 0 {
			return
		}
		time.Sleep(wait)
	}
}

// stuck is a mover that completes no transfer until it is released.
type stuck struct {
	soft.CPUMover
	began, let chan struct{}
}

func (m *stuck) Move(t *soft.Transfer) {
	go func() {
		m.began <- struct{}{}
		<-m.let
		m.CPUMover.Move(t)
	}()
}

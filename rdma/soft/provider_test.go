package soft_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// deviceMover does not reach host memory.
type deviceMover struct{ soft.CPUMover }

func (deviceMover) Reaches(*mem.Region) error { return errdefs.ErrNotSupported }

// TestFaultsNeedAMoverOfHostMemory checks that faults need a mover of host memory, because it
// corrupts bytes with the CPU.
func TestFaultsNeedAMoverOfHostMemory(t *testing.T) {
	p, err := soft.New(soft.Options{Mover: deviceMover{}, Faults: fault.New(1)})
	if p != nil || !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "Faults") {
		t.Errorf("error %v", err)
	}
}

// TestOptionsRefused checks that all errors of the options are reported at once.
func TestOptionsRefused(t *testing.T) {
	gid := rdma.GID{15: 1}
	o := soft.Options{
		DrainTimeout: -1,
		Devices: []soft.DeviceOptions{
			{Name: "a", Ports: []soft.PortOptions{{MTU: 9, MaxMessageBytes: 1<<31 + 1, GIDs: []rdma.GID{gid, {}, {}}}}},
			{Name: "a", Ports: []soft.PortOptions{{GIDs: []rdma.GID{gid}}}},
		},
	}
	_, err := soft.New(o)
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"DrainTimeout", "[0].MTU", "MaxMessageBytes", "Devices[1].Name", "Devices[1].Ports[0].GIDs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not speak of %s: %v", want, err)
		}
	}
}

func TestDevicesAsConfigured(t *testing.T) {
	gid := rdma.GID{0: 0xfe, 1: 0x80, 15: 9}
	p, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{}, {Name: "nic", Ports: []soft.PortOptions{
		{Down: true},
		{MTU: rdma.MTU1024, GIDs: []rdma.GID{{}, gid}, GIDType: rdma.GIDTypeRoCEv1},
	}}}})
	check(t, err)
	closing(t, p)
	if names, err := p.Devices(); err != nil || strings.Join(names, " ") != "soft0 nic" {
		t.Errorf("devices %v, %v", names, err)
	}
	_, err = p.Open("soft1")
	if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "soft0, nic") {
		t.Errorf("open a missing device: %v", err)
	}
	d, err := p.Open("nic")
	check(t, err)
	closing(t, d)
	if i := d.Info(); i.Ports != 2 || i.Name != "nic" || i.Provider != "soft" {
		t.Errorf("info %+v", i)
	}
	if i, err := d.QueryPort(1); err != nil || i.State != rdma.PortDown || i.ActiveMTU != rdma.MTU4096 {
		t.Errorf("port 1: %+v, %v", i, err)
	}
	if i, err := d.QueryPort(2); err != nil || i.State != rdma.PortActive || i.ActiveMTU != rdma.MTU1024 || i.GIDs != 2 {
		t.Errorf("port 2: %+v, %v", i, err)
	}
	if _, err := d.QueryGID(2, 0); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("an empty GID: %v", err)
	}
	if g, err := d.QueryGID(2, 1); err != nil || g.GID != gid || g.Type != rdma.GIDTypeRoCEv1 {
		t.Errorf("GID %+v, %v", g, err)
	}
}

// TestClosedProvider checks that a closed provider opens nothing, and that closing it twice works.
func TestClosedProvider(t *testing.T) {
	p, err := soft.New(soft.Options{})
	check(t, err)
	check(t, p.Close())
	check(t, p.Close())
	if _, err := p.Devices(); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("devices: %v", err)
	}
	if _, err := p.Open("soft0"); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("open: %v", err)
	}
}

// TestManyDevices checks that devices work concurrently, also on each other's memory.
func TestManyDevices(t *testing.T) {
	p, err := soft.New(soft.Options{Devices: make([]soft.DeviceOptions, 4)})
	check(t, err)
	closing(t, p)
	type side struct {
		dev  rdma.Device
		cq   rdma.CQ
		qp   rdma.QP
		info rdma.MRInfo
	}
	host := region(t, 1<<20)
	random(host.Bytes(), 5)
	names, err := p.Devices()
	check(t, err)
	var sides []side
	for _, name := range names {
		var s side
		s.dev, err = p.Open(name)
		check(t, err)
		closing(t, s.dev)
		pd, err := s.dev.AllocPD()
		check(t, err)
		closing(t, pd)
		mr, err := pd.RegMR(mem.All(host), rdma.MROptions{Access: access})
		check(t, err)
		closing(t, mr)
		s.info = mr.Info()
		s.cq, err = s.dev.CreateCQ(rdma.CQOptions{Entries: 256})
		check(t, err)
		closing(t, s.cq)
		s.qp, err = pd.CreateQP(rdma.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Caps: rdma.QPCaps{MaxSendWR: 256, MaxSendSGE: 1}})
		check(t, err)
		closing(t, s.qp)
		sides = append(sides, s)
	}
	for i := range sides {
		other := sides[i^1]
		to, err := rdma.LocalEndpoint(other.dev, other.qp, rdma.ConnectOptions{})
		check(t, err)
		check(t, rdma.Connect(sides[i].dev, sides[i].qp, rdma.ConnectOptions{}, to))
	}
	const piece = 1 << 10
	for round := range 20 {
		for i, s := range sides {
			wrs := make([]rdma.SendWR, 64)
			for k := range wrs {
				at := int64(i<<17 + k*piece)
				wrs[k] = rdma.SendWR{
					Opcode: rdma.WRRDMAWrite, RKey: sides[i^1].info.RKey, RemoteAddr: sides[i^1].info.Addr + uint64(1<<19+at),
					SGEs: []rdma.SGE{s.info.SGE(at, piece)},
				}
			}
			wrs[63].Flags = rdma.SendSignaled
			post(t, s.qp, wrs...)
		}
		for i, s := range sides {
			good(t, s.cq, 1)
			from, to := host.Bytes()[i<<17:][:64*piece], host.Bytes()[1<<19+i<<17:][:64*piece]
			if string(from) != string(to) {
				t.Fatalf("round %d: wrong bytes from device %d", round, i)
			}
			random(from, byte(round))
		}
	}
}

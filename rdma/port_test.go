package rdma_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

func openNIC(t *testing.T, ports ...soft.PortOptions) rdma.Device {
	t.Helper()
	p, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Ports: ports}}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Open("soft0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

var (
	none      = rdma.GID{}
	linkLocal = rdma.GID{0: 0xfe, 1: 0x80, 15: 1}
	global    = rdma.GID{0: 0x20, 1: 0x01, 15: 2}
	ipv4      = rdma.GID{10: 0xff, 11: 0xff, 12: 10, 15: 3}
)

func TestFindPort(t *testing.T) {
	two := 2
	five := 5
	d := openNIC(t,
		soft.PortOptions{Down: true, GIDs: []rdma.GID{{15: 7}}},
		soft.PortOptions{MTU: rdma.MTU2048, GIDs: []rdma.GID{none, linkLocal, global, ipv4}},
	)
	for name, tt := range map[string]struct {
		o    rdma.PortOptions
		want rdma.Port
		err  error
	}{
		"found":         {rdma.PortOptions{}, rdma.Port{Number: 2, GIDIndex: 3, MTU: rdma.MTU2048}, nil},
		"set":           {rdma.PortOptions{Port: 2, GIDIndex: &two, MTU: rdma.MTU512}, rdma.Port{Number: 2, GIDIndex: 2, MTU: rdma.MTU512}, nil},
		"port is down":  {rdma.PortOptions{Port: 1}, rdma.Port{}, errdefs.ErrBroken},
		"no such port":  {rdma.PortOptions{Port: 3}, rdma.Port{}, errdefs.ErrInvalid},
		"empty GID":     {rdma.PortOptions{GIDIndex: new(int)}, rdma.Port{}, errdefs.ErrNotFound},
		"no such GID":   {rdma.PortOptions{GIDIndex: &five}, rdma.Port{}, errdefs.ErrInvalid},
		"MTU too large": {rdma.PortOptions{MTU: rdma.MTU4096}, rdma.Port{}, errdefs.ErrInvalid},
		"no MTU":        {rdma.PortOptions{MTU: 77}, rdma.Port{}, errdefs.ErrInvalid},
	} {
		got, err := rdma.FindPort(d, tt.o)
		if !errors.Is(err, tt.err) || got.Number != tt.want.Number || got.GIDIndex != tt.want.GIDIndex || got.MTU != tt.want.MTU {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err == nil && !strings.Contains(got.Reason, got.GID.GID.String()) {
			t.Errorf("%s: reason %q", name, got.Reason)
		}
	}
}

func TestBestGID(t *testing.T) {
	for name, tt := range map[string]struct {
		gids []rdma.GID
		want int
		err  error
	}{
		"IPv4 first":            {[]rdma.GID{linkLocal, global, ipv4}, 2, nil},
		"global before local":   {[]rdma.GID{linkLocal, none, global}, 2, nil},
		"local where that's it": {[]rdma.GID{none, linkLocal}, 1, nil},
		"empty table":           {[]rdma.GID{none, none}, 0, errdefs.ErrNotFound},
	} {
		p, err := rdma.FindPort(openNIC(t, soft.PortOptions{GIDs: tt.gids}), rdma.PortOptions{})
		if p.GIDIndex != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := rdma.FindPort(openNIC(t, soft.PortOptions{Down: true}), rdma.PortOptions{}); !errors.Is(err, errdefs.ErrBroken) || !strings.Contains(err.Error(), "DOWN") {
		t.Errorf("no active port: %v", err)
	}
}

// gids is a device whose GID table mixes network protocols, unlike that of the software NIC.
type gids struct {
	rdma.Device
	table []rdma.GIDEntry
	link  rdma.LinkLayer
}

func (g *gids) QueryPort(n int) (rdma.PortInfo, error) {
	p, err := g.Device.QueryPort(n)
	p.GIDs, p.LinkLayer = len(g.table), g.link
	return p, err
}

func (g *gids) QueryGID(_, i int) (rdma.GIDEntry, error) {
	e := g.table[i]
	e.Index = i
	return e, nil
}

func TestBestGIDByType(t *testing.T) {
	d := &gids{Device: openNIC(t, soft.PortOptions{}), link: rdma.LinkLayerEthernet, table: []rdma.GIDEntry{
		{GID: linkLocal, Type: rdma.GIDTypeRoCEv1},
		{GID: linkLocal, Type: rdma.GIDTypeRoCEv2},
		{GID: ipv4, Type: rdma.GIDTypeRoCEv1},
		{GID: ipv4, Type: rdma.GIDTypeRoCEv2},
	}}
	for _, want := range []int{3, 1, 2, 0} { // the best of the remaining ones
		p, err := rdma.FindPort(d, rdma.PortOptions{})
		if err != nil || p.GIDIndex != want {
			t.Fatalf("GID %d, want %d: %v", p.GIDIndex, want, err)
		}
		switch want {
		case 3:
			d.table = d.table[:3]
		case 1:
			d.table[1].Type, d.table[1].GID = rdma.GIDTypeRoCEv1, rdma.GID{0: 0xfe, 1: 0x80}
		case 2:
			d.table = d.table[:1]
		}
	}
	d.link, d.table = rdma.LinkLayerInfiniBand, nil
	if p, err := rdma.FindPort(d, rdma.PortOptions{}); err != nil || p.GIDIndex != 0 {
		t.Errorf("InfiniBand without a table: %+v, %v", p, err)
	}
}

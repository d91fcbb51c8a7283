package rdmatest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

func testDevices(t *testing.T, h *harness) {
	names, err := h.prov.Devices()
	must(t, err)
	for _, name := range h.c.Devices {
		if !slices.Contains(names, name) {
			t.Errorf("the list %v has no %s", names, name)
		}
	}
	_, err = h.prov.Open("no such device")
	wantErr(t, "open a device that does not exist", err, errdefs.ErrNotFound)
	i := h.devs[0].Info()
	if i.Provider != h.prov.Name() || i.Name != h.c.Devices[0] || i.Ports < 1 {
		t.Errorf("info %+v", i)
	}
	for what, v := range map[string]int{
		"MaxMR": i.MaxMR, "MaxPD": i.MaxPD, "MaxQP": i.MaxQP, "MaxQPWR": i.MaxQPWR, "MaxSGE": i.MaxSGE, "MaxSGERead": i.MaxSGERead,
		"MaxCQ": i.MaxCQ, "MaxCQE": i.MaxCQE, "MaxSRQ": i.MaxSRQ, "MaxQPRDAtomic": i.MaxQPRDAtomic, "MaxQPInitRDAtomic": i.MaxQPInitRDAtomic,
	} {
		if v < 1 {
			t.Errorf("%s is %d", what, v)
		}
	}
	second, err := h.prov.Open(h.c.Devices[0])
	must(t, err)
	if second.Info() != i {
		t.Errorf("opened again it is %+v", second.Info())
	}
	must(t, second.Close())
}

func testPort(t *testing.T, h *harness) {
	d := h.devs[0]
	p, err := d.QueryPort(h.c.Port)
	must(t, err)
	if p.Number != h.c.Port || p.State != rdma.PortActive || p.MaxMessageBytes < 1<<20 || p.GIDs <= h.c.GIDIndex ||
		p.ActiveMTU.Bytes() < 256 || p.MaxMTU < p.ActiveMTU {
		t.Errorf("port %+v", p)
	}
	for _, n := range []int{-1, 0, d.Info().Ports + 1, 1000} {
		_, err := d.QueryPort(n)
		wantErr(t, "query a port that does not exist", err, errdefs.ErrInvalid)
	}
}

func testGID(t *testing.T, h *harness) {
	d := h.devs[0]
	p, err := d.QueryPort(h.c.Port)
	must(t, err)
	g, err := d.QueryGID(h.c.Port, h.c.GIDIndex)
	must(t, err)
	if g.GID == (rdma.GID{}) || g.Index != h.c.GIDIndex {
		t.Errorf("entry %+v", g)
	}
	for _, i := range []int{-1, p.GIDs, p.GIDs + 1000} {
		_, err = d.QueryGID(h.c.Port, i)
		wantErr(t, "query an entry beyond the table", err, errdefs.ErrInvalid)
	}
	_, err = d.QueryGID(d.Info().Ports+1, 0)
	wantErr(t, "query an entry of a port that does not exist", err, errdefs.ErrInvalid)
}

// testEventWait checks that WaitEvent returns when its context ends and when the device is closed.
func testEventWait(t *testing.T, h *harness) {
	d, err := h.prov.Open(h.c.Devices[0])
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), glance)
	defer cancel()
	if e, err := d.WaitEvent(ctx); err == nil {
		t.Errorf("event %+v", e)
	} else {
		wantErr(t, "wait for an event", err, context.DeadlineExceeded)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := d.WaitEvent(t.Context())
		ended <- err
	}()
	time.Sleep(time.Millisecond)
	must(t, d.Close())
	wantErr(t, "wait for an event of a device that closes", <-ended, errdefs.ErrClosed)
	_, err = d.WaitEvent(t.Context())
	wantErr(t, "wait for an event of a closed device", err, errdefs.ErrClosed)
}

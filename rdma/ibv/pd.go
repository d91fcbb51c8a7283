package ibv

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// PD implements rdma.PD.
type PD struct {
	object
	dev    *Device
	native ibverbs.PD
}

// AllocPD implements rdma.Device.
func (d *Device) AllocPD() (rdma.PD, error) {
	if err := d.adopt(); err != nil {
		return nil, fmt.Errorf("create protection domain: %w", err)
	}
	native, errno := d.api.AllocPD(d.ctx)
	if err := check(errno, "ibv_alloc_pd", "device=%s", d.info.Name); err != nil {
		d.release()
		return nil, fmt.Errorf("create protection domain of %s: %w", d.what, err)
	}
	p := &PD{dev: d, native: native}
	p.open("protection domain of %s", d.info.Name)
	return p, nil
}

// Close implements rdma.PD.
func (p *PD) Close() error {
	return p.close(func() error {
		return check(p.dev.api.DeallocPD(p.native), "ibv_dealloc_pd", "device=%s", p.dev.info.Name)
	}, func() error {
		p.dev.release()
		return nil
	})
}

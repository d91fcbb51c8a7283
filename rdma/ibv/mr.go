package ibv

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// MR implements rdma.MR.
type MR struct {
	object
	pd     *PD
	native ibverbs.MR
	info   rdma.MRInfo
}

// RegMR implements rdma.PD.
func (p *PD) RegMR(e mem.Extent, o rdma.MROptions) (rdma.MR, error) {
	return p.register(e, &o, func(iova uint64) (ibverbs.Registration, error) {
		addr := rdma.MappedAddr(e)
		r, errno := p.dev.api.RegMR(p.native, addr, uint64(e.Len), iova, uint32(o.Access))
		return r, registerError(e, addr, iova, o.Access, errno)
	})
}

// RegDMABufMR implements rdma.PD.
func (p *PD) RegDMABufMR(e mem.Extent, fd int, off int64, o rdma.MROptions) (rdma.MR, error) {
	return p.register(e, &o, func(iova uint64) (r ibverbs.Registration, err error) {
		const call = "ibv_reg_dmabuf_mr"
		args := fmt.Sprintf("fd=%d offset=%d bytes=%d iova=%#x access=%s", fd, off, e.Len, iova, o.Access)
		switch {
		case e.Region.Kind() != mem.KindDevice:
			return r, fmt.Errorf("%s is not device memory: %w", e.Region, errdefs.ErrInvalid)
		case fd < 0 || off < 0:
			return r, rdma.NewError(call, args, unix.EINVAL, "the descriptor and the offset must not be negative")
		case p.dev.api.RegDMABufMR == nil:
			return r, rdma.NewError(call, args, unix.ENOSYS, "libibverbs is older than rdma-core 34")
		}
		r, errno := p.dev.api.RegDMABufMR(p.native, uint64(off), uint64(e.Len), iova, fd, uint32(o.Access))
		if errno == unix.EOPNOTSUPP || errno == unix.EPROTONOSUPPORT {
			return r, rdma.NewError(call, args, errno, "the driver of "+p.dev.info.Name+", or a kernel before 5.12, cannot register dma-bufs")
		}
		return r, check(errno, call, "%s", args)
	})
}

// register checks the options and creates the region with reg. Both registration methods use it.
func (p *PD) register(e mem.Extent, o *rdma.MROptions, reg func(iova uint64) (ibverbs.Registration, error)) (rdma.MR, error) {
	fail := func(err error) (rdma.MR, error) {
		return nil, fmt.Errorf("register memory with %s: %w", p.what, err)
	}
	if err := o.Validate(e); err != nil {
		return fail(err)
	}
	if err := p.adopt(); err != nil {
		return fail(err)
	}
	addr := o.Addr(e)
	r, err := reg(addr)
	if err != nil {
		p.release()
		return fail(err)
	}
	m := &MR{pd: p, native: r.MR, info: rdma.MRInfo{Extent: e, Addr: addr, LKey: r.LKey, RKey: r.RKey, Access: o.Access}}
	m.open("memory region %#x of %s", r.LKey, p.dev.info.Name)
	return m, nil
}

// registerError returns the error of a failed registration with its likely cause, or nil if errno
// is zero.
func registerError(e mem.Extent, addr, iova uint64, access rdma.Access, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	text, kind := "", error(nil)
	switch errno {
	case unix.ENOMEM:
		text = lockedMemoryLimit()
	case unix.EFAULT, unix.EINVAL, unix.EOPNOTSUPP:
		switch {
		case e.CPU() == 0 && !peerMemory():
			text = "device memory needs the kernel module nvidia_peermem, which is not loaded, or registration by dma-buf"
			kind = errdefs.ErrNotSupported
		case iova != addr && iova == rdma.OwnAddr(e):
			text = "the driver cannot register host-pinned memory at its device address (ibv_reg_mr_iova)"
			kind = errdefs.ErrNotSupported
		case iova != addr:
			text = "the driver may require the memory's address as IOVA"
		}
	default:
	}
	err := rdma.NewError("ibv_reg_mr", fmt.Sprintf("addr=%#x bytes=%d iova=%#x access=%s", addr, e.Len, iova, access), errno, text)
	if kind != nil {
		err.Kind = kind
	}
	return err
}

// peerMemory reports whether the kernel module for NIC access to GPU memory is loaded, under its
// current or former name.
func peerMemory() bool {
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := os.Stat("/sys/module/" + module); !errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return false
}

// lockedMemoryLimit returns a text with the limit on locked memory, or an empty string if there is
// no limit.
func lockedMemoryLimit() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == math.MaxUint64 {
		return ""
	}
	return fmt.Sprintf("this process may lock %d bytes of memory (ulimit -l)", limit.Cur)
}

// Info implements rdma.MR.
func (m *MR) Info() rdma.MRInfo { return m.info }

// Close implements rdma.MR.
func (m *MR) Close() error {
	return m.close(func() error {
		return check(m.pd.dev.api.DeregMR(m.native), "ibv_dereg_mr", "lkey=%#x", m.info.LKey)
	}, func() error {
		m.pd.release()
		return nil
	})
}

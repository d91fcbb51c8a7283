package ibv

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// name is the name of the provider in configurations and tables.
const name = "ibv"

// Provider is the loaded library. It is safe for concurrent use.
type Provider struct {
	object
	api *ibverbs.API

	mu      sync.Mutex
	retries map[string]*atomic.Int64 // number of retries by device; see ConnectRetries
}

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.RetryCounter = (*Provider)(nil)
)

// Load loads libibverbs. If it is missing or older than rdma-core 33, Load returns ErrNotSupported
// with the reason.
//
// It switches scatter-to-CQE of mlx5 off for the process, by which the CPU copies short receives to
// memory that may be a device's.
func Load() (*Provider, error) {
	if err := os.Setenv(scatterToCQE, "0"); err != nil {
		return nil, fmt.Errorf("load RDMA verbs: %w", err)
	}
	api, err := ibverbs.Load()
	if err != nil {
		return nil, fmt.Errorf("load RDMA verbs: %w", err)
	}
	return newProvider(api), nil
}

// scatterToCQE is a variable that libmlx5 reads when it creates a queue pair. In programs with
// purego, as in programs with cgo, os.Setenv changes the environment of C libraries.
const scatterToCQE = "MLX5_SCATTER_TO_CQE"

func newProvider(api *ibverbs.API) *Provider {
	p := &Provider{api: api, retries: make(map[string]*atomic.Int64)}
	p.open("RDMA verbs")
	return p
}

// Name returns "ibv".
func (p *Provider) Name() string { return name }

// Devices implements rdma.Provider.
func (p *Provider) Devices() ([]string, error) {
	var names []string
	err := p.list(func(l ibverbs.DeviceList) error {
		names = p.names(l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	return names, nil
}

// Open implements rdma.Provider.
func (p *Provider) Open(device string) (rdma.Device, error) {
	var d *Device
	err := p.list(func(l ibverbs.DeviceList) error {
		names := p.names(l)
		i := slices.Index(names, device)
		if i < 0 {
			return fmt.Errorf("no such device, this machine has %s: %w", strings.Join(names, ", "), errdefs.ErrNotFound)
		}
		var err error
		d, err = openDevice(p, l.Devices[i], device)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open RDMA device %q: %w", device, err)
	}
	return d, nil
}

// ConnectRetries implements rdma.RetryCounter.
func (p *Provider) ConnectRetries(device string) int64 { return p.retriesOf(device).Load() }

// retriesOf returns the retry counter of a device. All users of the device share it.
func (p *Provider) retriesOf(device string) *atomic.Int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retries[device] == nil {
		p.retries[device] = new(atomic.Int64)
	}
	return p.retries[device]
}

// Close implements rdma.Provider. The library itself stays loaded.
func (p *Provider) Close() error {
	nothing := func() error { return nil }
	return p.close(nothing, nothing)
}

// list calls use with the list of devices, which is not empty. The list is valid until use returns.
func (p *Provider) list(use func(ibverbs.DeviceList) error) error {
	if err := p.beginCall(); err != nil {
		return err
	}
	defer p.endCall()
	l, errno := p.api.GetDeviceList()
	if errno != 0 {
		return noDevices(errno)
	}
	defer p.api.FreeDeviceList(l)
	if len(l.Devices) == 0 {
		return noDevices(0)
	}
	return use(l)
}

// noDevices returns the error for a machine without a device. errno distinguishes a kernel without
// RDMA support from one without devices.
func noDevices(errno syscall.Errno) error {
	const call = "ibv_get_device_list"
	switch errno {
	case 0:
		return fmt.Errorf("this machine has no RDMA device, or no driver for it is loaded: %w", errdefs.ErrNotSupported)
	case unix.ENOSYS:
		return rdma.NewError(call, "", errno, "this kernel has no RDMA support loaded (module ib_uverbs)")
	default:
		return rdma.NewError(call, "", errno, "")
	}
}

func (p *Provider) names(l ibverbs.DeviceList) []string {
	names := make([]string, len(l.Devices))
	for i, d := range l.Devices {
		names[i] = p.api.GetDeviceName(d)
	}
	return names
}

// ownObject returns v if it has type T and belongs to d. Otherwise it returns an error that names
// the expected object.
func ownObject[T interface{ deviceOf() *Device }](d *Device, v any, what string) (T, error) {
	own, ok := v.(T)
	if !ok || own.deviceOf() != d {
		var none T
		return none, fmt.Errorf("the %s is not of %s: %w", what, d.what, errdefs.ErrInvalid)
	}
	return own, nil
}

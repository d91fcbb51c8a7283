package cuda

import (
	"fmt"
	"os"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/cufile"
)

// Driver is the loaded and initialised driver. It needs no Close, because a driver stays in its
// process. It is safe for concurrent use.
type Driver struct {
	api     *cuda.API
	version string
	cufile  *cufile.Driver // shared by the whole process
}

// Load loads and initialises the driver. Without a driver or a GPU, or with a driver older than
// CUDA 12.0, the error wraps ErrNotSupported and states the reason.
func Load() (*Driver, error) {
	api, err := cuda.Load()
	if err != nil {
		return nil, fmt.Errorf("load CUDA driver: %w", err)
	}
	d, err := newDriver(api)
	if err != nil {
		return nil, fmt.Errorf("load CUDA driver: %w", err)
	}
	return d, nil
}

func newDriver(api *cuda.API) (*Driver, error) {
	if r := api.Init(0); r != cuda.Success {
		return nil, nativeError(api, r, "cuInit", "flags=0")
	}
	v, r := api.DriverGetVersion()
	if r != cuda.Success {
		return nil, nativeError(api, r, "cuDriverGetVersion", "")
	}
	d := &Driver{api: api, version: versionText(v), cufile: libcufile}
	switch n, err := d.Count(); {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, fmt.Errorf("the driver reports no GPU: %w", errdefs.ErrNotSupported)
	}
	return d, nil
}

// versionText returns the version of the kernel's driver, if it is known, with the version of the
// CUDA interface.
func versionText(v int) string {
	s := fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10)
	if b, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		s = strings.TrimSpace(string(b)) + " (" + s + ")"
	}
	return s
}

// Version returns the driver's version: "580.159.03 (CUDA 13.0)".
func (d *Driver) Version() string { return d.version }

// Count returns the number of GPUs that are visible to this process.
func (d *Driver) Count() (int, error) {
	n, r := d.api.DeviceGetCount()
	if r != cuda.Success {
		return 0, fmt.Errorf("count devices: %w", nativeError(d.api, r, "cuDeviceGetCount", ""))
	}
	return n, nil
}

// Infos describes the GPUs that are visible to this process, without opening them.
func (d *Driver) Infos() ([]device.Info, error) {
	n, err := d.Count()
	if err != nil {
		return nil, err
	}
	all := make([]device.Info, n)
	for i := range all {
		id, r := d.api.DeviceGet(i)
		if r != cuda.Success {
			return nil, nativeError(d.api, r, "cuDeviceGet", "ordinal=%d", i)
		}
		if all[i], err = describe(d.api, id, i, d.version); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Options configures a device. The zero value is ready to use.
type Options struct {
	// CTAs is the number of thread blocks of a launch that specifies none. Zero means DefaultCTAs.
	CTAs int
}

// DefaultCTAs is the number of thread blocks of a launch if neither the launch nor the options
// specify one. It suffices for copies at the rate of PCIe 5 x16, and leaves the other SMs to the
// engine.
const DefaultCTAs = 16

// Validate returns every problem of the options.
func (o Options) Validate() error {
	if o.CTAs < 0 {
		return fmt.Errorf("%d thread blocks: must not be negative: %w", o.CTAs, errdefs.ErrInvalid)
	}
	return nil
}

// Open opens the GPU with this index, counted from zero among the visible GPUs. A GPU may be opened
// several times. The error wraps ErrNotFound if there is no such GPU.
func (d *Driver) Open(index int, o Options) (device.Device, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open device %d: %w", index, err)
	}
	n, err := d.Count()
	if err != nil {
		return nil, fmt.Errorf("open device %d: %w", index, err)
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("open device %d: no such device, this machine has %s: %w", index, indices(n), errdefs.ErrNotFound)
	}
	dev, err := openDevice(d, index, o)
	if err != nil {
		return nil, fmt.Errorf("open device %d: %w", index, err)
	}
	return dev, nil
}

// OpenUUID opens the GPU with the UUID of a device.Info. The error wraps ErrNotFound if that GPU is
// not visible.
func (d *Driver) OpenUUID(uuid string, o Options) (device.Device, error) {
	index, r, call := indexOf(d.api, uuid)
	switch {
	case r != cuda.Success:
		return nil, fmt.Errorf("find device %s: %w", uuid, nativeError(d.api, r, call, ""))
	case index < 0:
		return nil, fmt.Errorf("open device %s: no visible device has this UUID: %w", uuid, errdefs.ErrNotFound)
	}
	return d.Open(index, o)
}

// OpenUUID loads the driver and opens the GPU with this UUID and default options.
func OpenUUID(uuid string) (device.Device, error) {
	drv, err := Load()
	if err != nil {
		return nil, err
	}
	return drv.OpenUUID(uuid, Options{})
}

// indexOf returns the index of the GPU with this UUID among the visible GPUs, or -1.
func indexOf(api *cuda.API, uuid string) (index int, r cuda.Result, call string) {
	n, r := api.DeviceGetCount()
	if r != cuda.Success {
		return -1, r, "cuDeviceGetCount"
	}
	for i := range n {
		id, r := api.DeviceGet(i)
		if r != cuda.Success {
			return -1, r, "cuDeviceGet"
		}
		raw, r := api.DeviceGetUUID(id)
		if r != cuda.Success {
			return -1, r, "cuDeviceGetUuid_v2"
		}
		if uuidText(raw) == uuid {
			return i, r, ""
		}
	}
	return -1, cuda.Success, ""
}

func indices(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d (0..%d)", n, n-1)
}

// Package nvml asks NVIDIA's management library how two GPUs are connected. CUDA's driver would tell it too, but only of
// devices that this process may use, and not over what.
//
// The constants are from nvml.h. A Library is safe for concurrent use, as NVML itself is; no call needs a CUDA context.
package nvml

import (
	"errors"
	"fmt"

	"github.com/ebitengine/purego"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
)

// result is nvmlReturn_t; zero is success.
type result int32

const (
	success           result = 0
	errNotSupported   result = 3
	errNoPermission   result = 4
	errNotFound       result = 6
	errDriverUnloaded result = 9
)

// Values of nvmlGpuP2PCapsIndex_t.
const (
	capsRead   int32 = 0
	capsWrite  int32 = 1
	capsNVLink int32 = 2
)

// p2pStatuses are the names of nvmlGpuP2PStatus_t, by value; zero is "ok".
var p2pStatuses = [...]string{
	"ok", "the chip set does not support it", "the GPU does not support it", "the I/O hub topology does not support it",
	"disabled by a driver option", "not supported", "unknown",
}

// handle is nvmlDevice_t.
type handle uintptr

// Library is the loaded and initialized library.
type Library struct {
	lib           *dl.Library
	shutdown      func() result
	errorString   func(result) string
	handleByPCI   func(pci string, h *handle) result
	p2pStatus     func(a, b handle, caps int32, status *int32) result
	driverVersion func(buf *byte, bytes uint32) result
}

// Load opens and initializes the library. The error wraps ErrNotSupported where it or one of its functions is missing.
func Load() (*Library, error) {
	lib, err := dl.Open("libnvidia-ml.so.1")
	if err != nil {
		return nil, fmt.Errorf("load NVML: %w", err)
	}
	l := &Library{lib: lib}
	var start func() result
	for _, f := range []struct {
		name string
		fn   any
	}{
		{"nvmlInit_v2", &start},
		{"nvmlShutdown", &l.shutdown},
		{"nvmlErrorString", &l.errorString},
		{"nvmlDeviceGetHandleByPciBusId_v2", &l.handleByPCI},
		{"nvmlDeviceGetP2PStatus", &l.p2pStatus},
		{"nvmlSystemGetDriverVersion", &l.driverVersion},
	} {
		addr, err := lib.Symbol(f.name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("load NVML: %w", err), lib.Close())
		}
		purego.RegisterFunc(f.fn, addr)
	}
	if err := l.check(start(), "nvmlInit_v2", ""); err != nil {
		return nil, errors.Join(fmt.Errorf("load NVML: %w", err), lib.Close())
	}
	return l, nil
}

// Close ends the use of the library.
func (l *Library) Close() error {
	return errors.Join(l.check(l.shutdown(), "nvmlShutdown", ""), l.lib.Close())
}

// DriverVersion returns the version of the installed driver: "580.65.06".
func (l *Library) DriverVersion() (string, error) {
	buf := make([]byte, 80) // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	if err := l.check(l.driverVersion(&buf[0], uint32(len(buf))), "nvmlSystemGetDriverVersion", ""); err != nil {
		return "", err
	}
	for i, c := range buf {
		if c == 0 {
			return string(buf[:i]), nil
		}
	}
	return string(buf), nil
}

// Peer says how the GPU at PCI address from reaches the memory of the one at to. The error is nil if it reads and writes
// it directly, and wraps ErrNotSupported with the reason if it cannot; nvlink says whether NVLink connects them.
func (l *Library) Peer(from, to string) (nvlink bool, err error) {
	var h [2]handle
	for i, pci := range []string{from, to} {
		if err := l.check(l.handleByPCI(pci, &h[i]), "nvmlDeviceGetHandleByPciBusId_v2", "pci="+pci); err != nil {
			return false, err
		}
	}
	status := func(caps int32) (int32, error) {
		var s int32
		err := l.check(l.p2pStatus(h[0], h[1], caps, &s), "nvmlDeviceGetP2PStatus", fmt.Sprintf("from=%s to=%s caps=%d", from, to, caps))
		return s, err
	}
	// A driver may not know the question about NVLink; then it is not claimed.
	if s, err := status(capsNVLink); err == nil {
		nvlink = s == 0
	}
	for _, caps := range []int32{capsRead, capsWrite} {
		s, err := status(caps)
		if err != nil {
			return nvlink, err
		}
		if s != 0 {
			return nvlink, fmt.Errorf("peer access from %s to %s: %s: %w", from, to, statusText(s), errdefs.ErrNotSupported)
		}
	}
	return nvlink, nil
}

func statusText(s int32) string {
	if s >= 0 && int(s) < len(p2pStatuses) {
		return p2pStatuses[s]
	}
	return fmt.Sprintf("status %d", s)
}

func (l *Library) check(r result, call, args string) error {
	if r == success {
		return nil
	}
	e := &device.Error{Call: call, Args: args, Code: int(r), Name: "NVML", Text: l.errorString(r)}
	switch r {
	case errNotSupported, errDriverUnloaded:
		e.Kind = errdefs.ErrNotSupported
	case errNotFound:
		e.Kind = errdefs.ErrNotFound
	case errNoPermission, success:
	}
	return e
}

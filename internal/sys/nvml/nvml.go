// Package nvml queries NVIDIA's management library for the connections between GPUs, and the
// traffic of their NVLinks. The CUDA driver API reports only devices that this process may use, and
// does not report the type of connection.
//
// The constants are from nvml.h. A Library is safe for concurrent use. No call needs a CUDA
// context.
package nvml

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
)

// result is nvmlReturn_t; zero is success.
type result int32

const (
	success            result = 0
	errInvalidArgument result = 2
	errNotSupported    result = 3
	errNoPermission    result = 4
	errNotFound        result = 6
	errDriverUnloaded  result = 9
)

// maxNVLinks is NVML_NVLINK_MAX_LINKS.
const maxNVLinks = 18

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	BusIDLegacy                                [16]byte
	Domain, Bus, Device, DeviceID, SubsystemID uint32
	BusID                                      [32]byte
}

// fieldValue is nvmlFieldValue_t, with the union member of counters.
type fieldValue struct {
	ID, Scope            uint32
	Timestamp, LatencyUS int64
	Type                 int32
	Result               result
	Value                uint64
}

// IDs of the counters of NVLink traffic in KiB without protocol overhead, and the scope that
// selects all links.
const (
	fieldNVLinkSent     = 138 // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
	fieldNVLinkReceived = 139 // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
	allLinks            = math.MaxUint32
)

// Values of nvmlGpuP2PCapsIndex_t.
const (
	capsRead   int32 = 0
	capsWrite  int32 = 1
	capsNVLink int32 = 2
)

// p2pStatuses are descriptions of nvmlGpuP2PStatus_t by value. Zero is "ok".
var p2pStatuses = [...]string{
	"ok", "the chip set does not support it", "the GPU does not support it", "the I/O hub topology does not support it",
	"disabled by a driver option", "not supported", "unknown",
}

// handle is nvmlDevice_t.
type handle uintptr

// Library is the loaded and initialized library.
type Library struct {
	lib         *dl.Library
	shutdown    func() result
	errorString func(result) string
	handleByPCI func(pci string, h *handle) result
	p2pStatus   func(a, b handle, caps int32, status *int32) result
	linkState   func(h handle, link uint32, active *uint32) result
	linkRemote  func(h handle, link uint32, info *pciInfo) result
	fieldValues func(h handle, n int32, values *fieldValue) result
}

// Load opens and initializes the library. The error wraps ErrNotSupported if the library or one of
// its functions is missing.
func Load() (*Library, error) {
	lib, err := dl.Open("libnvidia-ml.so.1")
	if err != nil {
		return nil, fmt.Errorf("load NVML: %w", err)
	}
	l := &Library{lib: lib}
	var start func() result
	symbols := lib.Symbols()
	symbols.Bind(&start, "nvmlInit_v2")
	symbols.Bind(&l.shutdown, "nvmlShutdown")
	symbols.Bind(&l.errorString, "nvmlErrorString")
	symbols.Bind(&l.handleByPCI, "nvmlDeviceGetHandleByPciBusId_v2")
	symbols.Bind(&l.p2pStatus, "nvmlDeviceGetP2PStatus")
	symbols.Bind(&l.linkState, "nvmlDeviceGetNvLinkState")
	symbols.Bind(&l.linkRemote, "nvmlDeviceGetNvLinkRemotePciInfo_v2")
	symbols.Bind(&l.fieldValues, "nvmlDeviceGetFieldValues")
	if err := symbols.Missing(); err != nil {
		return nil, errors.Join(fmt.Errorf("load NVML: %w", err), lib.Close())
	}
	if err := l.check(start(), "nvmlInit_v2", ""); err != nil {
		return nil, errors.Join(fmt.Errorf("load NVML: %w", err), lib.Close())
	}
	return l, nil
}

// Close shuts the library down.
func (l *Library) Close() error {
	return errors.Join(l.check(l.shutdown(), "nvmlShutdown", ""), l.lib.Close())
}

// Peer reports how the GPU at PCI address from can access memory of the GPU at address to. err is
// nil if direct access is possible, and wraps ErrNotSupported with the reason if it is not. nvlink
// reports whether NVLink connects the GPUs.
func (l *Library) Peer(from, to string) (nvlink bool, err error) {
	a, err := l.handle(from)
	if err != nil {
		return false, err
	}
	b, err := l.handle(to)
	if err != nil {
		return false, err
	}
	status := func(caps int32) (int32, error) {
		var s int32
		err := l.check(l.p2pStatus(a, b, caps, &s), "nvmlDeviceGetP2PStatus", fmt.Sprintf("from=%s to=%s caps=%d", from, to, caps))
		return s, err
	}
	// Drivers without this query do not report NVLink.
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

// NVLinks returns the PCI address of the other end of each active NVLink of the GPU at address pci.
// An element is "" if the driver does not report the address, as in virtual machines. For a GPU
// without NVLink the result is empty, or the error is ErrNotSupported.
func (l *Library) NVLinks(pci string) ([]string, error) {
	h, err := l.handle(pci)
	if err != nil {
		return nil, err
	}
	var ends []string
	for link := range uint32(maxNVLinks) {
		var active uint32
		switch r := l.linkState(h, link, &active); {
		case r == errInvalidArgument, r == errNotSupported && link > 0:
			return ends, nil // no more links
		case r != success:
			return nil, l.check(r, "nvmlDeviceGetNvLinkState", fmt.Sprintf("pci=%s link=%d", pci, link))
		case active == 0:
			continue
		}
		var info pciInfo
		var end string
		if l.linkRemote(h, link, &info) == success {
			end = fmt.Sprintf("%04x:%02x:%02x.0", info.Domain, info.Bus, info.Device)
		}
		ends = append(ends, end)
	}
	return ends, nil
}

// NVLinkBytes returns the number of data bytes that the GPU at address pci has sent and received
// over all NVLinks since the driver was loaded, with a resolution of 1 KiB. It returns
// ErrNotSupported without NVLink, and if the driver has no counters, as in virtual machines.
func (l *Library) NVLinkBytes(pci string) (sent, received int64, err error) {
	h, err := l.handle(pci)
	if err != nil {
		return 0, 0, err
	}
	values := [2]fieldValue{{ID: fieldNVLinkSent, Scope: allLinks}, {ID: fieldNVLinkReceived, Scope: allLinks}}
	if err := l.check(l.fieldValues(h, int32(len(values)), &values[0]), "nvmlDeviceGetFieldValues", "pci="+pci); err != nil {
		return 0, 0, err
	}
	for _, v := range values {
		if err := l.check(v.Result, "nvmlDeviceGetFieldValues", fmt.Sprintf("pci=%s field=%d", pci, v.ID)); err != nil {
			return 0, 0, err
		}
	}
	return int64(values[0].Value << 10), int64(values[1].Value << 10), nil
}

func (l *Library) handle(pci string) (h handle, err error) {
	err = l.check(l.handleByPCI(pci, &h), "nvmlDeviceGetHandleByPciBusId_v2", "pci="+pci)
	return h, err
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
	case errInvalidArgument, errNoPermission, success:
	}
	return e
}

package nvml

import (
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// The library opens pipes when it is first initialized and keeps them. They are not leaks of the
// tests.
func TestMain(m *testing.M) {
	if l, err := Load(); err == nil {
		_ = l.Close() // TestLoad reports errors
	}
	testkit.Main(m)
}

// library returns a fake library in Go with two GPUs, of which the first can read memory of the
// second.
func library(status func(caps int32) (int32, result)) *Library {
	return &Library{
		shutdown:    func() result { return success },
		errorString: func(result) string { return "as told" },
		handleByPCI: func(pci string, h *handle) result {
			if pci != "0000:01:00.0" && pci != "0000:02:00.0" {
				return errNotFound
			}
			*h = 1
			return success
		},
		p2pStatus: func(_, _ handle, caps int32, s *int32) result {
			v, r := status(caps)
			*s = v
			return r
		},
	}
}

func TestPeer(t *testing.T) {
	for _, c := range []struct {
		name   string
		status func(caps int32) (int32, result)
		nvlink bool
		want   error
	}{
		{"all over NVLink", func(int32) (int32, result) { return 0, success }, true, nil},
		{"over PCIe", func(caps int32) (int32, result) { return 5 * (caps / capsNVLink), success }, false, nil},
		{"not at all", func(int32) (int32, result) { return 3, success }, false, errdefs.ErrNotSupported},
		{"reads, does not write", func(caps int32) (int32, result) { return 2 * (caps % 2), success }, true, errdefs.ErrNotSupported},
		{"old driver that does not know NVLink", func(caps int32) (int32, result) {
			if caps == capsNVLink {
				return 0, errNotSupported
			}
			return 0, success
		}, false, nil},
		{"refused", func(int32) (int32, result) { return 0, errDriverUnloaded }, false, errdefs.ErrNotSupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			nvlink, err := library(c.status).Peer("0000:01:00.0", "0000:02:00.0")
			if nvlink != c.nvlink || !errors.Is(err, c.want) {
				t.Errorf("nvlink %v, error %v; want %v, %v", nvlink, err, c.nvlink, c.want)
			}
		})
	}
}

func TestPeerOfUnknownDevice(t *testing.T) {
	l := library(func(int32) (int32, result) { return 0, success })
	_, err := l.Peer("0000:01:00.0", "0000:ff:00.0")
	var native *device.Error
	if !errors.As(err, &native) || native.Args != "pci=0000:ff:00.0" || !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("error %v, want the call, its argument and ErrNotFound", err)
	}
}

func TestNVLinks(t *testing.T) {
	l := library(nil)
	l.linkState = func(_ handle, link uint32, active *uint32) result {
		if link == 3 {
			return errInvalidArgument // a GPU with three links
		}
		*active = 1 - link%2
		return success
	}
	l.linkRemote = func(_ handle, link uint32, info *pciInfo) result {
		if link == 2 {
			return errNotSupported
		}
		info.Domain, info.Bus, info.Device = 1, 0xab, 0x1f
		return success
	}
	ends, err := l.NVLinks("0000:01:00.0")
	if err != nil || !slices.Equal(ends, []string{"0001:ab:1f.0", ""}) {
		t.Errorf("links to %q, %v; want the first link with its address, and the third without", ends, err)
	}
	l.linkState = func(handle, uint32, *uint32) result { return errNotSupported }
	if ends, err := l.NVLinks("0000:01:00.0"); len(ends) != 0 || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a GPU without NVLink: %q, %v", ends, err)
	}
	if _, err := l.NVLinks("0000:ff:00.0"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("an unknown GPU: %v", err)
	}
}

func TestNVLinkBytes(t *testing.T) {
	l := library(nil)
	refused := success
	l.fieldValues = func(_ handle, n int32, first *fieldValue) result {
		for _, v := range unsafe.Slice(first, n) {
			if v.Scope != allLinks {
				t.Errorf("field %d of link %d", v.ID, v.Scope)
			}
		}
		values := unsafe.Slice(first, n)
		values[0].Value, values[1].Value, values[1].Result = 3, 5, refused
		return success
	}
	sent, received, err := l.NVLinkBytes("0000:01:00.0")
	if sent != 3<<10 || received != 5<<10 || err != nil {
		t.Errorf("%d bytes sent, %d received, %v", sent, received, err)
	}
	refused = errNotSupported
	if _, _, err := l.NVLinkBytes("0000:01:00.0"); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a missing counter: %v", err)
	}
	l.fieldValues = func(handle, int32, *fieldValue) result { return errNotSupported }
	if _, _, err := l.NVLinkBytes("0000:01:00.0"); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("no counters: %v", err)
	}
	if _, _, err := l.NVLinkBytes("0000:ff:00.0"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("an unknown GPU: %v", err)
	}
}

var header = headertest.Header{Feature: "nvml-headers", Include: "#include <nvml.h>"}

func layouts() map[string]uintptr {
	var info pciInfo
	var value fieldValue
	return map[string]uintptr{
		"nvmlFieldValue_t":            unsafe.Sizeof(value),
		"nvmlFieldValue_t.scopeId":    unsafe.Offsetof(value.Scope),
		"nvmlFieldValue_t.valueType":  unsafe.Offsetof(value.Type),
		"nvmlFieldValue_t.nvmlReturn": unsafe.Offsetof(value.Result),
		"nvmlFieldValue_t.value":      unsafe.Offsetof(value.Value),
		"nvmlPciInfo_t":               unsafe.Sizeof(info),
		"nvmlPciInfo_t.domain":        unsafe.Offsetof(info.Domain),
		"nvmlPciInfo_t.bus":           unsafe.Offsetof(info.Bus),
		"nvmlPciInfo_t.device":        unsafe.Offsetof(info.Device),
	}
}

func TestBindingIsOfTheHeader(t *testing.T) {
	header.Compile(t, header.Layouts(layouts())+headertest.Constants(map[string]int64{
		"NVML_SUCCESS":                           int64(success),
		"NVML_ERROR_INVALID_ARGUMENT":            int64(errInvalidArgument),
		"NVML_ERROR_NOT_SUPPORTED":               int64(errNotSupported),
		"NVML_ERROR_NO_PERMISSION":               int64(errNoPermission),
		"NVML_ERROR_NOT_FOUND":                   int64(errNotFound),
		"NVML_ERROR_DRIVER_NOT_LOADED":           int64(errDriverUnloaded),
		"NVML_NVLINK_MAX_LINKS":                  maxNVLinks,
		"NVML_P2P_CAPS_INDEX_READ":               int64(capsRead),
		"NVML_P2P_CAPS_INDEX_WRITE":              int64(capsWrite),
		"NVML_P2P_CAPS_INDEX_NVLINK":             int64(capsNVLink),
		"NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE": 80,
		"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX":  fieldNVLinkSent,
		"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX":  fieldNVLinkReceived,
	})+headertest.Signatures(map[string]string{
		"nvmlDeviceGetHandleByPciBusId_v2":    "nvmlReturn_t (*f)(const char *, nvmlDevice_t *)",
		"nvmlDeviceGetP2PStatus":              "nvmlReturn_t (*f)(nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t *)",
		"nvmlDeviceGetNvLinkState":            "nvmlReturn_t (*f)(nvmlDevice_t, unsigned, nvmlEnableState_t *)",
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlReturn_t (*f)(nvmlDevice_t, unsigned, nvmlPciInfo_t *)",
		"nvmlDeviceGetFieldValues":            "nvmlReturn_t (*f)(nvmlDevice_t, int, nvmlFieldValue_t *)",
	}))
}

func TestLayoutsAreThoseOfNVML12(t *testing.T) { headertest.Sum(t, layouts(), "87411def") }

func TestUnknownStatusIsANumber(t *testing.T) {
	if got := statusText(42); got != "status 42" {
		t.Error(got)
	}
}

func TestLoad(t *testing.T) {
	l, err := Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cuda", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

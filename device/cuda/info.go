package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// describe returns the device's Info from the driver. It needs no context.
func describe(api *cuda.API, dev cuda.DeviceID, index int, version string) (device.Info, error) {
	in := device.Info{Driver: "cuda", Index: index, NUMANode: -1, DriverVersion: version}
	var r cuda.Result
	if in.Name, r = api.DeviceGetName(dev); r != cuda.Success {
		return in, nativeError(api, r, "cuDeviceGetName", "device=%d", index)
	}
	uuid, r := api.DeviceGetUUID(dev)
	if r != cuda.Success {
		return in, nativeError(api, r, "cuDeviceGetUuid_v2", "device=%d", index)
	}
	in.UUID = uuidText(uuid)
	pci, r := api.DeviceGetPCIBusID(dev)
	if r != cuda.Success {
		return in, nativeError(api, r, "cuDeviceGetPCIBusId", "device=%d", index)
	}
	in.PCI = strings.ToLower(pci)
	in.NUMANode = numaNode("/sys/bus/pci/devices", in.PCI)
	total, r := api.DeviceTotalMem(dev)
	if r != cuda.Success {
		return in, nativeError(api, r, "cuDeviceTotalMem_v2", "device=%d", index)
	}
	in.MemoryBytes = int64(total)
	for attr, to := range map[cuda.Attribute]*int{
		cuda.AttrMultiprocessorCount: &in.Multiprocs,
		cuda.AttrAsyncEngineCount:    &in.CopyEngines,
		cuda.AttrComputeMajor:        &in.Compute[0],
		cuda.AttrComputeMinor:        &in.Compute[1],
	} {
		if *to, r = api.DeviceGetAttribute(attr, dev); r != cuda.Success {
			return in, nativeError(api, r, "cuDeviceGetAttribute", "attribute=%d, device=%d", attr, index)
		}
	}
	return in, nil
}

func uuidText(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// numaNode returns the NUMA node of a PCI device, or -1 if the kernel does not report it.
func numaNode(sysfs, pci string) int {
	b, err := os.ReadFile(filepath.Join(sysfs, pci, "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

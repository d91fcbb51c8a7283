package calibrate_test

import (
	"testing"
	"testing/fstest"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

func TestKey(t *testing.T) {
	const dir = "bus/pci/devices/0000:81:00.0/"
	info := device.Info{Driver: "cuda", Name: "H100", UUID: "GPU-1", PCI: "0000:81:00.0", NUMANode: 1, DriverVersion: "580.159"}
	unknown := plan.Key{GPU: "GPU-1", Driver: "580.159", PCI: "0000:81:00.0", NUMANode: 1, Kernels: "k"}
	known := unknown
	known.LinkSpeed, known.LinkWidth = "32.0 GT/s", 16
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, c := range map[string]struct {
		sysfs fstest.MapFS
		want  plan.Key
	}{
		"a machine":         {fstest.MapFS{dir + "current_link_width": file("16\n"), dir + "max_link_speed": file("32.0 GT/s PCIe\n")}, known},
		"a virtual machine": {fstest.MapFS{dir + "current_link_width": file("odd\n"), dir + "max_link_speed": file("Unknown\n")}, unknown},
		"nothing there":     {fstest.MapFS{}, unknown},
	} {
		if got := calibrate.Key(info, "k", c.sysfs); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := calibrate.Key(device.Info{Driver: "sim", Name: "simulated GPU", NUMANode: -1}, "", fstest.MapFS{}); got.GPU != "sim simulated GPU" || got.PCI != "" {
		t.Errorf("%+v for a device without a UUID", got)
	}
}

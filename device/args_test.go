package device_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/kvlane/kvlane/device"
)

// The kernels' input has a fixed layout: 64-bit little-endian words in the order defined in
// kernel.go.
func TestDescriptorsAreAsKernelsReadThem(t *testing.T) {
	b := make([]byte, device.PlaneSumDescBytes)
	for _, c := range []struct {
		name, want string
		put        func()
	}{
		{"copy", "010000000000000002000000000000000300000000000000", func() {
			d := device.CopyDesc{Dst: 1, Src: 2, Bytes: 3}
			if d.Put(b); device.ReadCopyDesc(b) != d {
				t.Errorf("%+v decodes as %+v", d, device.ReadCopyDesc(b))
			}
		}},
		{"plane", "0100000000000000020000000000000003000000000000000400000000000000", func() {
			d := device.PlaneDesc{Base: 1, Stride: 2, Bytes: 3, SlotOff: 4}
			if d.Put(b); device.ReadPlaneDesc(b) != d {
				t.Errorf("%+v decodes as %+v", d, device.ReadPlaneDesc(b))
			}
		}},
		{"pair", "0100000002000000", func() {
			device.PutPair(b, 1, 2)
			if page, slot := device.ReadPair(b); page != 1 || slot != 2 {
				t.Errorf("a pair decodes as %d, %d", page, slot)
			}
		}},
	} {
		clear(b)
		c.put()
		want, err := hex.DecodeString(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if got := b[:len(want)]; !bytes.Equal(got, want) || !bytes.Equal(b[len(want):], make([]byte, len(b)-len(want))) {
			t.Errorf("%s: %x, want %x and zeros", c.name, b, want)
		}
	}
	clear(b)
	want := device.PlaneSums{Off: 5, Stride: 6}
	want.Put(b)
	if got := device.ReadPlaneSums(b); got != want || b[32] != 5 || b[40] != 6 {
		t.Errorf("sums of a plane: %x, read as %+v", b, got)
	}
}

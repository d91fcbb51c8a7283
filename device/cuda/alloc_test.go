package cuda

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

func TestDriverCallsOfTheHotPathsAllocateNothing(t *testing.T) {
	f, _, q, d, h := fakeQueue(t)
	f.set(func() { f.calls = make([]string, 0, 1<<16) })
	k := device.Kernel{Name: device.KernelCopyList, NArgs: 2}
	dst, src := []mem.Extent{mem.All(d)}, []mem.Extent{mem.All(h)}
	e, err := q.Record()
	must(t, err)
	defer e.Close()
	for name, op := range map[string]func(){
		"copy":   func() { must(t, q.Copy(dst[0], src[0])) },
		"fill":   func() { must(t, q.Fill(dst[0], 1)) },
		"batch":  func() { must(t, q.CopyBatch(dst, src)) },
		"launch": func() { must(t, q.Launch(&k)) },
		"wait":   func() { must(t, e.Wait(t.Context())) },
	} {
		if n := testing.AllocsPerRun(100, op); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

package file

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// inMode is a registered file with a fixed mode.
type inMode struct {
	device.StorageFile
	direct bool
}

func (f inMode) Mode() device.StorageMode { return device.StorageMode{Direct: f.direct} }

// TestOneFileOfABatchIsNotDirect checks that a batch uses cuFile only if the device can access all
// of its files directly.
func TestOneFileOfABatchIsNotDirect(t *testing.T) {
	for _, direct := range [][]bool{{true, true}, {false, true}, {true, false}} {
		s := &Stream{modes: make(map[uint64]device.StorageMode), absent: make(map[wayTo]*refusal)}
		b := new(batch)
		want := true
		for i, d := range direct {
			b.files = append(b.files, &File{info: dirfs.Info{Device: uint64(i)}, registered: inMode{direct: d}})
			want = want && d
		}
		if got, err := s.gds(b); err != nil || got != want {
			t.Errorf("files that the device reaches, %v: %v, %v", direct, got, err)
		}
	}
}

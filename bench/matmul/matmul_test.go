package matmul

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// pretender is a simulated device that claims to have contexts, as a GPU has.
type pretender struct{ *sim.Device }

func (pretender) Do(f func() error) error { return f() }

func TestWithoutAGPUOrTheLibrary(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dev, "", MaxRows); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "device sim does not support") {
		t.Errorf("on a simulated device: %v", err)
	}
	if _, err := Open(t.Context(), pretender{dev}, t.TempDir(), MaxRows); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "cublasLt") {
		t.Errorf("without the library: %v", err)
	}
	for _, rows := range []int{0, 2048, 4097, 16384} {
		if _, err := Open(t.Context(), pretender{dev}, "", rows); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("with %d rows: %v", rows, err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// The values are -1, 0 and 1, a third each, and no two matrices are equal.
func TestRandomValues(t *testing.T) {
	a, b := make([]byte, 8192), make([]byte, 8192)
	randomize(a, 0)
	randomize(b, 1<<40)
	seen := make(map[float32]int)
	for i := 0; i < len(a); i += 2 {
		seen[math.Float32frombits(uint32(binary.LittleEndian.Uint16(a[i:]))<<16)]++ // bfloat16 is the upper half of a float32
	}
	for _, v := range []float32{-1, 0, 1} {
		if share := float64(seen[v]) / float64(len(a)/2); math.Abs(share-1./3) > 0.05 {
			t.Errorf("%v is %.3f of the values, want a third", v, share)
		}
	}
	if len(seen) != 3 || string(a) == string(b) {
		t.Errorf("%d different values: %v", len(seen), seen)
	}
}

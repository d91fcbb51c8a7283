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

// pretender is a simulated device that says it has contexts, as a GPU does.
type pretender struct{ *sim.Device }

func (pretender) Do(f func() error) error { return f() }

func TestWithoutAGPUOrTheLibrary(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dev, ""); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "device sim runs none") {
		t.Errorf("on a simulated device: %v", err)
	}
	if _, err := Open(t.Context(), pretender{dev}, t.TempDir()); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "cublasLt") {
		t.Errorf("without the library: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// The values are of both signs and of magnitudes from 0.5 up to 2, and no two matrices are alike.
func TestRandomValues(t *testing.T) {
	a, b := make([]byte, 8192), make([]byte, 8192)
	randomize(a, 0)
	randomize(b, 1<<40)
	var sum float64
	seen := make(map[uint16]bool)
	for i := 0; i < len(a); i += 2 {
		bits := binary.LittleEndian.Uint16(a[i:])
		seen[bits] = true
		v := float64(math.Float32frombits(uint32(bits) << 16)) // bfloat16 is the upper half of a float32
		if m := math.Abs(v); m < 0.5 || m >= 2 {
			t.Fatalf("value %d is %v", i/2, v)
		}
		sum += v
	}
	if mean := sum / float64(len(a)/2); math.Abs(mean) > 0.1 || len(seen) < 400 || string(a) == string(b) {
		t.Errorf("mean %v of %d different values", mean, len(seen))
	}
}

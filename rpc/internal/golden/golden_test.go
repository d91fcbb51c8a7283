package golden

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestText writes every capture and reads it again.
func TestText(t *testing.T) {
	for _, c := range Load(t, "../../testdata/golden") {
		dir := filepath.Join(t.TempDir(), c.Dir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.Directions {
			d.Frames = nil
			if d.Conn == "" || d.Cut {
				c = nil // formats that are only read
				break
			}
		}
		if c == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name+".hex"), []byte(c.Text()), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Load(t, dir)[0]; !reflect.DeepEqual(got, c) {
			t.Errorf("%s:\n%+v\n%+v", c.Name, got, c)
		}
	}
}

//go:build nonic

package kvlane_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
)

// Without the code for NICs, requiring one says so, and auto goes on and says so.
func TestBuildWithoutNICCode(t *testing.T) {
	c := testConfig(t)
	c.Store.GDR = kvlane.GDRRequire
	for _, p := range []gdr.Provider{gdr.IBV, gdr.Soft} {
		c.RDMA.Provider = p
		if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "build tag nonic") {
			t.Errorf("Open with provider %s = %v, want ErrNotSupported that names the build tag", p, err)
		}
	}
	c.Store.GDR = kvlane.GDRAuto
	c.RDMA = gdr.Config{NICs: []string{"mlx5_0"}}
	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(e.Notes(), "\n"); !strings.Contains(notes, "build tag nonic") {
		t.Errorf("notes %q do not name the build tag", notes)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

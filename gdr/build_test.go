package gdr_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
)

// TestSwitches checks the two switches for NICs together: the build tag nonic of this build, and
// Config.GDR. Only the message of a build without verbs names the tag.
func TestSwitches(t *testing.T) {
	for _, c := range []struct {
		gdr      kvlane.GDR
		provider gdr.Provider
	}{
		{kvlane.GDROff, gdr.IBV},
		{kvlane.GDRAuto, gdr.IBV},
		{kvlane.GDRRequire, gdr.IBV},
		{kvlane.GDROff, gdr.Soft},
		{kvlane.GDRRequire, gdr.Soft},
	} {
		t.Run(string(c.gdr)+" "+string(c.provider), func(t *testing.T) {
			g := block.Geometry{Model: "test", Layers: 2, KVHeads: 1, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
			e, err := kvlane.Open(t.Context(), kvlane.Config{
				Model:  g,
				Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
				Store:  kvlane.StoreConfig{CacheBytes: 1 << 20, Dirs: []string{t.TempDir()}, GDR: c.gdr},
				RDMA:   gdr.Config{Provider: c.provider},
			})
			message := ""
			switch verbs := c.provider == gdr.IBV && c.gdr != kvlane.GDROff; {
			case err == nil:
				message = strings.Join(e.Notes(), "\n")
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if verbs && c.gdr == kvlane.GDRRequire && !hasVerbs {
					t.Error("a NIC is required and the build has no verbs, but Open returned an engine")
				}
			case verbs && c.gdr == kvlane.GDRRequire && errors.Is(err, errdefs.ErrNotSupported):
				message = err.Error() // this machine has no NIC, or the build has no verbs
				if errdefs.Remedy(err) == "" {
					t.Errorf("no remedy: %v", err)
				}
			default:
				t.Fatal(err)
			}
			wantTag := !hasVerbs && c.provider == gdr.IBV && c.gdr != kvlane.GDROff
			if strings.Contains(message, "build tag nonic") != wantTag {
				t.Errorf("the message names the build tag: %t, want %t: %q", !wantTag, wantTag, message)
			}
		})
	}
}

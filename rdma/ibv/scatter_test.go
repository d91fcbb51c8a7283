package ibv

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/internal/sys/dl"
)

// libmlx5 sees the variable that switches scatter-to-CQE off.
func TestLoadSwitchesScatterToCQEOff(t *testing.T) {
	t.Setenv(scatterToCQE, "1")
	lib, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	var getenv func(name string) string
	s := lib.Symbols()
	s.Bind(&getenv, "getenv")
	if err := errors.Join(s.Missing(), lib.Close()); err != nil {
		t.Fatal(err)
	}
	if v := getenv(scatterToCQE); v != "1" {
		t.Errorf("before: %q", v)
	}
	if p, err := Load(); err == nil { // the variable is set also without the library
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if v := getenv(scatterToCQE); v != "0" {
		t.Errorf("after: %q", v)
	}
}

package block

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

type dtype struct {
	name  string
	bytes int
}

// The names are those of PyTorch and of the engines' --kv-cache-dtype options.
func dtypes() []dtype {
	return []dtype{
		{"bfloat16", 2},
		{"float16", 2},
		{"float32", 4},
		{"fp8_e4m3", 1},
		{"fp8_e5m2", 1},
		{"int8", 1},
	}
}

// DTypes returns the element types that an Identity may name.
func DTypes() []string {
	var names []string
	for _, d := range dtypes() {
		names = append(names, d.name)
	}
	return names
}

// DTypeBytes returns the size of an element in bytes, or ErrInvalid.
func DTypeBytes(name string) (int, error) {
	for _, d := range dtypes() {
		if d.name == name {
			return d.bytes, nil
		}
	}
	return 0, fmt.Errorf("dtype %q is none of %s: %w", clip(name), strings.Join(DTypes(), ", "), errdefs.ErrInvalid)
}

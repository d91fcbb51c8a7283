package block

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

type dtype struct {
	name  string
	bytes int
	short []string
}

// dtypes returns the element types with the names of PyTorch and of the engines' --kv-cache-dtype
// options, in which fp8 is e4m3
// (https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache.html). Identities have
// the first name, so that a type has one digest.
func dtypes() []dtype {
	return []dtype{
		{"bfloat16", 2, []string{"bf16"}},
		{"float16", 2, []string{"fp16", "f16", "half"}},
		{"float32", 4, []string{"fp32", "f32"}},
		{"fp8_e4m3", 1, []string{"fp8", "float8_e4m3fn"}},
		{"fp8_e5m2", 1, []string{"float8_e5m2"}},
		{"int8", 1, nil},
	}
}

// DTypes returns the element types for an Identity.
func DTypes() []string {
	var names []string
	for _, d := range dtypes() {
		names = append(names, d.name)
	}
	return names
}

// DTypeBytes returns the size of an element in bytes. It returns ErrInvalid for an unknown name.
func DTypeBytes(name string) (int, error) {
	for _, d := range dtypes() {
		if d.name == name {
			return d.bytes, nil
		}
	}
	return 0, fmt.Errorf("dtype %q is not one of %s: %w", clip(name), strings.Join(DTypes(), ", "), errdefs.ErrInvalid)
}

// ParseDType returns the name in DTypes of an element type. It accepts other usual names, such as
// bf16, fp16, f32 and fp8. For an unknown name it returns ErrInvalid with a list of names.
func ParseDType(name string) (string, error) {
	var all []string
	for _, d := range dtypes() {
		if d.name == name || slices.Contains(d.short, name) {
			return d.name, nil
		}
		text := d.name
		if len(d.short) > 0 {
			text += " (" + strings.Join(d.short, ", ") + ")"
		}
		all = append(all, text)
	}
	return "", fmt.Errorf("dtype %q is not one of %s: %w", clip(name), strings.Join(all, ", "), errdefs.ErrInvalid)
}

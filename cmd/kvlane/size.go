package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// sizeValue is a flag that holds a number of bytes, written as people write them: 4096, 64KiB, 1.5GiB, 2GB.
type sizeValue struct{ bytes *int64 }

// sizeUnits are the units that a size may have, in lower case. A lone letter means the binary unit, as dd and fio have it.
var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"k", 1 << 10},
	{"m", 1 << 20},
	{"g", 1 << 30},
	{"t", 1 << 40},
	{"b", 1},
	{"", 1},
}

// Set reads a size.
func (v sizeValue) Set(s string) error {
	text := strings.ToLower(strings.TrimSpace(s))
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%q is not a size such as 4096, 64KiB or 1.5GiB", s)
		}
		bytes := n * u.bytes
		switch {
		case bytes < 0:
			return fmt.Errorf("the size %q is negative", s)
		case bytes >= math.MaxInt64:
			return fmt.Errorf("the size %q does not fit 64 bits", s)
		}
		*v.bytes = int64(bytes)
		return nil
	}
	return nil
}

// String writes the size with the largest binary unit that leaves no fraction.
func (v sizeValue) String() string {
	if v.bytes == nil || *v.bytes == 0 {
		return "0"
	}
	return strings.ReplaceAll(present.Size(*v.bytes), " ", "")
}

// Type names the flag's value in help texts.
func (v sizeValue) Type() string { return "size" }

// parseSizes reads the sizes of a flag that lists them, each once. Those that are none are missing, and in the error.
func parseSizes(flag string, texts []string) ([]int64, error) {
	var sizes []int64
	var errs []error
	for _, text := range texts {
		var n int64
		if err := (sizeValue{&n}).Set(text); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
			continue
		}
		sizes = appendOnce(sizes, n)
	}
	return sizes, errors.Join(errs...)
}

// appendOnce appends v to what lacks it.
func appendOnce[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

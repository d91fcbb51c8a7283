package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// sizeValue is a flag that holds a number of bytes, written as people write them: 4096, 64KiB, 1.5GiB, 2GB.
type sizeValue struct{ bytes *int64 }

// Set reads a size.
func (v sizeValue) Set(s string) error {
	n, err := present.ParseSize(s)
	if err == nil {
		*v.bytes = n
	}
	return err
}

// String writes the size with the largest binary unit that leaves no fraction. A negative size stands for none, and is "".
func (v sizeValue) String() string {
	if v.bytes != nil && *v.bytes < 0 {
		return ""
	}
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

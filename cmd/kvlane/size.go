package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// sizeValue is a flag with a number of bytes, for example 4096, 64KiB, 1.5GiB or 2GB.
type sizeValue struct{ bytes *int64 }

// Set parses a size.
func (v sizeValue) Set(s string) error {
	n, err := present.ParseSize(s)
	if err == nil {
		*v.bytes = n
	}
	return err
}

// String returns the size with the largest binary unit that needs no fraction. A negative size
// means none and results in "".
func (v sizeValue) String() string {
	if v.bytes != nil && *v.bytes < 0 {
		return ""
	}
	if v.bytes == nil || *v.bytes == 0 {
		return "0"
	}
	return strings.ReplaceAll(present.Size(*v.bytes), " ", "")
}

// Type returns the type name for help texts.
func (v sizeValue) Type() string { return "size" }

// parseSizes parses the sizes of a flag and removes duplicates. The error lists the invalid sizes;
// they are not in the result.
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

// appendOnce appends v unless the list contains it.
func appendOnce[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

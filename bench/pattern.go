package bench

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

const (
	wordBytes = 8
	// The patterns of the two sources are far apart in the sequence of device.Mix64, so that their
	// words differ with high probability. Word i of a source is Mix64(tag + i). This equals the
	// pattern of device.KernelPatternFill for a single plane if the page at offset off has the seed
	// tag + off/8.
	farTag  = 1 << 60
	nearTag = 1 << 61
	poison  = 0xa5
)

// WritePattern fills b with the sequence of a tag, beginning with the word at offset off. The
// length of b must be a multiple of 8. Sequences whose tags are far apart differ in all words with
// high probability.
func WritePattern(b []byte, tag uint64, off int64) {
	word := tag + uint64(off)/wordBytes
	for ; len(b) >= wordBytes; b = b[wordBytes:] {
		binary.LittleEndian.PutUint64(b, device.Mix64(word))
		word++
	}
}

// CheckPattern compares b with the result of WritePattern. If they differ, it returns ErrCorrupt
// with the first word that differs.
func CheckPattern(b []byte, tag uint64, off int64) error {
	word := tag + uint64(off)/wordBytes
	for i := 0; i+wordBytes <= len(b); i += wordBytes {
		if got, want := binary.LittleEndian.Uint64(b[i:]), device.Mix64(word); got != want {
			return fmt.Errorf("at byte %d: %#016x in place of %#016x: %w", i, got, want, errdefs.ErrCorrupt)
		}
		word++
	}
	return nil
}

// Parallel calls f for parts of n elements, one part for each processor, and returns the first
// error.
func Parallel(n int64, f func(from, to int64) error) error {
	var g errgroup.Group
	workers := int64(runtime.GOMAXPROCS(0))
	for w := range workers {
		from, to := w*n/workers, (w+1)*n/workers
		if from < to {
			g.Go(func() error { return f(from, to) })
		}
	}
	return g.Wait()
}

// span is a part of a region.
type span struct{ Off, Len int64 }

// chunks yields consecutive spans of at most step bytes that cover length bytes.
func chunks(length, step int64) func(yield func(span) bool) {
	return func(yield func(span) bool) {
		for off := int64(0); off < length; off += step {
			if !yield(span{Off: off, Len: min(step, length-off)}) {
				return
			}
		}
	}
}

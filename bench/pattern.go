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
	// The patterns of the two sources are far apart in the sequence of device.Mix64, so that words
	// of a run differ except by accident. Word i of a source is Mix64(tag + i). This is the pattern
	// of device.KernelPatternFill for a single plane whose page at byte off has the seed tag +
	// off/8.
	farTag  = 1 << 60
	nearTag = 1 << 61
	poison  = 0xa5
)

// WritePattern fills b, whole words of 8 bytes, with the sequence of a tag from byte off on. Words
// of sequences whose tags are far apart differ except by accident.
func WritePattern(b []byte, tag uint64, off int64) {
	word := tag + uint64(off)/wordBytes
	for ; len(b) >= wordBytes; b = b[wordBytes:] {
		binary.LittleEndian.PutUint64(b, device.Mix64(word))
		word++
	}
}

// CheckPattern compares b with the bytes of WritePattern. ErrCorrupt names the first word that
// differs.
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

// Parallel calls f for n elements in one part per processor, and returns the first error.
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

// chunks divides length bytes into parts of at most step bytes.
func chunks(length, step int64) func(yield func(span) bool) {
	return func(yield func(span) bool) {
		for off := int64(0); off < length; off += step {
			if !yield(span{Off: off, Len: min(step, length-off)}) {
				return
			}
		}
	}
}

package mem

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// CacheRegions returns the regions of a KV cache in the memory of a device, as inference engines describe it: the addresses
// and sizes in bytes of its tensors. Everything that is wrong with them is reported at once, as ErrInvalid: lists of
// different lengths, a negative device, an address or a size of zero, tensors that overlap or end beyond the address space.
func CacheRegions(device int, addrs []DevAddr, sizes []uint64) ([]*Region, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if len(addrs) != len(sizes) {
		bad("KV cache has %d addresses and %d sizes", len(addrs), len(sizes))
	}
	if device < 0 {
		bad("KV cache is on device %d", device)
	}
	type tensor struct {
		i int
		a DevAddr
		n uint64
	}
	var good []tensor
	for i := range min(len(addrs), len(sizes)) {
		switch a, n := addrs[i], sizes[i]; {
		case a == 0:
			bad("KV tensor %d has no address", i)
		case n == 0:
			bad("KV tensor %d has no bytes", i)
		case n > math.MaxInt64 || uint64(a) > math.MaxUint64-n:
			bad("KV tensor %d, %d bytes at %#x, ends beyond the address space", i, n, a)
		default:
			good = append(good, tensor{i, a, n})
		}
	}
	slices.SortFunc(good, func(x, y tensor) int { return cmp.Compare(x.a, y.a) })
	for k := 1; k < len(good); k++ {
		if x, y := good[k-1], good[k]; x.a+DevAddr(x.n) > y.a {
			bad("KV tensors %d and %d overlap: %d bytes at %#x and %d at %#x", x.i, y.i, x.n, x.a, y.n, y.a)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	regions := make([]*Region, len(addrs))
	for i := range addrs {
		r, err := NewRegion(RegionSpec{Kind: KindDevice, Device: device, Len: int64(sizes[i]), Dev: addrs[i]})
		if err != nil {
			return nil, fmt.Errorf("KV tensor %d: %w", i, err)
		}
		regions[i] = r
	}
	return regions, nil
}

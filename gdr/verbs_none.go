//go:build nonic

package gdr

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// loadVerbs returns ErrNotSupported: builds with the tag nonic do not contain the libibverbs
// binding.
func loadVerbs() (rdma.Provider, func() error, error) {
	return nil, nil, errdefs.WithRemedy(fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported),
		"use a build with code for NICs: make build, or a release's binary")
}

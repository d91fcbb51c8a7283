//go:build !nonic

package gdr

import (
	"errors"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
)

// loadVerbs loads libibverbs. The caller closes the provider with the returned function.
func loadVerbs() (rdma.Provider, func() error, error) {
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		err = errdefs.WithRemedy(err, rdma.InstallVerbs+"; kvlane doctor reports further requirements, and "+trySoft)
	}
	if err != nil {
		return nil, nil, err
	}
	return p, p.Close, nil
}

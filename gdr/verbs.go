//go:build !nonic

package gdr

import (
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
)

// loadVerbs loads libibverbs. The caller closes the provider with the returned function.
func loadVerbs() (rdma.Provider, func() error, error) {
	p, err := ibv.Load()
	if err != nil {
		return nil, nil, err
	}
	return p, p.Close, nil
}

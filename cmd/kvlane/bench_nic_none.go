//go:build nonic

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
)

// openChannel is ErrNotSupported in a build with the tag nonic, as the NICs are.
func (n *benchNICs) openChannel(c bench.Contender) (bench.Channel, error) {
	if err := n.ready(c); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported)
}

func newBenchRDMACommand() *cobra.Command {
	return &cobra.Command{
		Use:                "rdma",
		Short:              "Measure an RDMA NIC (not in this build)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("this build has no code for NICs (build tag nonic): %w", errdefs.ErrNotSupported)
		},
	}
}

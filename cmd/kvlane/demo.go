package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane"
)

// demoCacheBytes is smaller than the blocks of the demo's trace, so that loads also use the file
// tier.
const demoCacheBytes = 16 << 20

func newDemoCommand() *cobra.Command {
	var device, dir string
	var asJSON bool
	var rdma rdmaFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Store blocks, restart, and find damage, on this machine",
		Long: `Replay the first requests of a real trace on this machine, restart the store and find every block again, then damage one file and
show that the damage is found and does no harm. It uses a temporary directory, which is removed at the end. The exit code is 1 if any
step fails.`,
		Example: `  kvlane demo`,
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			temp, err := os.MkdirTemp(dir, "kvlane-demo-")
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
			return runDemo(cmd, device, &rdma, temp, asJSON)
		},
	}
	registerAutoDevice(cmd.Flags(), &device)
	cmd.Flags().StringVar(&dir, "dir", "", "folder of the temporary directory (default: the system's)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	rdma.register(cmd.Flags())
	return cmd
}

func runDemo(cmd *cobra.Command, device string, rdma *rdmaFlags, temp string, asJSON bool) error {
	nics, err := rdma.config()
	if err != nil {
		return err
	}
	driver, noGPU := chooseDriver(device)
	c := kvlane.Config{
		Model:  smallGeometry,
		Device: kvlane.DeviceConfig{Driver: driver},
		Store:  kvlane.StoreConfig{CacheBytes: demoCacheBytes, GDR: rdma.gdr()},
		RDMA:   nics,
	}
	if err := c.Validate(); err != nil {
		return &usageError{err}
	}
	notReady(cmd.Context())
	out := cmd.OutOrStdout()
	if asJSON {
		out = io.Discard
	}
	if err := printSimulated(out, noGPU); err != nil {
		return err
	}
	d := demo{
		geometry: smallGeometry,
		dir:      temp,
		out:      out,
		errs:     cmd.ErrOrStderr(),
		open: func(ctx context.Context, dir string) (*kvlane.Engine, error) {
			c.Store.Dirs = []string{dir}
			e, err := kvlane.Open(ctx, c)
			if err != nil {
				return nil, asUsage(err)
			}
			if err := e.ExportTo(metricsOf(ctx)); err != nil {
				return nil, errors.Join(err, e.Close(ctx))
			}
			isReady(ctx)
			return e, nil
		},
		verify: verifyDir,
	}
	start := time.Now()
	err = d.run(cmd.Context())
	if asJSON && (err == nil || errors.Is(err, errClaim)) {
		err = errors.Join(writeJSON(cmd, demoReport{err == nil, d.claims, time.Since(start).Seconds()}), err)
	}
	return err
}

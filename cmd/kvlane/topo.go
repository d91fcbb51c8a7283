package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/kept"
	"github.com/kvlane/kvlane/internal/sys/nvml"
	"github.com/kvlane/kvlane/topology"
)

func newTopoCommand() *cobra.Command {
	var asJSON bool
	var svg string
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Show how GPUs, RDMA NICs and memory are connected",
		Long: `topo shows the machine's NUMA nodes with the devices below their PCIe bridges and switches, the NVLinks between GPUs, and for each NUMA
node and GPU the RDMA NICs, nearest first.

It reads sysfs and queries the drivers; it opens no GPU and no NIC.`,
		Example: `  kvlane topo
  kvlane topo --svg topo.svg
  kvlane topo --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := machineTopology(topology.DefaultSysfs)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := drawTopology(svg, m); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd, m)
			}
			return m.WriteText(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&svg, "svg", "", "also write an SVG picture to this file")
	return cmd
}

// machineTopology combines the topology from sysfs with the GPUs of the driver and their NVLinks.
func machineTopology(sysfs string) (*topology.Machine, error) {
	gpus, noDriver := offeredGPUs()
	m, err := topology.Scan(sysfs, gpus)
	if err != nil {
		return nil, err
	}
	if len(m.GPUs) == 0 {
		return m, nil // the driver is optional
	}
	if noDriver != nil {
		m.Notes = append(m.Notes, "GPUs are not queried: "+noDriver.Error())
	}
	if len(gpus) < 2 {
		return m, nil
	}
	lib, err := nvml.Load()
	if err != nil {
		m.Notes = append(m.Notes, "NVLinks are not known: "+err.Error())
		return m, nil
	}
	m.FindNVLinks(lib)
	if err := lib.Close(); err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
		m.Notes = append(m.Notes, err.Error())
	}
	return m, nil
}

// offeredGPUs returns the GPUs that the CUDA driver reports.
func offeredGPUs() ([]device.Info, error) {
	drv, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	return drv.Infos()
}

func drawTopology(file string, m *topology.Machine) error {
	if err := kept.Replace(file, m.WriteSVG); err != nil {
		return fmt.Errorf("draw the topology: %w", err)
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/share"
)

// shareProbeCommand is the command that runs in the second process of a probe of shared memory.
const shareProbeCommand = "share-probe"

func newShareProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    shareProbeCommand,
		Short:  "Import the memory of a descriptor on standard input, read and write it, and report the result",
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return share.AnswerProbe(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cuda.OpenUUID)
		},
	}
}

// askSharing tests each type of handle between this process and a second process of this program.
func askSharing(ctx context.Context, dev device.Device) []doctor.Sharing {
	s, ok := dev.(device.Sharer)
	if !ok {
		return nil
	}
	var o share.ProbeOptions
	if self, err := os.Executable(); err == nil {
		o.Peer = func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, shareProbeCommand) }
	}
	var all []doctor.Sharing
	for _, f := range append(share.Probe(ctx, s, o), share.ProbeHost(ctx, dev, o)) {
		all = append(all, doctor.Sharing{Handle: f.Type.String(), Works: sharingFinding(f)})
	}
	return all
}

// sharingRemedies are remedies for types of handles that do not work.
var sharingRemedies = map[device.HandleType]string{
	device.HandleFabric: "an IMEX channel (nvidia-imex, /dev/nvidia-caps-imex-channels); within a host posix-fd does the same",
}

func sharingFinding(f share.Finding) doctor.Finding {
	found := doctor.Answered(f.Err, sharingRemedies[f.Type])
	if f.Type == device.HandleMemFD && found.Answer == doctor.Yes {
		found.Reason = fmt.Sprintf("host memory, by %s", f.Type)
	}
	return found
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// protocolMooncake is Mooncake's protocol, the default of --protocol.
const protocolMooncake = "mooncake"

func newTransferCommand() *cobra.Command {
	cmd := newGroupCommand("transfer", "Offer memory to other processes, and read and write theirs", `transfer offers memory of this process to others, and reads and writes theirs: to try a network, to list the memory of an engine,
or to copy a file to it. Memory that is offered under a name is a segment.

The protocol is that of Mooncake's transfer engine over TCP, so that either side may be Mooncake's, or with --protocol auto kvlane's own. Neither has
authentication: every peer that reaches the ports of a segment can read and write its memory.`)
	cmd.AddCommand(newTransferServeCommand(), newTransferMetadataCommand(), newTransferProbeCommand(), newTransferListCommand(), newTransferPutCommand(), newTransferGetCommand())
	return cmd
}

// transferFlags select the protocol and how segments are found.
type transferFlags struct {
	protocol, metadata, cluster string
	protocols                   []string // valid values of protocol
	timeout                     time.Duration
	etcd                        etcdFlags
}

// register adds the flags. protocols are the valid values of --protocol.
func (f *transferFlags) register(cmd *cobra.Command, protocols []string) {
	f.protocols = protocols
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.protocol, "protocol", protocolMooncake,
		"protocol: mooncake, or kvlane's own: auto (any path that works), or a single path: "+strings.Join(protocols[2:], ", "))
	fl.StringVar(&f.metadata, "metadata", mooncake.P2PHandshake, usageOf("metadata"))
	fl.StringVar(&f.cluster, "cluster", "", usageOf("cluster"))
	f.etcd.register(fl)
}

// registerTimeout adds the --timeout flag for commands that access a segment.
func (f *transferFlags) registerTimeout(fl *pflag.FlagSet) {
	fl.DurationVar(&f.timeout, "timeout", time.Minute, "timeout of the command")
}

// directory returns the directory of segments that the flags select.
func (f *transferFlags) directory() (mooncake.Directory, error) {
	if f.protocol != protocolMooncake {
		return nil, usagef("--protocol %q: must be %s", f.protocol, protocolMooncake)
	}
	d, err := mooncake.OpenDirectory(f.metadata, f.cluster)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--metadata: %w", err)}
	}
	return d, nil
}

// ask calls use with the directory that the flags select and a context with the timeout of the
// flags.
func (f *transferFlags) ask(cmd *cobra.Command, use func(context.Context, mooncake.Directory) error) error {
	d, err := f.directory()
	if err != nil {
		return err
	}
	ctx, cancel := f.bound(cmd)
	defer cancel()
	return use(ctx, d)
}

// bound returns the command's context with the timeout of the flags.
func (f *transferFlags) bound(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("--timeout %v: %w", f.timeout, context.DeadlineExceeded))
}

// probeAnswer is the output of "kvlane transfer probe --json".
type probeAnswer struct {
	Segment string  `json:"segment"`
	Micros  float64 `json:"answered_in_us"`
}

func newTransferProbeCommand() *cobra.Command {
	var f transferFlags
	var json bool
	cmd := &cobra.Command{
		Use:   "probe SEGMENT",
		Short: "Check whether a segment's process answers",
		Long:  `probe reports whether the process that offers a segment answers, and the time until the answer. It fails without an answer within --timeout.`,
		Example: `  kvlane transfer probe 127.0.0.1:15995
  kvlane transfer probe 127.0.0.1:15995 --timeout 2s --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			took, err := f.probe(cmd, args[0])
			if err != nil {
				return asUsage(err)
			}
			if json {
				return writeJSON(cmd, probeAnswer{Segment: args[0], Micros: float64(took) / float64(time.Microsecond)})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "segment %s answered in %v\n", args[0], took.Round(time.Microsecond))
			return nil
		},
	}
	f.register(cmd, hostProtocols)
	f.registerTimeout(cmd.Flags())
	cmd.Flags().BoolVar(&json, "json", false, "print one JSON object")
	return cmd
}

// probe sends a request to a segment's process and returns the round-trip time.
func (f *transferFlags) probe(cmd *cobra.Command, segment string) (took time.Duration, err error) {
	if f.protocol != protocolMooncake {
		return f.probeNative(cmd, segment)
	}
	err = f.ask(cmd, func(ctx context.Context, d mooncake.Directory) (err error) {
		took, err = mooncake.Probe(ctx, d, segment)
		return err
	})
	return took, err
}

func newTransferListCommand() *cobra.Command {
	var f transferFlags
	var json bool
	cmd := &cobra.Command{
		Use:     "ls SEGMENT",
		Short:   "List the buffers of a segment",
		Long:    `ls shows how a segment is reached, and its buffers, with the numbers that put and get take.`,
		Example: `  kvlane transfer ls 127.0.0.1:15995`,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.protocol != protocolMooncake {
				return f.listNative(cmd, args[0], json)
			}
			return f.ask(cmd, func(ctx context.Context, d mooncake.Directory) error {
				s, err := d.Find(ctx, args[0])
				if err != nil {
					return asUsage(err)
				}
				if json {
					return writeJSON(cmd, s)
				}
				return printSegment(cmd, s)
			})
		},
	}
	f.register(cmd, hostProtocols)
	f.registerTimeout(cmd.Flags())
	cmd.Flags().BoolVar(&json, "json", false, "print one JSON object, with the protocol's names")
	return cmd
}

func printSegment(cmd *cobra.Command, s *mooncake.Segment) error {
	fmt.Fprintf(cmd.OutOrStdout(), "segment   %s\nprotocol  %s, version %d\ndata      %s, port %d\n", present.Name(s.Name), present.Name(s.Protocol), max(s.Version, 1), present.Name(s.DataHost), s.DataPort)
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BUFFER\tNAME\tADDRESS\tBYTES")
	for i, b := range s.Buffers {
		fmt.Fprintf(t, "%d\t%s\t%#x\t%d\n", i, present.Name(b.Name), b.Addr, b.Length)
	}
	return t.Flush()
}

// oneOf returns a usage error if a flag's value is not one of the two values.
func oneOf(flag, value string, values ...string) error {
	if !slices.Contains(values, value) {
		return usagef("--%s %q: must be %s or %s", flag, value, values[0], values[1])
	}
	return nil
}

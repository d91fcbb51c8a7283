package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/settings"
	engine "github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// need is a condition under which flags of some commands have an effect. A given flag without
// effect is a wrong command line.
type need struct {
	commands []string // paths, without the program's name
	flags    []string // empty: all of the command except but, and except those of every command
	but      []string
	met      func(*pflag.FlagSet) bool
	// lacks names flags to add so that the condition holds, clashes a flag to remove.
	lacks, clashes string
}

// needs are checked before a command runs. Flags that are not listed always have an effect.
var needs = append(settingNeeds(), []need{
	{
		commands: []string{"replay"}, but: []string{"list-presets"},
		met: isNot("list-presets", "true"), clashes: "--list-presets",
	},
	{
		commands: []string{"bench store"}, flags: []string{"fsync"},
		met: given("file-dir"), lacks: "--file-dir DIR",
	},
	{
		commands: []string{"bench store"}, flags: []string{"log-fsync", "stream-files"},
		met: given("file-dir"), lacks: "--file-dir DIR",
	},
	{
		commands: []string{"bench store"}, flags: []string{"calibrate"},
		met: isNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, whose paths are not measured",
	},
	{
		commands: []string{"calibrate"}, but: []string{"file-dir", "device", "device-index", "budget", "profile-dir", "json"},
		met: isNotGiven("file-dir"), clashes: "--file-dir, which measures no copy path",
	},
	{
		commands: []string{"calibrate"}, flags: []string{"full"},
		met: isNot("json", "true"), clashes: "--json, which has every figure",
	},
	{
		commands: []string{"calibrate"}, flags: []string{"file-dir"},
		met: isNot("device", string(kvlane.Sim)), clashes: "--device sim, whose paths to files are not measured",
	},
	{
		commands: []string{"bench copy"}, but: []string{"from", "json", "out", "compare", "noise", "fail-above"},
		met: isNotGiven("from"), clashes: "--from, which measures nothing",
	},
	{
		commands: []string{"bench copy", "bench store"}, flags: []string{"noise", "fail-above"},
		met: given("compare"), lacks: "--compare FILE",
	},
	{
		commands: []string{"bench store"}, flags: []string{"still"},
		met: is("device", string(kvlane.Sim)), lacks: "--device sim",
	},
	{
		commands: []string{"bench store"}, flags: []string{"product-rows", "beside-blocks", "beside-requests", "pairs", "window", "cublaslt"},
		met: is("beside-matmul", "true"), lacks: "--beside-matmul",
	},
	{
		commands: []string{"bench store"}, flags: []string{"cublaslt"},
		met: isNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, which run no matrix product",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"budget"},
		met: isNotGiven("reps"), clashes: "--reps, which settles how long it takes",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"profile-dir"},
		met: isNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, whose paths are not measured",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"slot"},
		met: either(isNotGiven("host"), has("host", "slots"), is("forms", "true")), lacks: "--host slots",
	},
	{
		commands: []string{"bench copy"}, flags: settings.RDMANames,
		met: measuring(bench.Contender.NIC), lacks: "a path by NIC among --paths",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"without"},
		met: either(measuring(bench.Contender.Chooses), is("forms", "true")), lacks: "auto among --paths",
	},
	{
		commands: []string{"bench transfer"},
		flags:    []string{"segment", "operation", "block-size", "batch-size", "threads", "duration", "budget", "lanes", "check", "timeout", "json", "nixl", "out"},
		met:      isNot("mode", modeTarget), clashes: "--mode target, which measures nothing",
	},
	{
		commands: []string{"bench transfer"}, flags: []string{"name", "listen", "data-port"},
		met: is("mode", modeTarget), lacks: "--mode target",
	},
	{
		commands: []string{"transfer serve"}, flags: []string{"advertise"},
		met: isNot("metadata", mooncake.P2PHandshake), lacks: "--metadata http://HOST:PORT/metadata, as with P2PHANDSHAKE --name is the address",
	},
	{
		commands: []string{"bench transfer", "transfer serve", "transfer probe", "transfer ls", "transfer put", "transfer get"}, flags: []string{"cluster"},
		met: is("protocol", protocolMooncake), lacks: "--protocol mooncake",
	},
	{
		commands: []string{"transfer serve"}, flags: []string{"data-port"},
		met: is("protocol", protocolMooncake), lacks: "--protocol mooncake",
	},
	{
		commands: []string{"bench transfer", "transfer serve"}, flags: []string{"device", "gpu-id"},
		met: is("use-vram", "true"), lacks: "--use-vram",
	},
	{
		commands: []string{"bench transfer", "transfer serve"}, flags: []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu"},
		met: is("protocol", protocolAuto, engine.PathRDMA.String()), lacks: "--protocol auto or --protocol rdma",
	},
	{
		commands: []string{"bench file"}, flags: []string{"device-index"},
		met: isNot("device", noDevice), lacks: "--device cuda or --device sim",
	},
	{
		commands: []string{"bench file"}, flags: []string{"direct", "cufile-queues"},
		met: isNot("device", noDevice), lacks: "--device cuda or --device sim",
	},
}...)

// settingNeeds returns the rules of settings as needs.
func settingNeeds() []need {
	needs := make([]need, len(settings.Rules))
	for i := range settings.Rules {
		r := &settings.Rules[i]
		met := func(flags *pflag.FlagSet) bool {
			return r.Met(func(name string) string {
				if f := flags.Lookup(name); f != nil {
					return strings.Join(flagValues(f), ",")
				}
				return ""
			})
		}
		needs[i] = need{commands: r.Commands, flags: r.Names, met: met, lacks: r.Lacks, clashes: r.Clashes}
	}
	return needs
}

// noDevice is the value of --device that measures host memory alone.
const noDevice = "none"

func given(flag string) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool { return f.Changed(flag) }
}

func isNotGiven(flag string) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool { return !f.Changed(flag) }
}

// is reports whether the flag has one of the values, given or by default.
func is(flag string, values ...string) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool {
		fl := f.Lookup(flag) // nil in a build that lacks the command's code
		return fl != nil && slices.Contains(values, fl.Value.String())
	}
}

// has reports whether a flag that takes several values has that one.
func has(flag, value string) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool {
		values, err := f.GetStringSlice(flag)
		return err == nil && slices.Contains(values, value)
	}
}

// isNot also reports true for an invalid value, which the command refuses.
func isNot(flag string, values ...string) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool { return !is(flag, values...)(f) }
}

func either(conditions ...func(*pflag.FlagSet) bool) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool {
		return slices.ContainsFunc(conditions, func(met func(*pflag.FlagSet) bool) bool { return met(f) })
	}
}

// measuring is met if --paths names a contender of a kind, or is not given.
func measuring(kind func(bench.Contender) bool) func(*pflag.FlagSet) bool {
	return func(f *pflag.FlagSet) bool { return measuresSome(f, kind) }
}

func measuresSome(f *pflag.FlagSet, kind func(bench.Contender) bool) bool {
	names, err := f.GetStringSlice("paths")
	if err != nil || len(names) == 0 {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool {
		c, err := bench.ParseContender(name)
		return err != nil || kind(c)
	})
}

// checkNeeds returns a usage error that lists the flags without effect.
func checkNeeds(cmd *cobra.Command) error {
	var errs []error
	forIdle(cmd, func(n *need, f *pflag.Flag) {
		if n.lacks != "" {
			errs = append(errs, fmt.Errorf("--%s has no effect without %s: add that, or leave --%s out", f.Name, n.lacks, f.Name))
		} else {
			errs = append(errs, fmt.Errorf("--%s has no effect with %s: leave one of them out", f.Name, n.clashes))
		}
	})
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return nil
}

// forIdle calls f with each given flag without effect, and the need that is not met.
func forIdle(cmd *cobra.Command, f func(*need, *pflag.Flag)) {
	path := commandPath(cmd)
	for i := range needs {
		n := &needs[i]
		if !slices.Contains(n.commands, path) || n.met(cmd.Flags()) {
			continue
		}
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if flag.Changed && n.about(cmd, flag.Name) {
				f(n, flag)
			}
		})
	}
}

// about reports whether the need applies to a flag of cmd.
func (n *need) about(cmd *cobra.Command, flag string) bool {
	if len(n.flags) > 0 {
		return slices.Contains(n.flags, flag)
	}
	return cmd.LocalNonPersistentFlags().Lookup(flag) != nil && !slices.Contains(n.but, flag)
}

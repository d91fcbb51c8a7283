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
	"github.com/kvlane/kvlane/metadata/etcd"
	engine "github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// need is a condition for flags of some commands to have an effect. Giving a flag without effect is
// a usage error.
type need struct {
	commands []string // paths, without the program's name
	// empty: all flags of the command except those in but and those of every command
	flags []string
	but   []string
	met   settings.Condition
	// lacks names flags to add so that the condition holds. clashes names a flag to remove.
	lacks, clashes string
}

// needs are checked before a command runs. Flags that are not listed always have an effect.
var needs = append(settingNeeds(), []need{
	{
		commands: []string{"replay"}, but: []string{"list-presets"},
		met: settings.IsNot("list-presets", "true"), clashes: "--list-presets",
	},
	{
		commands: []string{"bench store"}, flags: []string{"fsync", "log-fsync", "direct"},
		met: settings.Given("file-dir"), lacks: "--file-dir DIR",
	},
	{
		commands: []string{"bench store"}, flags: []string{"calibrate"},
		met: settings.IsNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, which need no measurement",
	},
	{
		commands: []string{"calibrate"}, but: []string{"file-dir", "device", "device-index", "budget", "profile-dir", "json"},
		met: settings.Not(settings.Given("file-dir")), clashes: "--file-dir, which measures no copy path",
	},
	{
		commands: []string{"calibrate"}, flags: []string{"full"},
		met: settings.IsNot("json", "true"), clashes: "--json, which prints every figure",
	},
	{
		commands: []string{"bench copy"}, but: []string{"from", "json", "out", "compare", "noise", "fail-above"},
		met: settings.Not(settings.Given("from")), clashes: "--from, which does not measure",
	},
	{
		commands: []string{"bench copy", "bench store"}, flags: []string{"noise", "fail-above"},
		met: settings.Given("compare"), lacks: "--compare FILE",
	},
	{
		commands: []string{"bench store"}, flags: []string{"still"},
		met: settings.Is("device", string(kvlane.Sim)), lacks: "--device sim",
	},
	{
		commands: []string{"bench store"}, flags: []string{"product-rows", "beside-blocks", "beside-requests", "pairs", "window", "cublaslt"},
		met: settings.Is("beside-matmul", "true"), lacks: "--beside-matmul",
	},
	{
		commands: []string{"bench store"}, flags: []string{"cublaslt"},
		met: settings.IsNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, which run no matrix product",
	},
	{
		commands: []string{"blockd"}, flags: []string{"disk-bytes"},
		met: settings.Either(settings.Given("file-dir"), settings.Given("log-dir")), lacks: "--file-dir DIR",
	},
	{
		commands: []string{"blockd"}, flags: bucketFlags,
		met: settings.Given("object"), lacks: "--object",
	},
	{
		commands: []string{"blockd"}, flags: []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu"},
		met: settings.Either(settings.Given("tokens"), settings.Given("tls-client-ca")), lacks: "--tokens FILE or --tls-client-ca FILE",
	},
	{
		commands: []string{"blockd"}, flags: memberNames,
		met: settings.Given("etcd"), lacks: "--etcd HOST:PORT",
	},
	{
		commands: []string{"transfer serve", "transfer probe", "transfer ls", "transfer put", "transfer get", "bench transfer"}, flags: etcdNames,
		met: inEtcd, lacks: "--metadata etcd://HOST:PORT/CLUSTER",
	},
	{
		commands: []string{"replay"}, flags: etcdNames,
		met: settings.Given("remote"), lacks: "--remote",
	},
	{
		commands: []string{"rpc bench"}, flags: []string{"tls-ca", "tls-cert", "tls-key", "token"},
		met: settings.Given("addr"), lacks: "--addr HOST:PORT",
	},
	{
		commands: []string{"rpc bench", "rpc serve", "rpc call"}, flags: []string{"gpu"},
		met: settings.Is("rdma", "true"), lacks: "--rdma",
	},
	{
		commands: []string{"rpc bench"}, flags: []string{"beside"},
		met: settings.Is("gpu", "true"), lacks: "--gpu",
	},
	{
		commands: []string{"rpc serve", "rpc call"}, flags: []string{"device", "device-index"},
		met: settings.Is("gpu", "true"), lacks: "--gpu",
	},
	{
		commands: []string{"rpc bench"}, flags: []string{"device-index"},
		met: settings.Is("rdma", "true"), lacks: "--rdma",
	},
	{
		commands: []string{"rpc serve", "rpc call"}, flags: []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu"},
		met: settings.Is("rdma", "true"), lacks: "--rdma",
	},
	{
		commands: []string{"bench blockio", "rpc bench"}, flags: []string{"device", "rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu"},
		met: settings.Is("rdma", "true"), lacks: "--rdma",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"budget"},
		met: settings.Is("reps", "0"), clashes: "--reps, which determines the duration",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"profile-dir"},
		met: settings.IsNot("device", string(kvlane.Sim), string(kvlane.Host)), clashes: "--device sim or host, which need no measurement",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"slot"},
		met: settings.Either(settings.Not(settings.Given("host")), settings.Is("host", "slots")), lacks: "--host slots",
	},
	{
		commands: []string{"bench copy"}, flags: settings.RDMANames,
		met: measuring(bench.Contender.NIC), lacks: "a path by NIC among --paths",
	},
	{
		commands: []string{"bench copy"}, flags: []string{"without"},
		met: measuring(bench.Contender.Chooses), lacks: "auto among --paths",
	},
	{
		commands: []string{"bench transfer"},
		flags:    []string{"segment", "operation", "block-size", "batch-size", "threads", "duration", "budget", "lanes", "check", "timeout", "json", "nixl", "out"},
		met:      settings.IsNot("mode", modeTarget), clashes: "--mode target, which does not measure",
	},
	{
		commands: []string{"bench transfer"}, flags: []string{"name", "listen", "data-port"},
		met: settings.Is("mode", modeTarget), lacks: "--mode target",
	},
	{
		commands: []string{"transfer serve"}, flags: []string{"advertise"},
		met: settings.IsNot("metadata", mooncake.P2PHandshake), lacks: "--metadata http://HOST:PORT/metadata; with P2PHANDSHAKE --name is the address",
	},
	{
		commands: []string{"bench transfer", "transfer serve", "transfer probe", "transfer ls", "transfer put", "transfer get"}, flags: []string{"cluster"},
		met: settings.Is("protocol", protocolMooncake), lacks: "--protocol mooncake",
	},
	{
		commands: []string{"transfer serve"}, flags: []string{"data-port"},
		met: settings.Is("protocol", protocolMooncake), lacks: "--protocol mooncake",
	},
	{
		commands: []string{"bench transfer", "transfer serve"}, flags: []string{"device", "gpu-id"},
		met: settings.Is("use-vram", "true"), lacks: "--use-vram",
	},
	{
		commands: []string{"bench transfer", "transfer serve"}, flags: []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu"},
		met: settings.Is("protocol", protocolAuto, engine.PathRDMA.String()), lacks: "--protocol auto or --protocol rdma",
	},
	{
		commands: []string{"bench file"}, flags: []string{"device-index"},
		met: settings.IsNot("device", noDevice), lacks: "--device cuda or --device sim",
	},
	{
		commands: []string{"bench file"}, flags: []string{"direct", "cufile-queues"},
		met: settings.IsNot("device", noDevice), lacks: "--device cuda or --device sim",
	},
}...)

// settingNeeds converts the rules of settings to needs.
func settingNeeds() []need {
	needs := make([]need, len(settings.Rules))
	for i, r := range settings.Rules {
		needs[i] = need{commands: r.Commands, flags: r.Names, met: r.Met, lacks: r.Lacks, clashes: r.Clashes}
	}
	return needs
}

// inEtcd holds if the segments of the transfer engine are found in etcd.
func inEtcd(value func(string) string) bool {
	return strings.HasPrefix(value("metadata"), etcd.Scheme+"://")
}

// noDevice is the value of --device for measuring host memory only.
const noDevice = "none"

// measuring holds if --paths is not given or lists a contender for which kind returns true.
func measuring(kind func(bench.Contender) bool) settings.Condition {
	return func(value func(string) string) bool {
		names := value("paths")
		return names == "" || slices.ContainsFunc(strings.Split(names, ","), func(name string) bool {
			c, err := bench.ParseContender(name)
			return err != nil || kind(c)
		})
	}
}

// effective reports whether the condition of n is met, so that its flags have an effect.
func (n *need) effective(flags *pflag.FlagSet) bool {
	return n.met(func(name string) string {
		if f := flags.Lookup(name); f != nil { // nil in a build that lacks the command's code
			return strings.Join(flagValues(f), ",")
		}
		return ""
	})
}

// checkNeeds returns a usage error that lists the given flags without effect.
func checkNeeds(cmd *cobra.Command) error {
	var errs []error
	forIdle(cmd, func(n *need, f *pflag.Flag) {
		if n.lacks != "" {
			errs = append(errs, fmt.Errorf("--%s has no effect without %s: add that, or omit --%s", f.Name, n.lacks, f.Name))
		} else {
			errs = append(errs, fmt.Errorf("--%s has no effect with %s: omit one of them", f.Name, n.clashes))
		}
	})
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return nil
}

// forIdle calls f with each given flag without effect and the need that is not met.
func forIdle(cmd *cobra.Command, f func(*need, *pflag.Flag)) {
	path := commandPath(cmd)
	for i := range needs {
		n := &needs[i]
		if !slices.Contains(n.commands, path) || n.effective(cmd.Flags()) {
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

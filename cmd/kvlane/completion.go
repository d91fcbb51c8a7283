package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/stream"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

// offers are the completions of flag values. The key is the flag's name, or command and name if
// commands differ.
var offers = map[string]cobra.CompletionFunc{
	"config": completeFiles,

	"device":                  values(string(kvlane.CUDA), string(kvlane.Sim), string(kvlane.Host)),
	"replay device":           values(settings.ByName("device").Words...),
	"demo device":             values(settings.ByName("device").Words...),
	"bench file device":       values(noDevice, string(kvlane.CUDA), string(kvlane.Sim)),
	"dtype":                   values(block.DTypes()...),
	"preset":                  names(block.Presets(), func(g block.Geometry) string { return g.Model }),
	"geometry":                names(request.Geometries(), func(g request.Geometry) string { return g.Name }),
	"without":                 names(stream.Paths(stream.MovedByDevice), stream.Path.String),
	"paths":                   values(contenderNames()...),
	"pipeline":                values(pipelines()...),
	"bench store pipeline":    values(slices.DeleteFunc(pipelines(), inServers)...),
	"nic":                     completeNICs,
	"require":                 values(abilityNames()...),
	"directions":              values(string(bench.ToDevice), string(bench.ToHost), string(bench.Both)),
	"host":                    values("contiguous", "scattered", "slots"),
	"bench store work":        values("load", "dump", "both"),
	"bench store forms":       values("whole", "layers"),
	"hits":                    values("cache", "page-cache", "disk"),
	"bench file work":         values("read", "write"),
	"order":                   values("sequential", "scattered"),
	"bench file from":         values("cold", "page-cache"),
	"direct":                  names([]streamfile.Direct{streamfile.DirectAuto, streamfile.DirectRequire, streamfile.DirectNever}, streamfile.Direct.String),
	"mode":                    values(modeInitiator, modeTarget),
	"operation":               values(string(transfer.Read), string(transfer.Write)),
	"protocol":                values(hostProtocols...),
	"transfer serve protocol": values(protocols...),
	"bench transfer protocol": values(protocols...),
	"metadata":                values(mooncake.P2PHandshake, "http://", "etcd://"),
	"bench copy from":         completeFiles,
	"compare":                 completeFiles,
	"cublaslt":                completeFiles,
	"out":                     completeFiles,
	"svg":                     completeFiles,
	"remove":                  completeFiles,
	"tls-cert":                completeFiles,
	"tls-key":                 completeFiles,
	"tls-client-ca":           completeFiles,
	"tokens":                  completeFiles,
	"tls-ca":                  completeFiles,
	"token":                   completeFiles,
	"attachment":              completeFiles,
	"etcd-ca":                 completeFiles,
	"etcd-cert":               completeFiles,
	"etcd-key":                completeFiles,
	"etcd-password":           completeFiles,
	"dir":                     completeDirs,
}

// operandOffers are the completions of operands by command. Other commands have none.
var operandOffers = map[string]cobra.CompletionFunc{
	"replay":       completeFiles,
	"store ls":     completeDirs,
	"store stat":   completeDirs,
	"store verify": completeDirs,
	"store gc":     completeDirs,
	"config check": completeFiles,
	"config show":  completeCommands,
	"transfer put": completeSecondFile,
	"transfer get": completeSecondFile,

	"cluster status": completeMembers,
	"cluster drain":  completeMembers,
}

// offerOf returns the completion of a command's flag, or nil.
func offerOf(path, flag string) cobra.CompletionFunc {
	if complete := offers[path+" "+flag]; complete != nil {
		return complete
	}
	if complete := offers[flag]; complete != nil {
		return complete
	}
	switch s := settings.ByName(flag); {
	case s == nil:
	case s.IsDir():
		return completeDirs
	case len(s.Words) > 0:
		return values(s.Words...)
	}
	return nil
}

// registerCompletions registers offers and operandOffers for cmd and its subcommands.
func registerCompletions(cmd *cobra.Command) {
	path := commandPath(cmd)
	register := func(f *pflag.Flag) {
		complete := offerOf(path, f.Name)
		if complete == nil {
			complete = cobra.NoFileCompletions // the value is a number, a time, a name or an address
		}
		if f.Value.Type() == "bool" {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic(err) // the flag does not exist or has a completion
		}
	}
	cmd.LocalNonPersistentFlags().VisitAll(register)
	cmd.PersistentFlags().VisitAll(register)
	if cmd.ValidArgsFunction = operandOffers[path]; cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		registerCompletions(c)
	}
}

// values completes one of several words. For a flag with values separated by commas it completes
// the last value, without the words already given.
func values(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var found []cobra.Completion
		for _, w := range words {
			if strings.HasPrefix(w, typed[len(before):]) && !slices.Contains(strings.Split(before, ","), w) {
				found = append(found, before+w)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// names completes the words in more and the names of all.
func names[T any](all []T, name func(T) string, more ...string) cobra.CompletionFunc {
	for _, one := range all {
		more = append(more, name(one))
	}
	return values(more...)
}

// completeNICs completes the names of this machine's RDMA devices.
func completeNICs(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil { // no RDMA devices
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names(entries, os.DirEntry.Name)(cmd, args, typed)
}

// completeCommands completes the name of a command below the command in args.
func completeCommands(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var words []string
	if at, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
		for _, c := range at.Commands() {
			if c.IsAvailableCommand() {
				words = append(words, c.Name())
			}
		}
	}
	return values(words...)(cmd, args, typed)
}

func completeFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func completeDirs(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeSecondFile completes the operands SEGMENT FILE: only FILE has a completion.
func completeSecondFile(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// inServers reports whether a pipeline has a tier without directories, which bench store cannot
// fill.
func inServers(pipeline string) bool {
	t := settings.TierByName(pipeline[strings.LastIndexByte(pipeline, '|')+1:])
	return t.New != nil && !t.Place().IsDir()
}

// pipelines returns the pipelines of one tier, and of a tier below a cache.
func pipelines() []string {
	out := []string{cache.Name}
	for _, t := range settings.DurableTiers() {
		out = append(out, cache.Name+"|"+t.Name, t.Name)
	}
	return out
}

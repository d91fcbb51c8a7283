package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/testkit"
)

// alwaysEffective lists, for each command, the flags that have an effect whatever other flags are
// given.
var alwaysEffective = map[string]string{
	"replay": `preset layers kv-heads head-size dtype block-tokens tp tp-rank mla list-presets device device-index path verify cache-bytes
		pipeline file-dir log-dir remote object pages concurrency layerwise limit seed speed threshold json progress`,
	"demo":    "device dir json",
	"doctor":  "json dir require",
	"topo":    "json svg",
	"version": "json",

	"config check": "json",
	"config show":  "json",
	"calibrate":    "device device-index force budget wait memory profile-dir file-dir full json",
	"bench copy": `device device-index peer-index full sizes counts paths directions host batch bytes pool large reps seed lists sums
		high-priority json out from compare`,
	"bench store": `device device-index geometry blocks requests work forms hits file-dir pipeline bytes cache-bytes large quick budget seed path verify
		beside-matmul json out compare`,
	"bench file":        "dir bytes at-once sizes work order from device transfers budget seed json out",
	"bench blockio":     "sizes depth rounds duration rdma json out",
	"bench transfer":    "mode protocol metadata buffer-size use-vram",
	"transfer serve":    "protocol metadata name listen buffer-size use-vram",
	"transfer metadata": "listen",
	"blockd":            "listen cache-bytes tenant-bytes file-dir log-dir object insecure tls-cert tls-key tls-client-ca tokens max-connections etcd zone",
	"cluster status":    "tls-ca tls-cert tls-key token etcd-ca etcd-cert etcd-key etcd-user etcd-password timeout json",
	"cluster drain":     "etcd-ca etcd-cert etcd-key etcd-user etcd-password undo",
	"rpc serve":         "listen insecure tls-cert tls-key tls-client-ca tokens rdma",
	"rpc call":          "addr message attachment out timeout tls-ca tls-cert tls-key token rdma",
	"rpc bench":         "addr callers sizes attachments rounds duration timeout rdma json out",
	"transfer probe":    "protocol metadata timeout json",
	"transfer ls":       "protocol metadata timeout json",
	"transfer put":      "protocol metadata timeout buffer offset notify",
	"transfer get":      "protocol metadata timeout buffer offset length",
	"store ls":          "json pinned object-endpoint object-region object-ca",
	"store stat":        "json object-endpoint object-region object-ca",
	"store verify":      "json repair object-endpoint object-region object-ca",
	"store gc":          "json max-bytes max-age quarantine foreign remove object-endpoint object-region object-ca",
	"store why":         "json key tokens tokens-file hashes block-tokens expect object-endpoint object-region object-ca",
	"store rm":          "json key identity max-age object-endpoint object-region object-ca",
	"store pin":         "json key identity max-bytes object-endpoint object-region object-ca",
	"store unpin":       "json key identity object-endpoint object-region object-ca",
}

// operands are the positional arguments of commands.
var operands = map[string][]string{
	"cluster status": {"a:1"}, "cluster drain": {"etcd://a:1/kvlane", "b:1"},
	"transfer probe": {"segment"}, "transfer ls": {"segment"}, "transfer put": {"segment", "file"}, "transfer get": {"segment", "file"},
}

// clash maps the text of a need to flags with which the flags of that need have no effect.
var clash = map[string][]string{
	"--list-presets": {"--list-presets"},
	"--file-read-only, which writes no files":              {"--file-dir", "d", "--file-read-only"},
	"a forced --path":                                      {"--path", "kernel"},
	"--device sim, which needs no measurement":             {"--device", "sim"},
	"--device sim or host, which need no measurement":      {"--device", "host"},
	"--device host, which has one path":                    {"--device", "host"},
	"--rdma-provider soft, which only --gdr require takes": {"--rdma-provider", "soft"},
	"--file-dir, which measures no copy path":              {"--file-dir", "d"},
	"--json, which prints every figure":                    {"--json"},
	"--from, which does not measure":                       {"--from", "run.json"},
	"--reps, which determines the duration":                {"--reps", "3"},
	"--device sim or host, which run no matrix product":    {"--device", "sim", "--beside-matmul"},
	"a path by NIC among --paths":                          {"--paths", "kernel"},
	"auto among --paths":                                   {"--paths", "kernel"},
	"--mode target, which does not measure":                {"--mode", "target"},
	"--host slots":                                         {"--host", "scattered"},
	"--protocol mooncake":                                  {"--protocol", "auto"},
}

// meets maps the missing part of a need to flags that provide it.
var meets = map[string][]string{
	"--file-dir DIR":                             {"--file-dir", "d"},
	"--log-dir DIR":                              {"--log-dir", "d"},
	"--rdma":                                     {"--rdma"},
	"--gpu":                                      {"--rdma", "--gpu"},
	"--addr HOST:PORT":                           {"--addr", "127.0.0.1:1"},
	"--remote":                                   {"--remote", "127.0.0.1:1"},
	"--etcd HOST:PORT":                           {"--etcd", "127.0.0.1:1"},
	"--metadata etcd://HOST:PORT/CLUSTER":        {"--protocol", "auto", "--metadata", "etcd://127.0.0.1:1/test"},
	"--object":                                   {"--object", "s3://bucket"},
	"--file-dir DIR or --log-dir DIR":            {"--log-dir", "d"},
	"--gdr auto or --gdr require":                {"--gdr", "require"},
	"--tokens FILE or --tls-client-ca FILE":      {"--tokens", "tokens"},
	"--compare FILE":                             {"--compare", "run.json"},
	"--beside-matmul":                            {"--beside-matmul"},
	"--device sim":                               {"--device", "sim"},
	"a path by NIC among --paths":                {"--paths", "kernel,nic"},
	"auto among --paths":                         {"--paths", "kernel,auto"},
	"--mode target":                              {"--mode", "target"},
	"--protocol mooncake":                        {"--protocol", "mooncake"},
	"--protocol auto or --protocol rdma":         {"--protocol", "rdma"},
	"--use-vram":                                 {"--use-vram", "--protocol", "auto"},
	"--gdr auto, --gdr require or --remote-rdma": {"--remote", "127.0.0.1:1", "--remote-rdma"},

	"--protocol auto, as Mooncake's has the address in --name":                      {"--protocol", "auto", "--metadata", "http://127.0.0.1:1/metadata"},
	"--metadata http://HOST:PORT/metadata; with P2PHANDSHAKE --name is the address": {"--protocol", "auto", "--metadata", "http://127.0.0.1:1/metadata"},

	"--protocol auto, as Mooncake's moves host memory here": {"--protocol", "auto"},
	"--host slots":                  {"--host", "slots"},
	"--device cuda or --device sim": {"--device", "sim"},
}

// forEachCommand calls f with each command that has no subcommands, and its path.
func forEachCommand(f func(path string, cmd *cobra.Command)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if path, below := strings.CutPrefix(cmd.CommandPath(), "kvlane "); below && !cmd.HasSubCommands() {
			f(path, cmd)
		}
	}
	walk(newRootCommand())
}

// give returns a flag with a valid value, which differs from the default where that matters.
func give(f *pflag.Flag) []string {
	value := map[string]string{"int": "1", "uint64": "1", "size": "1MiB", "duration": "1s", "intSlice": "1", "float64": "1"}[f.Value.Type()]
	switch {
	case f.Value.Type() == "bool":
		return []string{"--" + f.Name}
	case f.Name == "policy":
		value = "latency"
	case f.Name == "gdr":
		value = "auto"
	case settings.ByName(f.Name) != nil && len(settings.ByName(f.Name).Words) > 0:
		value = settings.ByName(f.Name).Words[1]
	case f.Name == "file-dir-bytes":
		value = "1"
	case f.Name == "pipeline":
		value = "cache"
	case value == "":
		value = "x"
	}
	return []string{"--" + f.Name, value}
}

// A flag without effect is refused, for every flag and command. Each new flag belongs in needs or
// in alwaysEffective.
func TestDefectFlagWithoutEffectIsRefused(t *testing.T) {
	testkit.SkipRace(t, "one goroutine reads the command line")
	tried := 0
	forEachCommand(func(path string, cmd *cobra.Command) {
		always := strings.Fields(alwaysEffective[path])
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			found := slices.Contains(always, f.Name)
			for i := range needs {
				n := &needs[i]
				if !slices.Contains(n.commands, path) || !n.about(cmd, f.Name) {
					continue
				}
				found = found || len(n.flags) > 0
				args := append(strings.Fields(path), clash[n.clashes+n.lacks]...)
				if !slices.Contains(args, "--"+f.Name) {
					args = append(args, give(f)...)
				}
				var out, errs bytes.Buffer
				if path == "replay" && n.clashes != "--list-presets" {
					args = append(args, "no-such-trace")
				}
				args = append(args, operands[path]...)
				code := run(t.Context(), args, &out, &errs)
				if want := fmt.Sprintf("--%s has no effect with", f.Name); code != exitUsage || !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), n.lacks+n.clashes) {
					t.Errorf("%v: exit code %d: %s", args, code, errs.String())
				}
				tried++
			}
			if !found {
				t.Errorf("add --%s of %q to needs or to alwaysEffective", f.Name, path)
			}
		})
		for _, name := range always {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("%q has no --%s", path, name)
			}
		}
	})
	if tried < 90 {
		t.Errorf("%d command lines were tried: the test does not test", tried)
	}
}

// If a need is met, its flags are accepted. Needs name only existing flags and commands.
func TestNeedsThatAreMet(t *testing.T) {
	left := map[string]bool{}
	for i := range needs {
		for _, c := range needs[i].commands {
			left[fmt.Sprint(i, c)] = true
		}
	}
	forEachCommand(func(path string, cmd *cobra.Command) {
		for i := range needs {
			n := &needs[i]
			if !slices.Contains(n.commands, path) {
				continue
			}
			delete(left, fmt.Sprint(i, path))
			cmd, _, err := newRootCommand().Find(strings.Fields(path)) // a new command, because flags keep their values
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range slices.Concat(n.flags, n.but) {
				f := cmd.Flags().Lookup(name)
				if f == nil {
					t.Errorf("%q has no --%s", path, name)
					continue
				}
				if slices.Contains(n.flags, name) && n.lacks != "" {
					if err := cmd.ParseFlags(slices.Concat(meets[n.lacks], give(f))); err != nil {
						t.Errorf("%q: %v", path, err)
					}
				}
			}
			if !n.effective(cmd.Flags()) {
				t.Errorf("%q: %v are not met", path, n.lacks+n.clashes)
			}
			if err := checkNeeds(cmd); err != nil && n.lacks != "" && !strings.Contains(path, "bench copy") {
				t.Errorf("%q: %v", path, err)
			}
		}
	})
	for missing := range left {
		t.Errorf("no command has need %s", missing)
	}
}

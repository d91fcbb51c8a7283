package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/store"
)

// tierFlags say which tiers a store has, and may contradict one another. What then decides is what decides between two values of one
// setting: the command line, then the environment, then the file.
var tierFlags = []string{"file-dir", "log-dir", "pipeline"}

// withdrawOverruled withdraws the flags of a configuration that contradict one that decides.
func withdrawOverruled(cmd *cobra.Command) error {
	var out []*pflag.Flag
	for _, name := range tierFlags {
		if overruled(cmd.Flags(), name) {
			out = append(out, cmd.Flags().Lookup(name))
		}
	}
	var errs []error
	for _, f := range out {
		errs = append(errs, withdraw(f))
	}
	return errors.Join(errs...)
}

// overruled reports whether a flag contradicts another that is above it and is not overruled itself.
func overruled(flags *pflag.FlagSet, name string) bool {
	mine := rank(flags.Lookup(name))
	return mine > 0 && slices.ContainsFunc(tierFlags, func(other string) bool {
		return rank(flags.Lookup(other)) > mine && contradict(flags, name, other) && !overruled(flags, other)
	})
}

// rank says how much a flag decides: 0 where it is not given.
func rank(f *pflag.Flag) int {
	switch {
	case f == nil || !f.Changed:
		return 0
	case origin(f) == "":
		return 3
	case origin(f) == (&setting{name: f.Name}).env():
		return 2
	}
	return 1
}

// contradict reports whether two flags cannot both have an effect: files and a log are not below one cache, and a pipeline says all the
// tiers that there are. One that is wrong says none, and nothing is withdrawn for its sake: the error is to be about it.
func contradict(flags *pflag.FlagSet, a, b string) bool {
	if b == "pipeline" {
		a, b = b, a
	}
	if a != "pipeline" {
		return a != b
	}
	tiers, err := store.ParsePipeline(flags.Lookup(a).Value.String())
	return a != b && err == nil && !slices.Contains(tiers, strings.TrimSuffix(b, "-dir"))
}

package main

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/settings"
)

// rdmaFlags select RDMA NICs for copies.
type rdmaFlags struct{ flags *pflag.FlagSet }

// register adds all flags.
func (r *rdmaFlags) register(flags *pflag.FlagSet) {
	registerSettings(flags, "gdr")
	r.registerNICs(flags)
	registerSettings(flags, "rdma-queue-pairs")
}

// registerNICs adds the flags that select NICs.
func (r *rdmaFlags) registerNICs(flags *pflag.FlagSet) {
	r.flags = flags
	registerSettings(flags, slices.DeleteFunc(slices.Clone(settings.RDMANames), func(name string) bool { return name == "rdma-queue-pairs" })...)
}

// config returns the NICs that the flags select.
func (r *rdmaFlags) config() (gdr.Config, error) {
	var c kvlane.Config
	if err := applySettings(&c, r.flags, settings.RDMANames...); err != nil {
		return gdr.Config{}, &usageError{err}
	}
	return c.RDMA, nil
}

// gdr returns the value of the flag --gdr.
func (r *rdmaFlags) gdr() kvlane.GDR { return kvlane.GDR(r.flags.Lookup("gdr").Value.String()) }

// soft reports whether the flags select NICs in software.
func (r *rdmaFlags) soft() bool {
	return r.flags.Lookup("rdma-provider").Value.String() == string(gdr.Soft)
}

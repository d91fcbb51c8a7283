package main

import (
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/gdr"
)

// rdmaFlags say whether and how copies travel by RDMA NICs.
type rdmaFlags struct {
	gdr      string
	provider string
	gid      int
	nics     gdr.Config
}

func (r *rdmaFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&r.gdr, "gdr", string(kvlane.GDROff), "copy by RDMA NICs connected to themselves: off, auto (the batches that they are measured to be the fastest for), or require")
	r.registerNICs(flags, "in software, to try the path; with --gdr require only")
	r.registerQueuePairs(flags)
}

// registerNICs adds the flags that select NICs. soft says what NICs in software are for.
func (r *rdmaFlags) registerNICs(flags *pflag.FlagSet, soft string) {
	flags.StringVar(&r.provider, "rdma-provider", string(gdr.IBV), "whose NICs: ibv (the machine's), or soft ("+soft+")")
	flags.StringSliceVar(&r.nics.NICs, "nic", nil, "names of the NICs to use, by commas; default: the nearest to the device")
	flags.IntVar(&r.nics.Port, "rdma-port", 0, "port of the NICs; 0 is the first that is active")
	flags.IntVar(&r.gid, "rdma-gid-index", -1, "which address of the port; -1 is the best")
	flags.IntVar(&r.nics.MTU, "rdma-mtu", 0, "bytes of a packet, 256 to 4096; 0 is the port's active MTU")
}

func (r *rdmaFlags) registerQueuePairs(flags *pflag.FlagSet) {
	flags.IntVar(&r.nics.QueuePairs, "rdma-queue-pairs", 0, "queue pairs on each NIC; 0 is the default")
}

// config returns what the flags ask for. Its problems are found with those of the whole configuration.
func (r *rdmaFlags) config() gdr.Config {
	c := r.nics
	c.Provider = gdr.Provider(r.provider)
	if r.gid != -1 {
		c.GIDIndex = &r.gid
	}
	return c
}

// soft reports whether NICs in software are asked for.
func (r *rdmaFlags) soft() bool { return gdr.Provider(r.provider) == gdr.Soft }

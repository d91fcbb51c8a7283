package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
)

// dirPinned is the result of "kvlane store pin" and "kvlane store unpin" for a directory.
type dirPinned struct {
	Directory    string `json:"directory"`
	Changed      int    `json:"changed_blocks"` // blocks that were not yet, or no longer, pinned
	Bytes        int64  `json:"changed_bytes"`
	PinnedBlocks int64  `json:"pinned_blocks"`
	PinnedBytes  int64  `json:"pinned_bytes"`
}

// newStorePinCommand returns "kvlane store pin", or "kvlane store unpin" if pin is not set.
func newStorePinCommand(pin bool) *cobra.Command {
	var asJSON bool
	var keys []string
	var identity string
	var bound int64
	cmd := &cobra.Command{
		Use:   "pin DIR",
		Short: "Pin blocks, so that they are neither evicted nor removed",
		Long: `Pin the blocks that match all given options, durably: until they are unpinned, no tier evicts them, and gc and rm do not remove them. They count
toward the bound of the directory, of which half may be pinned. A pinned block that is found damaged is a miss as any other, and its pin goes with it.

If a process has the directory open, it pins the blocks under its own bound. The command is refused, and names the process, if it does not serve it.
Otherwise the bound is that of the engines, --max-bytes. Without it, it is the number of bytes of blocks in the directory.

The exit code is 1 if a key is not in DIR, or if the limit is exceeded; then nothing is pinned in that directory.`,
		Example: `  kvlane store pin /var/cache/kvlane --identity 4b9f0c7d61f8a2e35c08d4976a1be2f30c5d8e7941a6b3f2807e1c9d5a4f6b38 --max-bytes 100GiB
  kvlane store pin /var/cache/kvlane --key 0000529c5dfa3ff8af88db2191711ca50caa0a371be3b6a51584ab3a82d7dc32`,
		Args: usageArgs(cobra.ExactArgs(1)),
	}
	if !pin {
		cmd.Use, cmd.Short = "unpin DIR", "Unpin blocks, so that they can be evicted again"
		cmd.Long = `Remove the pins of the blocks that match all given options, durably. The blocks stay until they are evicted.

If a process has the directory open, it unpins the blocks. The command is refused, and names the process, if it does not serve it.
The exit code is 1 if no block with a key is pinned or stored in DIR.`
		cmd.Example = `  kvlane store unpin /var/cache/kvlane --identity 4b9f0c7d61f8a2e35c08d4976a1be2f30c5d8e7941a6b3f2807e1c9d5a4f6b38
  kvlane store unpin /var/cache/kvlane --key 0000529c5dfa3ff8af88db2191711ca50caa0a371be3b6a51584ab3a82d7dc32`
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := "store " + cmd.Name()
		if len(keys) == 0 && identity == "" {
			return usagef("%s: nothing selected: give --key KEY or --identity DIGEST; "+
				"kvlane store ls DIR lists the keys, and kvlane store stat DIR the digests", name)
		}
		sel, err := selectionOf(name, keys, identity)
		if err != nil {
			return err
		}
		return changeBlocks(cmd, args[0], asJSON, &sel, cmd.Name(), func(b bucketAccess, dir string, missing map[block.Key]bool) (folderResult, error) {
			k, r, err := keeperOf(b, dir), file.Pinned{}, error(nil)
			if pin {
				r, err = k.pin(cmd.Context(), dir, sel, bound)
			} else {
				r, err = k.unpin(cmd.Context(), dir, sel)
			}
			if err != nil {
				return folderResult{}, err
			}
			for _, key := range r.Selected {
				delete(missing, key)
			}
			d := dirPinned{dir, len(r.Keys), r.Bytes, r.Total.Blocks, r.Total.Bytes}
			return folderResult{d, [][2]string{
				{"blocks " + cmd.Name() + "ned", fmt.Sprintf("%d, %s", d.Changed, present.Bytes(d.Bytes))},
				{"pinned now", fmt.Sprintf("%d, %s", d.PinnedBlocks, present.Bytes(d.PinnedBytes))},
			}}, nil
		})
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, cmd.Name()+" the block with this key, as by \"kvlane store ls\"; repeatable")
	cmd.Flags().StringVar(&identity, "identity", "", cmd.Name()+" the blocks of the identity with this digest, as by \"kvlane store stat\"")
	if pin {
		cmd.Flags().Var(sizeValue{&bound}, "max-bytes", "the bound with which engines open the directory (file_bytes, log_bytes); half of it may be pinned")
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonOfFolders)
	return cmd
}

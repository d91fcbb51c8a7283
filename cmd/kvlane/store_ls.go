package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
)

func newStoreListCommand() *cobra.Command {
	var asJSON, pinned bool
	cmd := &cobra.Command{
		Use:   "ls DIR",
		Short: "List the blocks, in the order of their keys",
		Long: `List the blocks, in the order of their keys, with the size of each, and how long ago it was written or its hotness last renewed;
in a log, its segment was written. A * marks pinned blocks. --json has bytes and times as they are, and the number of shards, one object a line.`,
		Example: `  kvlane store ls /var/cache/kvlane
  kvlane store ls /var/cache/kvlane --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			w := cmd.OutOrStdout()
			bucket := accessOf(cmd)
			dirs, err := foldersOf(cmd.Context(), bucket, args[0])
			if err != nil {
				return err
			}
			return eachFolder(cmd.Context(), dirs, func(dir string, several bool) error {
				if several && !asJSON {
					if dir != dirs[0] {
						fmt.Fprintln(w)
					}
					fmt.Fprintf(w, "%s:\n", present.Name(dir))
				}
				return listBlocks(cmd.Context(), w, bucket, dir, asJSON, several, pinned)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line and block")
	cmd.Flags().BoolVar(&pinned, "pinned", false, "list only pinned blocks")
	return cmd
}

// listBlocks prints blocks as they are found, because a directory may have millions.
func listBlocks(ctx context.Context, w io.Writer, b bucketAccess, dir string, asJSON, named, pinned bool) error {
	const row = "%-*s %9s %4s%s\n" // fits in 80 columns
	const keyWidth = 2 * len(block.Key{})
	enc := json.NewEncoder(w)
	now, printedHeader := time.Now(), false
	err := keeperOf(b, dir).list(ctx, dir, func(e file.Entry) error {
		if pinned && !e.Pinned {
			return nil
		}
		if asJSON {
			folder := ""
			if named {
				folder = dir
			}
			return enc.Encode(struct {
				Folder   string    `json:"directory,omitempty"`
				Key      string    `json:"key"`
				Bytes    int64     `json:"bytes"`
				Group    int       `json:"group"`
				Shards   int       `json:"shards"`
				Modified time.Time `json:"modified"`
				Pinned   bool      `json:"pinned,omitempty"`
			}{folder, e.Key.String(), e.Bytes, e.Group, e.Shards, e.Modified, e.Pinned})
		}
		if !printedHeader {
			printedHeader = true
			if _, err := fmt.Fprintf(w, row, keyWidth, "KEY", "SIZE", "AGE", ""); err != nil {
				return err
			}
		}
		mark := ""
		if e.Pinned {
			mark = "*"
		}
		_, err := fmt.Fprintf(w, row, keyWidth, e.Key, present.Bytes(e.Bytes), ageText(now.Sub(e.Modified)), mark)
		return err
	})
	if err == nil && !printedHeader && !asJSON {
		_, err = fmt.Fprintln(w, "no blocks")
	}
	return err
}

// ageText formats an age in one unit.
func ageText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second: // may be negative, because clocks of hosts differ
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
)

// dirRemoved is the result of "kvlane store rm" for a directory.
type dirRemoved struct {
	Directory string `json:"directory"`
	Removed   int    `json:"removed_blocks"`
	Bytes     int64  `json:"removed_bytes"`
	// Left is the error for blocks that could not be removed.
	Left string `json:"left,omitempty"`
}

func newStoreRemoveCommand() *cobra.Command {
	var asJSON bool
	var keys []string
	var identity string
	var age time.Duration
	cmd := &cobra.Command{
		Use:   "rm DIR",
		Short: "Remove blocks by key, identity or age",
		Long: `Remove the blocks that match all given options, durably: when the command has succeeded, they are not found again, also after a
power failure. The next dump may store them again.

A pinned block stays, and is an error: unpin it first. Blocks in use stay too. If processes have
the directory open, each of them removes the blocks, also from its memory. The command is refused, and names the process, if one does not serve it.
The age of a block is that of "kvlane store ls": the time since it was written or its hotness was last renewed; in a log, since its segment was written.

The exit code is 1 if a key is not in DIR, or if a block could not be removed.`,
		Example: `  kvlane store rm /var/cache/kvlane --max-age 720h
  kvlane store rm /var/cache/kvlane --identity 4b9f0c7d61f8a2e35c08d4976a1be2f30c5d8e7941a6b3f2807e1c9d5a4f6b38
  kvlane store rm /var/cache/kvlane --key 0000529c5dfa3ff8af88db2191711ca50caa0a371be3b6a51584ab3a82d7dc32`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 && identity == "" && age == 0 {
				return usagef("store rm: nothing selected: give --key KEY, --identity DIGEST or --max-age TIME; " +
					"kvlane store ls DIR lists the keys, and kvlane store stat DIR the digests")
			}
			if age < 0 {
				return usagef("store rm: --max-age %s is negative", age)
			}
			sel, err := selectionOf("store rm", keys, identity)
			if err != nil {
				return err
			}
			if age > 0 {
				sel.Before = time.Now().Add(-age)
			}
			return changeBlocks(cmd, args[0], asJSON, &sel, "remove", func(b bucketAccess, dir string, missing map[block.Key]bool) (folderResult, error) {
				return removeBlocks(cmd.Context(), b, dir, sel, missing)
			})
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "remove the block with this key, as by \"kvlane store ls\"; repeatable")
	cmd.Flags().StringVar(&identity, "identity", "", "remove blocks of the identity with this digest, as by \"kvlane store stat\"")
	cmd.Flags().DurationVar(&age, "max-age", 0, "remove blocks that are older, as 72h")
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonOfFolders)
	return cmd
}

// selectionOf returns the selection by keys and identity of a command.
func selectionOf(command string, keys []string, identity string) (sel file.Selection, err error) {
	for _, text := range keys {
		key, err := block.ParseKey(text)
		if err != nil {
			return sel, usagef("%s: --key %s: %v", command, text, err)
		}
		sel.Keys = append(sel.Keys, key)
	}
	if identity != "" {
		if sel.Identity, err = block.ParseDigest(identity); err != nil {
			return sel, usagef("%s: --identity %s: %v", command, identity, err)
		}
	}
	return sel, nil
}

// changeBlocks prints the result of f for every directory of blocks of dir. f removes the keys of
// the selected blocks that it finds from missing. changeBlocks returns an error for the others.
func changeBlocks(cmd *cobra.Command, dir string, asJSON bool, sel *file.Selection, verb string,
	f func(b bucketAccess, dir string, missing map[block.Key]bool) (folderResult, error),
) error {
	bucket := accessOf(cmd)
	dirs, err := foldersOf(cmd.Context(), bucket, dir)
	if err != nil {
		return err
	}
	missing := make(map[block.Key]bool)
	for _, key := range sel.Keys {
		missing[key] = true
	}
	err = printFolders(cmd.Context(), cmd.OutOrStdout(), dirs, asJSON, func(dir string) (folderResult, error) {
		return f(bucket, dir, missing)
	})
	for _, key := range sel.Keys {
		if err == nil && missing[key] {
			err = fmt.Errorf("%s block %s: no block with that key matches; kvlane store ls %s lists the blocks", verb, key, shellWord(dir))
		}
	}
	return err
}

// removeBlocks removes the selected blocks of a directory, and their keys from missing.
func removeBlocks(ctx context.Context, b bucketAccess, dir string, sel file.Selection, missing map[block.Key]bool) (folderResult, error) {
	r, err := keeperOf(b, dir).remove(ctx, dir, sel)
	for _, key := range r.Keys {
		delete(missing, key)
	}
	if err != nil && len(r.Keys) == 0 {
		return folderResult{}, err
	}
	d := dirRemoved{Directory: dir, Removed: len(r.Keys), Bytes: r.Bytes}
	if r.Left != nil {
		d.Left = r.Left.Error()
		err = errors.Join(err, fmt.Errorf("remove blocks of %s: not all could be removed: %w", dir, r.Left))
	}
	verdict := [2]string{"removed", counted(d.Removed, "block", "blocks")}
	if d.Left != "" {
		verdict = [2]string{"incomplete", "not all selected blocks were removed"}
	}
	return folderResult{d, [][2]string{verdict, {"blocks removed", fmt.Sprint(d.Removed)}, {"bytes removed", present.Bytes(d.Bytes)}}}, err
}

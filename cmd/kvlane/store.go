package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/owner"
)

// keeper has the operations for directories of one kind: a file tier or a log.
type keeper struct {
	inspect func(ctx context.Context, dir string) (file.Inspection, error)
	list    func(ctx context.Context, dir string, yield func(file.Entry) error) error
	verify  func(ctx context.Context, dir string, progress func(blocks, bytes int64)) (file.Report, error)
	repair  func(ctx context.Context, dir string, progress func(blocks, bytes int64)) (file.Repaired, error)
	gc      func(ctx context.Context, dir string, targetBytes int64, progress func(done, total int64)) (file.Collected, error)
	clear   func(ctx context.Context, dir string, u file.Unwanted) (file.Cleared, error)
	remove  func(ctx context.Context, dir string, sel file.Selection) (file.Removed, error)
	pin     func(ctx context.Context, dir string, sel file.Selection, boundBytes int64) (file.Pinned, error)
	unpin   func(ctx context.Context, dir string, sel file.Selection) (file.Pinned, error)
	why     func(ctx context.Context, dir string, keysOf func(m *file.Marker) ([]block.Key, error)) (file.Answers, error)
	owners  func(ctx context.Context, dir string) ([]*owner.Client, error) // or nil
}

// keeperOf returns the operations for a directory, or for a folder in a bucket. For other
// directories it returns those of the file tier, because their errors describe the missing parts.
func keeperOf(b bucketAccess, dir string) keeper {
	if object.IsURL(dir) {
		return b.keeper()
	}
	if log.Recognises(dir) {
		return keeper{log.Inspect, log.List, log.Verify, log.Repair, log.GC, log.Clear, log.Remove, log.Pin, log.Unpin, log.Why, nil}.asking(log.Owners)
	}
	return keeper{file.Inspect, file.List, file.Verify, file.Repair, file.GC, file.Clear, file.Remove, file.Pin, file.Unpin, file.Why, nil}.asking(file.Owners)
}

func newStoreCommand() *cobra.Command {
	cmd := newGroupCommand("store", "Inspect, verify and shrink the directories of a file or log tier, or a bucket",
		`The commands below work on a directory that "kvlane replay --file-dir", "kvlane replay --log-dir" or a program with the library has
made; its kvlane.json describes the contents. DIR may also be one that has such folders right below it, as the connectors for vLLM, SGLang and transformers
make them: then each folder is shown. Other processes may use the directory meanwhile: engines that have it open do rm, pin and unpin for the command. But gc --max-bytes and
verify --repair need the directory of a log for themselves.

DIR may also be a bucket, s3://BUCKET/PREFIX, with the blocks of object tiers: then each of its folders is shown. Its credentials are those of the AWS SDK.

  kvlane store verify DIR            report damaged and foreign files
  kvlane store verify --repair DIR   move damaged blocks to DIR/quarantine, and repair the rest
  kvlane store gc --quarantine DIR   remove the files in quarantine
  kvlane store why --tokens IDS DIR  explain why a prompt is not found
  kvlane store rm --key KEY DIR      remove a block
  kvlane store pin --key KEY DIR     keep a block until it is unpinned`)
	cmd.AddCommand(newStoreListCommand(), newStoreStatCommand(), newStoreVerifyCommand(), newStoreGCCommand(), newStoreRemoveCommand(),
		newStorePinCommand(true), newStorePinCommand(false), newStoreWhyCommand())
	for _, c := range cmd.Commands() {
		registerSettings(c.Flags(), bucketFlags...)
		do := c.RunE
		// An invalid DIR is a usage error.
		c.RunE = func(cmd *cobra.Command, args []string) error { return asUsage(do(cmd, args)) }
	}
	return cmd
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// counted returns a number with the singular or plural of its noun.
func counted(n int, one, many string) string { return fmt.Sprintf("%d %s", n, plural(n, one, many)) }

// shellWord quotes a word for a shell in any locale. Unprintable characters are quoted as octal
// bytes with three digits.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+=:,@%", r)
	}
	if s != "" && !strings.HasPrefix(s, "-") && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	if present.Escape(s) == s {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for _, char := range strings.Split(s, "") {
		switch {
		case char == `\` || char == "'":
			b.WriteString(`\` + char)
		case present.Escape(char) == char:
			b.WriteString(char)
		default:
			for i := range len(char) {
				fmt.Fprintf(&b, `\%03o`, char[i])
			}
		}
	}
	return "$'" + b.String() + "'"
}

// inQuarantine returns a hint about the n files in quarantine. It returns none if n is 0.
func inQuarantine(dir string, n int) (next []string) {
	if n > 0 {
		next = append(next, fmt.Sprintf("%s in quarantine: kvlane store gc --quarantine %s", counted(n, "file", "files"), shellWord(dir)))
	}
	return next
}

// nextRows converts hints to table rows.
func nextRows(next []string) (rows [][2]string) {
	for _, n := range next {
		rows = append(rows, [2]string{"next", n})
	}
	return rows
}

// printResult prints v as one JSON object, or rows as a table in which unprintable values are
// quoted.
func printResult(w io.Writer, asJSON bool, v any, rows [][2]string) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r[0], present.Name(r[1]))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

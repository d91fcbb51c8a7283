package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/wire"
)

// usageError means that the command line is wrong. Other errors are failures of the command.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns a usageError.
func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// asUsage converts an error that rejects values of the command line to a usageError. Use it for
// errors of opening and checking, not for errors of the work: an invalid trace or file is not a
// usage error.
func asUsage(err error) error {
	if refused(err) {
		return &usageError{err: err}
	}
	return err
}

// refused reports whether err rejects arguments before any work has begun. It returns false for
// arguments that a driver or NIC rejects during the work, and for invalid replies of other
// processes.
func refused(err error) bool {
	var driver *device.Error
	return errors.Is(err, errdefs.ErrInvalid) && !errors.As(err, &driver) && !gdr.Answered(err) && !wire.Answered(err)
}

// usageArgs converts errors of an argument check of cobra to usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err: err}
		}
		return nil
	}
}

func newRootCommand() *cobra.Command {
	var level, format string
	var watch watchFlags
	root := newGroupCommand("kvlane", "Move and keep the KV cache of language models", `kvlane keeps the KV cache of language models outside the GPU and loads it back, by the fastest path of the machine. Blocks are
kept in pinned host memory and in files, which survive restarts.

Hardware and libraries are detected at run time; kvlane doctor reports what is missing.

Exit codes:
`+exitTable())
	r := releaseOf(debug.ReadBuildInfo())
	root.Version = r.String()
	root.SetVersionTemplate("{{.Version}}")
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().String(configFlag, "", configFlagUsage)
	root.PersistentFlags().StringVar(&level, "log-level", "info", usageOf("log-level"))
	root.PersistentFlags().StringVar(&format, "log-format", "text", usageOf("log-format"))
	watch.register(root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := configure(cmd); err != nil {
			return err
		}
		log, err := newLogger(cmd.ErrOrStderr(), level, format)
		if err != nil {
			return err
		}
		slog.SetDefault(slog.New(warningHandler{log.Handler(), &watch.warnings}))
		warnOfEnv()
		// cobra's own check does not return a usageError
		if err := cmd.ValidateFlagGroups(); err != nil {
			return &usageError{err}
		}
		if err := dropRepeated(cmd); err != nil {
			return err
		}
		return checkNeeds(cmd)
	}
	root.AddCommand(newReplayCommand(), newDemoCommand(), newStoreCommand(), newDoctorCommand(), newTopoCommand(), newCalibrateCommand(), newBenchCommand(), newTransferCommand(), newBlockdCommand(), newClusterCommand(), newRPCCommand(), newConfigCommand(), newVersionCommand(&r), newShareProbeCommand())
	watch.around(root)
	fitHelp(root)
	registerCompletions(root)
	return root
}

// newGroupCommand returns a command that only has subcommands. Without arguments it prints its
// help. An unknown subcommand is a usage error.
func newGroupCommand(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		// Cobra sets this default only for its own suggestions.
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0], nil)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// unknownCommand returns the error for an unknown subcommand of cmd. It suggests similar commands,
// except those in but.
func unknownCommand(cmd *cobra.Command, word string, but []string) error {
	near := slices.DeleteFunc(cmd.SuggestionsFor(word), func(s string) bool {
		c, _, err := cmd.Find([]string{s})
		// Drop suggestions whose first letter and at least half of the letters differ.
		return err != nil || within(c, but) || 2*settings.Distance(word, s) >= len(word) && !strings.HasPrefix(s, word[:min(1, len(word))])
	})
	var hint string
	if len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return usagef("unknown command %q for %q%s", word, cmd.CommandPath(), hint)
}

// flagError converts an error to a usage error. For an unknown flag it suggests the most similar
// one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := settings.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return usagef("%w; did you mean --%s?", err, near)
		}
	}
	return &usageError{err: err}
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	l, err := parseLevel(level)
	if err != nil {
		return nil, usagef("--log-level: %w", err)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usagef("--log-format %q: must be text or json", format)
}

func parseLevel(s string) (l slog.Level, err error) {
	if l.UnmarshalText([]byte(s)) != nil {
		return l, fmt.Errorf("%q is not one of debug, info, warn and error", s)
	}
	return l, nil
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/settings"
)

// unconfigured lists commands that ignore the configuration, so that they work if it is invalid. It
// includes their subcommands.
var unconfigured = []string{"version", "completion", "config", "help", shareProbeCommand, cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// settingFlag returns the flag of a command for a setting. It returns nil if the command does not
// read the setting from the configuration.
func settingFlag(cmd *cobra.Command, s *settings.Setting) *pflag.Flag {
	if s.Name == "" || within(cmd, unconfigured) || within(cmd, s.FlagOnly) {
		return nil
	}
	if f := cmd.LocalFlags().Lookup(s.Name); f != nil {
		return f
	}
	return cmd.Root().PersistentFlags().Lookup(s.Name)
}

// within reports whether a command has one of the paths or is below it.
func within(cmd *cobra.Command, paths []string) bool {
	path := commandPath(cmd) + " "
	return slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(path, p+" ") })
}

// commandPath returns the command's path without the program's name.
func commandPath(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
}

// Keys of annotations of flags.
const (
	fromKey = "kvlane_from" // origin of the value, unless it is the command line
	idleKey = "kvlane_idle" // origin of a value that is ignored
)

// origin returns the origin of a flag's value in the configuration, or "".
func origin(f *pflag.Flag) string {
	if from := f.Annotations[fromKey]; len(from) > 0 {
		return from[0]
	}
	return ""
}

// configure sets flags that are not on the command line to values of the environment, or else of
// the configuration file.
func configure(cmd *cobra.Command) error {
	// commands with subcommands print their help
	if within(cmd, unconfigured) || cmd.HasSubCommands() {
		return nil
	}
	all, err := readSettings(cmd)
	if err != nil && cmd.Context().Err() != nil { // interrupted
		return err
	}
	if err != nil {
		return &usageError{err}
	}
	for _, v := range all {
		f := settingFlag(cmd, v.Setting)
		if f == nil || f.Changed {
			continue
		}
		for _, text := range v.Texts {
			if err := cmd.Flags().Set(f.Name, text); err != nil {
				return usagef("%s: %s: %w", v.From, v.Name, err)
			}
		}
		if err := cmd.Flags().SetAnnotation(f.Name, fromKey, []string{v.From}); err != nil {
			return err
		}
	}
	return resetUnused(cmd)
}

// resetUnused resets flags from the configuration that contradict others or have no effect with
// them. The configuration may contain settings for other commands.
func resetUnused(cmd *cobra.Command) error {
	var errs []error
	for _, name := range settings.Overruled(func(name string) (string, int) { return precedence(cmd.Flags().Lookup(name)) }) {
		errs = append(errs, resetFlag(cmd.Flags().Lookup(name)))
	}
	for repeat := true; repeat; {
		repeat = false
		forIdle(cmd, func(_ *need, f *pflag.Flag) {
			if origin(f) != "" && f.Changed {
				repeat = true // another flag may have required it
				errs = append(errs, resetFlag(f))
			}
		})
	}
	return errors.Join(errs...)
}

// precedence returns the text of a flag and its precedence. The precedence is 0 if the flag is not
// given.
func precedence(f *pflag.Flag) (string, int) {
	switch {
	case f == nil || !f.Changed:
		return "", 0
	case origin(f) == "":
		return f.Value.String(), 3
	case origin(f) == settings.ByName(f.Name).Env():
		return f.Value.String(), 2
	}
	return f.Value.String(), 1
}

// resetFlag resets a flag that was set from the configuration to its default.
func resetFlag(f *pflag.Flag) error {
	from := origin(f)
	f.Changed = false
	f.Annotations[fromKey], f.Annotations[idleKey] = nil, []string{from}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(nil)
	}
	return f.Value.Set(f.DefValue)
}

// readSettings returns the values of the file and the environment. The environment takes
// precedence. The error lists all errors.
func readSettings(cmd *cobra.Command) ([]settings.Value, error) {
	name, err := configFile(cmd)
	if err != nil {
		return nil, err
	}
	all, envErr := settings.FromEnv()
	if name == "" {
		return all, envErr
	}
	file, err := settings.ReadFile(cmd.Context(), name)
	for _, v := range file {
		if !slices.ContainsFunc(all, func(given settings.Value) bool { return given.Setting == v.Setting }) {
			all = append(all, v)
		}
	}
	return all, errors.Join(err, envErr)
}

// warnOfEnv logs a warning for each environment variable whose name is similar to that of a
// setting. It ignores others, because Kubernetes may set variables such as KVLANE_SERVICE_HOST.
func warnOfEnv() {
	const prefix = "KVLANE_"
	names := []string{strings.TrimPrefix(configEnv, prefix)}
	for i := range settings.Table {
		names = append(names, strings.TrimPrefix(settings.Table[i].Env(), prefix))
	}
	for _, v := range os.Environ() {
		variable, _, _ := strings.Cut(v, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		if !ours || slices.Contains(names, name) {
			continue
		}
		if near := settings.Nearest(name, names); near != "" {
			slog.Warn("unknown variable in the environment", "name", variable, "nearest", prefix+near)
		}
	}
}

// flagWords returns the valid values of a flag, or nil if they cannot be listed.
func flagWords(path string, f *pflag.Flag) []string {
	if f.Value.Type() == "bool" {
		return nil
	}
	offer := offerOf(path, f.Name)
	if offer == nil {
		return nil
	}
	words, _ := offer(nil, nil, "")
	return words
}

// usageHints returns hints for a usage error: the origin of flags that the configuration has set,
// and suggestions for misspelled words.
func usageHints(cmd *cobra.Command, err error) (hints []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed {
			return
		}
		if from := origin(f); from != "" && namesFlag(err.Error(), f.Name) {
			hints = append(hints, fmt.Sprintf("--%s is from %s.", f.Name, from))
		}
		words := flagWords(commandPath(cmd), f)
		for _, v := range flagValues(f) {
			if !strings.Contains(err.Error(), strconv.Quote(v)) || slices.Contains(words, v) {
				continue
			}
			if near := settings.Nearest(v, words); near != "" {
				hints = append(hints, fmt.Sprintf("Did you mean --%s %s?", f.Name, near))
			}
		}
	})
	if !strings.Contains(err.Error(), "--") { // the error may be about any flag
		var given []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if from := origin(f); from != "" {
				given = append(given, fmt.Sprintf("--%s (%s)", f.Name, from))
			}
		})
		if len(given) > 0 {
			hints = append(hints, "The configuration gives "+strings.Join(given, ", ")+".")
		}
	}
	return hints
}

// namesFlag reports whether text contains --flag as a whole word.
func namesFlag(text, flag string) bool {
	for _, after := range strings.Split(text, "--"+flag)[1:] {
		if next, _ := utf8.DecodeRuneInString(after); next != '-' && !unicode.IsLetter(next) {
			return true
		}
	}
	return false
}

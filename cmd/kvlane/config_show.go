package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/settings"
)

func newConfigCommand() *cobra.Command {
	cmd := newGroupCommand("config", "Show the configuration and the origin of each value; check a configuration file",
		`Settings that several commands share may be given by a flag, by the environment, or by a configuration file in YAML; the first of
these that has a setting decides. A key of the file is the flag's name, and a variable is KVLANE_ with that name in capitals: --cache-bytes,
KVLANE_CACHE_BYTES, cache-bytes. A command ignores settings for which it has no flag.

The file is that of --config or KVLANE_CONFIG, or the first that exists of $XDG_CONFIG_HOME/kvlane/config.yaml and
/etc/kvlane/config.yaml.`)
	cmd.AddCommand(newConfigShowCommand(), newConfigCheckCommand())
	return cmd
}

// shownSetting is a setting with its value and the source of the value.
type shownSetting struct {
	Name   string   `json:"name"`
	Env    string   `json:"env"`
	Values []string `json:"values"`
	// Source is "flag", the environment variable, "FILE:LINE" or "default". A source that is
	// ignored follows after a semicolon.
	Source string `json:"source"`
}

// shownConfig is the output of "kvlane config show".
type shownConfig struct {
	File     string         `json:"file,omitempty"`
	Command  string         `json:"command,omitempty"`
	Settings []shownSetting `json:"settings"`
}

func newConfigShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [COMMAND...] [-- FLAGS]",
		Short: "Print every setting with its value and the origin of the value",
		Long: `show prints every setting with its value and the origin of the value: a flag, a variable of the environment, a line of the file, or the
default. With a command it prints the settings that this command has, and behind -- its flags may be tried.`,
		Example: `  kvlane config show
  kvlane config show bench copy
  kvlane config show replay -- --device sim --cache-bytes 2GiB`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var c *shownConfig
			var err error
			if len(args) == 0 {
				c, err = showAll(cmd)
			} else {
				c, err = showCommand(cmd, args)
			}
			if err != nil {
				return err
			}
			c.maskPasswords()
			if asJSON {
				return writeJSON(cmd, c)
			}
			return c.print(cmd)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// showAll returns every setting.
func showAll(cmd *cobra.Command) (*shownConfig, error) {
	c, all, err := readShown(cmd)
	if err != nil {
		return nil, err
	}
	for i := range settings.Table {
		s := &settings.Table[i]
		if s.Name == "" {
			continue
		}
		shown := shownSetting{Name: s.Name, Env: s.Env(), Values: []string{}, Source: "default"}
		if v := s.Initial(); v != "" {
			shown.Values = append(shown.Values, v)
		}
		if at := slices.IndexFunc(all, func(v settings.Value) bool { return v.Setting == s }); at >= 0 {
			shown.Values, shown.Source = all[at].Texts, all[at].From
		}
		if f := cmd.Root().PersistentFlags().Lookup(s.Name); f != nil && f.Changed {
			shown.Values, shown.Source = flagValues(f), "flag"
		}
		c.Settings = append(c.Settings, shown)
	}
	return c, nil
}

func readShown(cmd *cobra.Command) (*shownConfig, []settings.Value, error) {
	all, err := readSettings(cmd)
	if err != nil {
		return nil, nil, &usageError{err}
	}
	name, err := configFile(cmd)
	return &shownConfig{File: name}, all, err
}

// showCommand returns the settings of the command that args name, with the flags in args.
func showCommand(cmd *cobra.Command, args []string) (*shownConfig, error) {
	c, _, err := readShown(cmd)
	if err != nil {
		return nil, err
	}
	target, rest, err := cmd.Root().Find(args)
	if err != nil {
		return nil, &usageError{err}
	}
	if within(target, unconfigured) {
		return nil, usagef("%q takes no settings", target.CommandPath())
	}
	if target.HasSubCommands() {
		if len(rest) > 0 {
			return nil, unknownCommand(target, rest[0], unconfigured)
		}
		return nil, usagef("%q has several commands: give one of them", target.CommandPath())
	}
	if err := target.ParseFlags(rest); err != nil {
		return nil, flagError(target, err)
	}
	target.SetContext(cmd.Context())
	if err := configure(target); err != nil {
		return nil, err
	}
	c.Command = target.CommandPath()
	for i := range settings.Table {
		s := &settings.Table[i]
		f := settingFlag(target, s)
		if f == nil {
			continue
		}
		shown := shownSetting{Name: s.Name, Env: s.Env(), Values: flagValues(f), Source: "default"}
		if f.Changed {
			if shown.Source = origin(f); shown.Source == "" {
				shown.Source = "flag"
			}
		}
		if idle := f.Annotations[idleKey]; len(idle) > 0 {
			shown.Source += "; " + idle[0] + " has no effect here"
		}
		c.Settings = append(c.Settings, shown)
	}
	return c, nil
}

// maskPasswords replaces the passwords of URLs.
func (c *shownConfig) maskPasswords() {
	for _, s := range c.Settings {
		for i, v := range s.Values {
			if u, err := url.Parse(v); err == nil && u.User != nil {
				s.Values[i] = u.Redacted()
			}
		}
	}
}

// print prints the settings as text.
func (c *shownConfig) print(cmd *cobra.Command) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	if c.File == "" {
		fmt.Fprintf(w, "No configuration file; looked for %s.\n\n", strings.Join(usualConfigs(), ", "))
	} else {
		fmt.Fprintf(w, "Configuration file: %s\n\n", c.File)
	}
	fmt.Fprintln(w, "SETTING\tVALUE\tSOURCE")
	for _, s := range c.Settings {
		value := strings.Join(s.Values, ", ")
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, value, s.Source)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the configuration: %w", err)
	}
	return nil
}

func newConfigCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file, or the one that commands use; exit code 2 if it has errors",
		Long: `check reads a configuration file and reports every error in it, with file, line and key. Without FILE it checks the file
that commands use. A command that runs may check more than the names and kinds of values.`,
		Example: `  kvlane config check /etc/kvlane/config.yaml`,
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := configFile(cmd)
			if len(args) > 0 {
				name, err = args[0], nil
			}
			if err != nil {
				return &usageError{err}
			}
			if name == "" {
				return usagef("no configuration file found, neither %s: give FILE", strings.Join(usualConfigs(), " nor "))
			}
			all, err := settings.ReadFile(cmd.Context(), name)
			if err != nil {
				return &usageError{err}
			}
			if asJSON {
				return writeJSON(cmd, struct {
					File     string `json:"file"`
					Settings int    `json:"settings"`
				}{name, len(all)})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, no errors\n", name, counted(len(all), "setting", "settings"))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; errors are text")
	return cmd
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/store"
)

// setting is a flag that a configuration file or the environment may give as well, since several commands share it: it says what the
// machine has and how it is used, not what one run of a command is to do. Its key in the file is the flag's name.
type setting struct {
	name string
	// but are the commands that take it from the command line alone, as there it says what is measured.
	but []string
	// takes checks a value where the words that are completed are not all there is; nil: those are, if there are any.
	takes func(value string) error
}

func anything(string) error { return nil }

func anySize(v string) error { return sizeValue{new(int64)}.Set(v) }

func anyAddress(v string) error {
	_, _, err := net.SplitHostPort(v)
	return err
}

// anyMTU takes, beside the words that are completed, the port's own.
func anyMTU(v string) error {
	if words := append([]string{"0"}, mtus...); !slices.Contains(words, v) {
		return fmt.Errorf("%q is none of %s", v, strings.Join(words, ", "))
	}
	return nil
}

var mtus = []string{"256", "512", "1024", "2048", "4096"}

// settings are in the order of "kvlane config show".
var settings = []setting{
	{name: "device", but: []string{"bench file"}},
	{name: "device-index", but: []string{"bench file"}},
	{name: "path"},
	{name: "policy"},
	{name: "calibrate"},
	{name: "profile-dir"},
	{name: "verify"},
	{name: "gdr"},
	{name: "rdma-provider"},
	{name: "nic", takes: anything},
	{name: "rdma-port"},
	{name: "rdma-gid-index"},
	{name: "rdma-mtu", takes: anyMTU},
	{name: "rdma-queue-pairs"},
	{name: "pipeline", but: []string{"bench store"}, takes: func(v string) error { _, err := store.ParsePipeline(v); return err }},
	{name: "cache-bytes", but: []string{"bench store"}},
	{name: "file-dir", but: []string{"bench store", "calibrate"}},
	{name: "file-bytes"},
	{name: "file-dir-bytes", takes: anySize},
	{name: "fsync"},
	{name: "log-dir"},
	{name: "log-bytes"},
	{name: "log-fsync"},
	{name: "stream-files"},
	{name: "protocol"},
	{name: "metadata", takes: anything},
	{name: "cluster"},
	{name: "buffer-size"},
	{name: "metrics-addr", but: briefCommands, takes: anyAddress},
	{name: "pprof-addr", but: briefCommands, takes: anyAddress},
	{name: "log-level", takes: func(v string) error { _, err := parseLevel(v); return err }},
	{name: "log-format"},
}

// briefCommands are over before anybody could watch them, and would only be in the way of one that is watched at the same address.
var briefCommands = []string{"doctor", "topo", "store", "transfer ls", "transfer probe", "transfer put", "transfer get"}

// unconfigured are commands, with those below them, for which there is no configuration: they have to work where it is wrong.
var unconfigured = []string{"version", "completion", "config", "help", shareProbeCommand, cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// env is the environment variable of the setting.
func (s *setting) env() string {
	return "KVLANE_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// of returns the flag of a command that the setting is about there, or nil.
func (s *setting) of(cmd *cobra.Command) *pflag.Flag {
	if within(cmd, unconfigured) || within(cmd, s.but) {
		return nil
	}
	if f := cmd.LocalFlags().Lookup(s.name); f != nil {
		return f
	}
	return cmd.Root().PersistentFlags().Lookup(s.name)
}

// within reports whether a command is one of those, or below one.
func within(cmd *cobra.Command, paths []string) bool {
	path := commandPath(cmd) + " "
	return slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(path, p+" ") })
}

// commandPath is the command's path without the program's name.
func commandPath(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
}

// supplied is a setting with its values and where they are from.
type supplied struct {
	*setting
	values []string
	from   string // "FILE:LINE", or the environment variable
}

// fromKey is the annotation of a flag that says where its value is from, if not from the command line.
const fromKey = "kvlane_from"

// idleKey is the annotation of a flag that says where the value is from that would have no effect.
const idleKey = "kvlane_idle"

// origin returns where a flag's value is from if a file or the environment gave it, else "".
func origin(f *pflag.Flag) string {
	if from := f.Annotations[fromKey]; len(from) > 0 {
		return from[0]
	}
	return ""
}

// configure gives the flags of a command that the command line does not set the values of the environment, or else those of the
// configuration file.
func configure(cmd *cobra.Command) error {
	if within(cmd, unconfigured) || cmd.HasSubCommands() { // which prints its help
		return nil
	}
	all, err := readSettings(cmd)
	if err != nil && cmd.Context().Err() != nil { // interrupted
		return err
	}
	if err != nil {
		return &usageError{err}
	}
	for _, g := range all {
		f := g.of(cmd)
		if f == nil || f.Changed {
			continue
		}
		for _, v := range g.values {
			if err := cmd.Flags().Set(f.Name, v); err != nil {
				return usagef("%s: %s: %w", g.from, g.name, err)
			}
		}
		if err := cmd.Flags().SetAnnotation(f.Name, fromKey, []string{g.from}); err != nil {
			return err
		}
	}
	if err := withdrawIdle(cmd); err != nil {
		return err
	}
	return checkWords(cmd, all)
}

// checkWords says why a command does not take what is given to it, as far as its flags' words tell.
func checkWords(cmd *cobra.Command, all []supplied) error {
	var errs []error
	for _, g := range all {
		f := g.of(cmd)
		if f == nil || origin(f) != g.from || g.takes != nil {
			continue
		}
		words := flagWords(commandPath(cmd), f)
		for _, v := range g.values {
			if len(words) > 0 && !slices.Contains(words, v) {
				errs = append(errs, fmt.Errorf("%s: %s: %q is not what %q takes, which is %s; give --%s on the command line",
					g.from, g.name, v, cmd.CommandPath(), strings.Join(words, ", "), g.name))
			}
		}
	}
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return nil
}

// withdrawIdle withdraws the flags of a configuration that have no effect beside the others: the configuration is for other commands,
// and other command lines, too.
func withdrawIdle(cmd *cobra.Command) error {
	errs := []error{withdrawOverruled(cmd)}
	for again := true; again; {
		again = false
		forIdle(cmd, func(_ *need, f *pflag.Flag) {
			if origin(f) != "" && f.Changed {
				again = true // another may need it
				errs = append(errs, withdraw(f))
			}
		})
	}
	return errors.Join(errs...)
}

// withdraw gives a flag of the configuration its default again, as if it had not been given.
func withdraw(f *pflag.Flag) error {
	from := origin(f)
	f.Changed = false
	f.Annotations[fromKey], f.Annotations[idleKey] = nil, []string{from}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(nil)
	}
	return f.Value.Set(f.DefValue)
}

// readSettings returns what the file and the environment say, each setting once, or everything that is wrong there.
func readSettings(cmd *cobra.Command) ([]supplied, error) {
	name, err := configFile(cmd)
	if err != nil {
		return nil, err
	}
	var all []supplied
	var errs []error
	known := sync.OnceValue(newCatalog) // most command lines need none
	if name != "" {
		all, err = readConfig(cmd.Context(), name, known)
		errs = append(errs, err)
	}
	for i := range settings {
		s := &settings[i]
		text := os.Getenv(s.env())
		if text == "" {
			continue
		}
		g := supplied{s, []string{text}, s.env()}
		if known().list(s) {
			g.values = strings.Split(text, ",")
		}
		if err := known().check(&g); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(slices.DeleteFunc(all, func(g supplied) bool { return g.setting == s }), g)
	}
	return all, errors.Join(errs...)
}

// warnOfEnv logs each variable of the environment whose name is close to that of a setting. Others
// are left alone: Kubernetes sets KVLANE_SERVICE_HOST beside a service of that name.
func warnOfEnv() {
	const prefix = "KVLANE_"
	names := []string{strings.TrimPrefix(configEnv, prefix)}
	for i := range settings {
		names = append(names, strings.TrimPrefix(settings[i].env(), prefix))
	}
	for _, v := range os.Environ() {
		variable, _, _ := strings.Cut(v, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		if !ours || slices.Contains(names, name) {
			continue
		}
		if near := nearestWord(name, names); near != "" {
			slog.Warn("unknown variable in the environment", "name", variable, "nearest", prefix+near)
		}
	}
}

// catalog has the flags of a command line that nobody runs: values are tried on them.
type catalog struct {
	settings map[string][]commandFlag // of every command that a setting is about, by its name
	names    []string                 // of all flags
}

type commandFlag struct {
	path string
	*pflag.Flag
}

func newCatalog() *catalog {
	c := &catalog{settings: map[string][]commandFlag{}}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { c.names = append(c.names, f.Name) })
		for i := range settings {
			s := &settings[i]
			if f := s.of(cmd); f != nil && !cmd.HasSubCommands() {
				c.settings[s.name] = append(c.settings[s.name], commandFlag{commandPath(cmd), f})
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	return c
}

// list reports whether the setting takes several values.
func (c *catalog) list(s *setting) bool {
	return slices.ContainsFunc(c.settings[s.name], func(f commandFlag) bool {
		_, several := f.Value.(pflag.SliceValue)
		return several
	})
}

// check says why no command takes what is given.
func (c *catalog) check(g *supplied) error {
	var words []string
	for _, f := range c.settings[g.name] {
		words = append(words, flagWords(f.path, f.Flag)...)
	}
	slices.Sort(words)
	words = slices.Compact(words)
	for _, v := range g.values {
		err := c.trySet(g.name, v)
		switch {
		case err != nil:
		case g.takes != nil:
			err = g.takes(v)
		case len(words) > 0 && !slices.Contains(words, v):
			err = fmt.Errorf("%q is none of %s%s", v, strings.Join(words, ", "), didYouMean(v, words))
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", g.from, g.name, err)
		}
	}
	return nil
}

// trySet returns why no command's flag takes the value.
func (c *catalog) trySet(name, value string) (err error) {
	for _, f := range c.settings[name] {
		if err = f.Value.Set(value); err == nil {
			return nil
		}
	}
	if len(c.settings[name]) == 0 {
		return errors.New("this build has no command that takes it")
	}
	switch c.settings[name][0].Value.Type() {
	case "bool":
		return fmt.Errorf("%q is neither true nor false", value)
	case "int":
		return fmt.Errorf("%q is not a whole number", value)
	}
	return err
}

// flagWords returns the words that a flag takes of a command, or nil where they cannot be listed.
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

// didYouMean is the end of an error about a word that is like one of words, or "".
func didYouMean(word string, words []string) string {
	if best := nearestWord(word, words); best != "" {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	return ""
}

// nearestWord returns that of words which word was most likely meant to be, or "".
func nearestWord(word string, words []string) string {
	best, least := "", max(2, len(word)/3)+1
	for _, w := range words {
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is how many letters have to be added, left out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// usageHints says of the flags that a wrong command line's error is about where their values are from, where not from the command line,
// and what a misspelt word may have meant.
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
			if near := nearestWord(v, words); near != "" {
				hints = append(hints, fmt.Sprintf("Did you mean --%s %s?", f.Name, near))
			}
		}
	})
	if !strings.Contains(err.Error(), "--") { // it names no flag, and may be about any
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

// namesFlag reports whether a text has --flag, and not only as the beginning of another's name.
func namesFlag(text, flag string) bool {
	for _, after := range strings.Split(text, "--"+flag)[1:] {
		if next, _ := utf8.DecodeRuneInString(after); next != '-' && !unicode.IsLetter(next) {
			return true
		}
	}
	return false
}

// flagValues returns what a flag has: one value, several where it takes them, or none where it is empty.
func flagValues(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	if f.Value.String() == "" {
		return []string{}
	}
	return []string{f.Value.String()}
}

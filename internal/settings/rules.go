package settings

import (
	"slices"
	"strings"
)

// Rule is a condition that must hold for settings to have an effect.
type Rule struct {
	Names    []string
	Commands []string // commands that have flags for all names; libraries apply every rule
	Met      Condition
	// Lacks is a text that names flags to add so that the condition holds. Clashes names a flag to
	// remove.
	Lacks, Clashes string
}

// RDMANames are the settings that select NICs. The last one is for copies only.
var RDMANames = []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu", "rdma-queue-pairs"}

// Rules are checked before a command runs, and when a library reads a file.
var Rules = append(tierRules(), []Rule{
	{Names: []string{"policy"}, Commands: []string{"replay", "bench store"}, Met: Either(IsNot("policy", "throughput", "latency"), Is("path", "auto")), Clashes: "a forced --path"},
	{Names: []string{"policy"}, Commands: []string{"replay", "bench store"}, Met: Either(IsNot("policy", "throughput", "latency"), IsNot("device", "host")), Clashes: "--device host, which has one path"},
	{Names: []string{"calibrate"}, Commands: replay, Met: IsNot("device", "host"), Clashes: "--device host, which has one path"},
	{Names: []string{"calibrate"}, Commands: replay, Met: Either(IsNot("device", "sim"), Is("gdr", "auto")), Clashes: "--device sim, which needs no measurement"},
	{Names: []string{"gdr"}, Commands: replay, Met: Either(IsNot("gdr", "auto"), Is("path", "auto")), Clashes: "a forced --path"},
	{Names: RDMANames, Commands: []string{"demo", "calibrate"}, Met: IsNot("gdr", "off"), Lacks: "--gdr auto or --gdr require"},
	{Names: RDMANames[:len(RDMANames)-1], Commands: replay, Met: Either(IsNot("gdr", "off"), Is("remote-rdma", "true")), Lacks: "--gdr auto, --gdr require or --remote-rdma"},
	{Names: RDMANames[len(RDMANames)-1:], Commands: replay, Met: IsNot("gdr", "off"), Lacks: "--gdr auto or --gdr require"},
	{Names: []string{"gdr"}, Commands: []string{"replay", "demo", "calibrate"}, Met: Either(IsNot("gdr", "auto"), IsNot("rdma-provider", "soft")), Clashes: "--rdma-provider soft, which only --gdr require takes"},
}...)

// tierRules returns the rules for settings that require a certain tier.
func tierRules() (rules []Rule) {
	var written, dirs []string
	var given []Condition
	for _, t := range DurableTiers() {
		place := t.Place()
		met, names, dir := Given(place.Name), t.Names()[1:], "--"+place.Name+" DIR"
		if !place.IsDir() {
			rules = append(rules, Rule{Names: names, Commands: replay, Met: met, Lacks: "--" + place.Name})
			continue
		}
		rules = append(rules, Rule{Names: names, Commands: replay, Met: met, Lacks: dir})
		written, dirs, given = append(written, names...), append(dirs, dir), append(given, met)
	}
	return append(rules,
		Rule{Names: []string{"file-read-only", "direct"}, Commands: replay, Met: Either(given...), Lacks: strings.Join(dirs, " or ")},
		Rule{Names: written, Commands: replay, Met: IsNot("file-read-only", "true"), Clashes: "--file-read-only, which writes no files"})
}

var replay = []string{"replay"}

// Condition reports whether a condition holds. value returns the text of a setting or flag, several
// values separated by commas, or "".
type Condition = func(value func(name string) string) bool

// Given holds if name has a value.
func Given(name string) Condition {
	return func(value func(string) string) bool { return value(name) != "" }
}

// Is holds if a value of name is one of words. If name has no value, its initial value is used.
func Is(name string, words ...string) Condition {
	return func(value func(string) string) bool {
		v := value(name)
		if s := ByName(name); v == "" && s != nil {
			v = s.Initial()
		}
		return slices.ContainsFunc(strings.Split(v, ","), func(one string) bool { return slices.Contains(words, one) })
	}
}

// Not holds if c does not hold.
func Not(c Condition) Condition {
	return func(value func(string) string) bool { return !c(value) }
}

// IsNot holds if Is does not. It also holds for invalid values, which are reported elsewhere.
func IsNot(name string, words ...string) Condition { return Not(Is(name, words...)) }

// Either holds if at least one of the conditions holds.
func Either(conditions ...Condition) Condition {
	return func(value func(string) string) bool {
		return slices.ContainsFunc(conditions, func(c Condition) bool { return c(value) })
	}
}

// Overruled returns the names of settings that contradict a setting of higher precedence. It
// compares the pipeline with the directories of tiers: a pipeline excludes directories of tiers
// that it does not contain. An invalid pipeline contradicts nothing; it is reported elsewhere.
// state returns a setting's text and precedence, or precedence 0 if it is not given.
func Overruled(state func(name string) (text string, precedence int)) (names []string) {
	pipeline, precedence := state("pipeline")
	tiers, err := ParsePipeline(pipeline)
	if precedence == 0 || err != nil {
		return nil
	}
	for _, t := range DurableTiers() {
		_, given := state(t.Place().Name)
		switch {
		case given == 0 || slices.Contains(tiers, t.Name):
		case given > precedence:
			return []string{"pipeline"}
		case given < precedence:
			names = append(names, t.Place().Name)
		}
	}
	return names
}

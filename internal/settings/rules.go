package settings

import (
	"slices"
	"strings"

	"github.com/kvlane/kvlane/store"
)

// Rule is a condition on which settings have an effect.
type Rule struct {
	Names    []string
	Commands []string // with flags for all of them; libraries observe every rule
	Met      Condition
	// Lacks names flags to add so that the condition holds, Clashes a flag to remove.
	Lacks, Clashes string
}

// RDMANames are the settings that select NICs.
var RDMANames = []string{"rdma-provider", "nic", "rdma-port", "rdma-gid-index", "rdma-mtu", "rdma-queue-pairs"}

// Rules are checked before a command runs, and when a library reads a file.
var Rules = []Rule{
	{Names: []string{"file-bytes", "file-dir-bytes", "fsync"}, Commands: replay, Met: Given("file-dir"), Lacks: "--file-dir DIR"},
	{Names: []string{"file-read-only", "stream-files"}, Commands: replay, Met: Either(Given("file-dir"), Given("log-dir")), Lacks: "--file-dir DIR or --log-dir DIR"},
	{Names: []string{"direct"}, Commands: replay, Met: Either(Given("file-dir"), Given("log-dir")), Lacks: "--file-dir DIR or --log-dir DIR"},
	{Names: []string{"log-bytes", "log-fsync"}, Commands: replay, Met: Given("log-dir"), Lacks: "--log-dir DIR"},
	{Names: []string{"log-bytes", "log-fsync", "file-bytes", "file-dir-bytes", "fsync"}, Commands: replay, Met: IsNot("file-read-only", "true"), Clashes: "--file-read-only, which writes no files"},
	{Names: []string{"policy"}, Commands: []string{"replay", "bench store"}, Met: Either(IsNot("policy", "throughput", "latency"), Is("path", "auto")), Clashes: "a forced --path"},
	{Names: []string{"policy"}, Commands: []string{"replay", "bench store"}, Met: Either(IsNot("policy", "throughput", "latency"), IsNot("device", "host")), Clashes: "--device host, which has one path"},
	{Names: []string{"calibrate"}, Commands: replay, Met: IsNot("device", "host"), Clashes: "--device host, which has one path"},
	{Names: []string{"calibrate"}, Commands: replay, Met: Either(IsNot("device", "sim"), Is("gdr", "auto")), Clashes: "--device sim, which needs no measurement"},
	{Names: []string{"gdr"}, Commands: replay, Met: Either(IsNot("gdr", "auto"), Is("path", "auto")), Clashes: "a forced --path"},
	{Names: RDMANames, Commands: []string{"replay", "demo", "calibrate"}, Met: IsNot("gdr", "off"), Lacks: "--gdr auto or --gdr require"},
	{Names: []string{"gdr"}, Commands: []string{"replay", "demo", "calibrate"}, Met: Either(IsNot("gdr", "auto"), IsNot("rdma-provider", "soft")), Clashes: "--rdma-provider soft, which only --gdr require takes"},
}

var replay = []string{"replay"}

// Condition reports whether a condition holds. value returns the text of a setting or another flag,
// with commas between several values, or "".
type Condition = func(value func(name string) string) bool

// Given holds if name has a value.
func Given(name string) Condition {
	return func(value func(string) string) bool { return value(name) != "" }
}

// Is holds if name has one of the words, given or initially. One of several values is enough.
func Is(name string, words ...string) Condition {
	return func(value func(string) string) bool {
		v := value(name)
		if s := ByName(name); v == "" && s != nil {
			v = s.Initial()
		}
		return slices.ContainsFunc(strings.Split(v, ","), func(one string) bool { return slices.Contains(words, one) })
	}
}

// Not holds if c does not.
func Not(c Condition) Condition {
	return func(value func(string) string) bool { return !c(value) }
}

// IsNot is Not of Is. It holds for an invalid value, which is refused elsewhere.
func IsNot(name string, words ...string) Condition { return Not(Is(name, words...)) }

// Either holds if one of the conditions does.
func Either(conditions ...Condition) Condition {
	return func(value func(string) string) bool {
		return slices.ContainsFunc(conditions, func(c Condition) bool { return c(value) })
	}
}

// tierNames are the settings that select tiers. They can contradict each other.
var tierNames = []string{"file-dir", "log-dir", "pipeline"}

// Overruled returns the tier settings that contradict one of higher precedence. state returns a
// setting's text and precedence; 0: it is not given.
func Overruled(state func(name string) (text string, precedence int)) []string {
	var is func(name string) bool
	is = func(name string) bool {
		_, mine := state(name)
		return mine > 0 && slices.ContainsFunc(tierNames, func(other string) bool {
			_, precedence := state(other)
			return precedence > mine && contradict(state, name, other) && !is(other)
		})
	}
	var names []string
	for _, name := range tierNames {
		if is(name) {
			names = append(names, name)
		}
	}
	return names
}

// contradict reports whether two tier settings cannot both have an effect. Files and a log exclude
// each other below one cache. A pipeline excludes directories of tiers that it lacks. An invalid
// pipeline contradicts nothing, so that the command reports it.
func contradict(state func(string) (string, int), a, b string) bool {
	if b == "pipeline" {
		a, b = b, a
	}
	if a != "pipeline" {
		return a != b
	}
	text, _ := state(a)
	tiers, err := store.ParsePipeline(text)
	return a != b && err == nil && !slices.Contains(tiers, strings.TrimSuffix(b, "-dir"))
}

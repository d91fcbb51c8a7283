package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// RequireEnv names the environment variable that lists, separated by commas, the features without which a test must
// fail rather than be skipped.
const RequireEnv = "KVLANE_REQUIRE"

// Skip skips the test because feature (a word such as "cuda") is missing, for the reason given; where RequireEnv lists
// the feature it fails the test instead. It does not return.
func Skip(tb testing.TB, feature, reason string) {
	tb.Helper()
	if Required(feature) {
		tb.Fatalf("feature %s is required by %s, but: %s", feature, RequireEnv, reason)
	}
	tb.Skipf("feature %s is missing: %s", feature, reason)
}

// SkipRace skips the test under the race detector: it takes long there, and for the reason given it
// would find no race that another test does not find.
func SkipRace(tb testing.TB, reason string) {
	tb.Helper()
	if Race {
		Skip(tb, "race", reason+"; not under the race detector")
	}
}

// Required says whether RequireEnv lists the feature: what is quick without it is to be thorough then.
func Required(feature string) bool { return required(os.Getenv(RequireEnv), feature) }

func required(list, feature string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == feature })
}

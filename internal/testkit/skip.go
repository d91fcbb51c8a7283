package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// RequireEnv is the name of the environment variable with a comma-separated list of features. If a
// listed feature is missing, tests that need it fail instead of being skipped.
const RequireEnv = "KVLANE_REQUIRE"

// Skip skips the test because feature, a word such as "cuda", is missing. reason is part of the
// message. If RequireEnv lists the feature, the test fails instead. Skip does not return.
func Skip(tb testing.TB, feature, reason string) {
	tb.Helper()
	if Required(feature) {
		tb.Fatalf("feature %s is required by %s, but: %s", feature, RequireEnv, reason)
	}
	tb.Skipf("feature %s is missing: %s", feature, reason)
}

// SkipRace skips the test if the race detector is enabled, because the test takes too long then.
// reason explains why other tests find the same races.
func SkipRace(tb testing.TB, reason string) {
	tb.Helper()
	if Race {
		Skip(tb, "race", reason+"; not under the race detector")
	}
}

// Required reports whether RequireEnv lists the feature. Tests that are otherwise shortened then
// run completely.
func Required(feature string) bool { return required(os.Getenv(RequireEnv), feature) }

func required(list, feature string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == feature })
}

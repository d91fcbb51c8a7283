package testkit

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// RequireEnv names the environment variable with a comma-separated list of features. If one of them
// is missing, a test fails instead of being skipped.
const RequireEnv = "KVLANE_REQUIRE"

// Skip skips the test because feature (a word such as "cuda") is missing, for the given reason. If
// RequireEnv lists the feature, it fails the test instead. It does not return.
func Skip(tb testing.TB, feature, reason string) {
	tb.Helper()
	if Required(feature) {
		tb.Fatalf("feature %s is required by %s, but: %s", feature, RequireEnv, reason)
	}
	tb.Skipf("feature %s is missing: %s", feature, reason)
}

// SkipRace skips the test under the race detector, because it takes long there and, for the given
// reason, other tests find the same races.
func SkipRace(tb testing.TB, reason string) {
	tb.Helper()
	if Race {
		Skip(tb, "race", reason+"; not under the race detector")
	}
}

// Required reports whether RequireEnv lists the feature. Shortened tests then run in full.
func Required(feature string) bool { return required(os.Getenv(RequireEnv), feature) }

func required(list, feature string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == feature })
}

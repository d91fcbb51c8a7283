package main

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// built is the time of the build (RFC 3339, UTC), or "". The linker sets it with -X main.built=...,
// as `make build` does.
var built string

// release describes a build. Fields that the build did not record are empty.
type release struct {
	Version    string `json:"version"`               // version of the module, or "(devel)"
	Commit     string `json:"commit,omitempty"`      // 12 digits if from a pseudo-version
	Modified   bool   `json:"modified"`              // the working tree had changes
	CommitDate string `json:"commit_date,omitempty"` // RFC 3339, UTC
	BuildDate  string `json:"build_date,omitempty"`  // RFC 3339, UTC
	Go         string `json:"go"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
}

// pseudo matches the time and the commit in a pseudo-version of a module
// (https://go.dev/ref/mod#pseudo-versions).
var pseudo = regexp.MustCompile(`[-.](\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)-([0-9a-f]{12})(\+|$)`)

// releaseOf returns the release recorded in the build. A build of a working tree records its
// commit. `go install` records only the module's version, but a pseudo-version contains the commit.
func releaseOf(info *debug.BuildInfo, ok bool) release {
	r := release{Version: "(devel)", BuildDate: built, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if !ok {
		return r
	}
	r.Version, r.Go = cmp.Or(info.Main.Version, r.Version), info.GoVersion
	if m := pseudo.FindStringSubmatch(r.Version); m != nil {
		r.Commit = m[7]
		r.CommitDate = fmt.Sprintf("%s-%s-%sT%s:%s:%sZ", m[1], m[2], m[3], m[4], m[5], m[6])
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Commit = s.Value
		case "vcs.time":
			r.CommitDate = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	return r
}

// tag returns the version of a release, or "(devel)" for other builds.
func (r *release) tag() string {
	if r.Modified || pseudo.MatchString(r.Version) || strings.HasSuffix(r.Version, "+dirty") {
		return "(devel)"
	}
	return r.Version
}

// String returns the output of `kvlane version`.
func (r *release) String() string {
	commit := cmp.Or(r.Commit, "not recorded")
	if r.Modified {
		commit += ", with changes"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kvlane %s\n", r.Version)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"commit", commit},
		{"commit date", cmp.Or(r.CommitDate, "not recorded")},
		{"build date", cmp.Or(r.BuildDate, "not recorded")},
		{"Go", r.Go},
		{"platform", r.OS + "/" + r.Arch},
	} {
		fmt.Fprintf(t, "%s:\t%s\n", row[0], row[1])
	}
	t.Flush() //nolint:errcheck // writing to a strings.Builder cannot fail
	return b.String()
}

func newVersionCommand(r *release) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and build date",
		Long: `version prints the module's version, the commit and its date, the build date if it was recorded (make build and make dist do that), the
version of Go, and the platform. kvlane --version prints the same.`,
		Example: `  kvlane version
  kvlane version --json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd, r)
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), r); err != nil {
				return fmt.Errorf("print the version: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

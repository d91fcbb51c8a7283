// Package settings describes the settings of kvlane in one table, and reads them from JSON, from a
// YAML file and from texts such as values of flags.
//
// Fields of a configuration with a tag `config:"key"` can be set. Table lists the same keys with
// their documentation, and the names by which the command line and the file give them.
package settings

//go:generate go test . -run TestPageIsTheTable -update

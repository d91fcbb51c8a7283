// Package settings has a table of all settings of kvlane. It reads settings from JSON, from YAML
// files and from texts such as flag values.
//
// Configuration fields with a tag `config:"key"` can be set. Table lists these keys with their
// documentation and their names on the command line and in the configuration file.
package settings

//go:generate go test . -run TestPageIsTheTable -update

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

const (
	configEnv       = "KVLANE_CONFIG"
	systemConfig    = "/etc/kvlane/config.yaml"
	configFlag      = "config"
	configFlagUsage = "configuration file (default " + configEnv + ", or else config.yaml in $XDG_CONFIG_HOME/kvlane or /etc/kvlane)"
)

// configFile returns the name of the configuration file, or "" if there is none. A file named by
// --config or the environment must exist.
func configFile(cmd *cobra.Command) (string, error) {
	if f := cmd.Root().PersistentFlags().Lookup(configFlag); f.Changed {
		if f.Value.String() == "" {
			return "", errors.New("--config names no file")
		}
		return f.Value.String(), nil
	}
	if name := os.Getenv(configEnv); name != "" {
		return name, nil
	}
	return firstFile(usualConfigs())
}

// usualConfigs returns the default paths of the configuration file, in order.
func usualConfigs() []string {
	var places []string
	if dir, err := os.UserConfigDir(); err == nil { // else $HOME is not set or a path is relative
		places = append(places, filepath.Join(dir, "kvlane", "config.yaml"))
	}
	return append(places, systemConfig)
}

// firstFile returns the first of places that exists. It skips paths without permission, such as the
// home directory of a service's user, except systemConfig.
func firstFile(places []string) (string, error) {
	for _, p := range places {
		_, err := os.Stat(p)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, os.ErrNotExist) && (p == systemConfig || !errors.Is(err, os.ErrPermission)) {
			return "", fmt.Errorf("look for a configuration file: %w; use --config FILE, or --config /dev/null to use no file", err)
		}
	}
	return "", nil
}

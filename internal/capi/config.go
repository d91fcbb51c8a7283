package capi

import (
	"errors"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/settings"
)

// ParseConfig parses and validates the configuration of an engine. The error lists all errors and
// wraps ErrInvalid.
func ParseConfig(text []byte) (kvlane.Config, error) {
	var c kvlane.Config
	err := settings.Decode(text, &c)
	if errors.Is(err, settings.ErrIncomplete) {
		return kvlane.Config{}, err
	}
	setDefaults(&c)
	if err := errors.Join(err, c.Validate()); err != nil {
		return kvlane.Config{}, err
	}
	return c, nil
}

// ReadConfig returns the configuration as a JSON object, after merging the settings of its file
// like ParseConfig.
func ReadConfig(text []byte) ([]byte, error) { return settings.Merge(text) }

// setDefaults sets the tensor-parallel size of each geometry to its default. The Go API requires
// it.
func setDefaults(c *kvlane.Config) {
	geometries := []*block.Geometry{&c.Model}
	for i := range c.Groups {
		geometries = append(geometries, &c.Groups[i].Geometry)
	}
	for _, g := range geometries {
		if g.TPSize == 0 && *g != (block.Geometry{}) {
			g.TPSize = 1
		}
	}
}

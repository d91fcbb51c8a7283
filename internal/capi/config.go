package capi

import (
	"errors"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/settings"
)

// ParseConfig reads the configuration of an engine and validates it. The error lists everything
// that is wrong, as ErrInvalid.
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

// ReadConfig returns the JSON object of a configuration with the settings of its file, as
// ParseConfig uses them.
func ReadConfig(text []byte) ([]byte, error) { return settings.Merge(text) }

// setDefaults sets the tensor-parallel size of each geometry, which Go programs have to name.
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

package kvlane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
)

// groups describes the blocks of an engine's page groups. Most models have one group.
type groups struct {
	names   []string // for errors
	ids     []block.Identity
	formats block.Formats
	layers  [][]int // see store.Config.Layers; nil without Config.Groups
}

// shards returns the number of shards of a load or dump: the layers of all groups.
func (g *groups) shards() int {
	n := 0
	for _, f := range g.formats {
		n += f.Layout.Shards()
	}
	return n
}

// ofLayers returns the group of each layer of the model.
func (g *groups) ofLayers() []int {
	all := make([]int, g.shards())
	for group, layers := range g.layers {
		for _, k := range layers {
			all[k] = group
		}
	}
	return all
}

func (g *groups) add(name string, b Blocks) {
	g.names = append(g.names, name)
	g.ids = append(g.ids, b.Identity)
	g.formats = append(g.formats, block.Format{Layout: b.Layout, Identity: b.Identity.Digest()})
}

// groups returns the page groups of the engine. After an error the result has no formats.
func (c *Config) groups() (groups, error) {
	if len(c.Groups) == 0 {
		b, err := c.blocks(c.Model, c.Blocks, c.Revision+c.Adapter+c.Tenant != "")
		if err != nil {
			return groups{}, err
		}
		var g groups
		g.add("the KV cache", b)
		return g, nil
	}
	var g groups
	var errs []error
	if c.Model != (block.Geometry{}) || c.Blocks != nil {
		errs = append(errs, fmt.Errorf("page groups are given in addition to a model, or to blocks for all layers: %w", errdefs.ErrInvalid))
	}
	for i := range c.Groups {
		name := fmt.Sprintf("page group %d (%q)", i, c.Groups[i].Name)
		b, err := c.groupBlocks(&c.Groups[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		g.add(name, b)
		g.layers = append(g.layers, c.Groups[i].Layers)
	}
	if len(errs) == 0 {
		errs = append(errs, g.formats.Validate())
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, store.ValidateLayers(g.formats, g.layers))
	}
	if err := errors.Join(errs...); err != nil {
		return groups{}, err
	}
	return g, nil
}

// groupBlocks returns the identity and the block format of g.
func (c *Config) groupBlocks(g *Group) (Blocks, error) {
	if g.Name == "" || len(g.Layers) == 0 {
		return Blocks{}, fmt.Errorf("it has no name or no layers: %w", errdefs.ErrInvalid)
	}
	geometry := g.Geometry
	if geometry.Layers == 0 && g.Blocks == nil {
		geometry.Layers = len(g.Layers)
	}
	b, err := c.blocks(geometry, g.Blocks, false)
	if err != nil {
		return Blocks{}, err
	}
	layers := block.FormatLayers(g.Layers)
	switch id := &b.Identity; {
	case g.Blocks == nil:
		id.LayerFirst, id.LayerEnd = slices.Min(g.Layers), slices.Max(g.Layers)+1
	case id.Group != "" && (id.Group != g.Name || id.Layers != layers):
		return Blocks{}, fmt.Errorf("its blocks' identity names page group %q with layers %q: %w", id.Group, id.Layers, errdefs.ErrInvalid)
	}
	b.Identity.Group, b.Identity.Layers = g.Name, layers
	return b, b.Identity.Validate()
}

// blocks returns the blocks of a geometry, or given if it is not nil. Setting both is an error. So
// is given if more is set: then the configuration has Revision, Adapter or Tenant, which are part
// of an identity.
func (c *Config) blocks(g block.Geometry, given *Blocks, more bool) (Blocks, error) {
	if b := given; b != nil {
		err := b.Identity.Validate()
		if b.Layout == nil {
			err = errors.Join(err, fmt.Errorf("blocks have no layout: %w", errdefs.ErrInvalid))
		}
		if g != (block.Geometry{}) || more {
			err = errors.Join(err, fmt.Errorf("blocks are given, so the model, its revision, adapter and tenant must be set in the blocks' identity instead: %w", errdefs.ErrInvalid))
		}
		return *b, err
	}
	layout, err := g.Layout()
	if err != nil {
		return Blocks{}, err
	}
	id := g.Identity(c.Adapter, c.Tenant)
	id.Revision = c.Revision
	return Blocks{Identity: id, Layout: layout}, id.Validate()
}

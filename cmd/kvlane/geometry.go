package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
)

// smallGeometry is the default geometry of replays. It is small enough for a laptop but has K, V
// and several layers.
var smallGeometry = block.Geometry{
	Model: "small", DType: "bfloat16", Layers: 2, KVHeads: 1, HeadSize: 64, BlockTokens: 16, TPSize: 1,
}

// geometryFlags select the geometry of the KV cache: a preset, and values that override it.
type geometryFlags struct {
	preset string
	given  block.Geometry
	flags  *pflag.FlagSet
}

func (g *geometryFlags) register(flags *pflag.FlagSet) {
	g.flags, g.given = flags, smallGeometry
	flags.StringVar(&g.preset, "preset", "", "take the geometry of this public model (see --list-presets); other options override it")
	flags.IntVar(&g.given.Layers, "layers", g.given.Layers, "layers of the model")
	flags.IntVar(&g.given.KVHeads, "kv-heads", g.given.KVHeads, "KV heads of the model, over all ranks")
	flags.IntVar(&g.given.HeadSize, "head-size", g.given.HeadSize, "elements per head; with --mla, per token's latent")
	flags.StringVar(&g.given.DType, "dtype", g.given.DType, "data type of the KV cache: "+strings.Join(block.DTypes(), ", ")+", or a short name such as bf16, fp16, f32 or fp8")
	flags.IntVar(&g.given.BlockTokens, "block-tokens", g.given.BlockTokens, "tokens per block")
	flags.IntVar(&g.given.TPSize, "tp", g.given.TPSize, "number of tensor-parallel ranks, which split the heads")
	flags.IntVar(&g.given.TPRank, "tp-rank", g.given.TPRank, "this rank, from 0")
	flags.BoolVar(&g.given.MLA, "mla", g.given.MLA, "one plane of latents per layer, instead of K and V")
}

// geometry returns the geometry that the flags select. The error lists all errors.
func (g *geometryFlags) geometry() (block.Geometry, error) {
	out := smallGeometry
	if g.preset != "" {
		var err error
		if out, err = block.PresetByName(g.preset); err != nil {
			return out, fmt.Errorf("--preset: %w", err)
		}
	}
	for name, take := range map[string]func(){
		"layers":       func() { out.Layers = g.given.Layers },
		"kv-heads":     func() { out.KVHeads = g.given.KVHeads },
		"head-size":    func() { out.HeadSize = g.given.HeadSize },
		"dtype":        func() { out.DType = g.given.DType },
		"block-tokens": func() { out.BlockTokens = g.given.BlockTokens },
		"tp":           func() { out.TPSize = g.given.TPSize },
		"tp-rank":      func() { out.TPRank = g.given.TPRank },
		"mla":          func() { out.MLA = g.given.MLA },
	} {
		if g.flags.Changed(name) {
			take()
		}
	}
	return out, out.Validate()
}

// addStoredGeometry adds information to the error for a directory whose blocks have another
// geometry than want: the stored geometry and, if possible, the flags that select it.
func addStoredGeometry(want block.Geometry, err error) error {
	var other *block.IdentityError
	if !errors.As(err, &other) {
		return err
	}
	id := other.Found
	err = fmt.Errorf("%w; the directory holds model %q, %s, %d layers, KV heads %d to %d of %d elements, %d tokens a block",
		err, id.Model, id.DType, id.LayerEnd-id.LayerFirst, id.HeadFirst, id.HeadEnd-1, id.HeadSize, id.BlockTokens)
	if flags := flagsOfStored(want, id); flags != "" {
		err = fmt.Errorf("%w: give %s for that", err, flags)
	}
	return err
}

// flagsOfStored returns the flags that change want to a geometry with the identity id, or "" if
// there are none. A different range of heads can mean another tensor-parallel size or another
// number of heads, so it tries both.
func flagsOfStored(want block.Geometry, id block.Identity) string {
	g := want
	g.DType, g.Layers, g.HeadSize, g.BlockTokens, g.MLA = id.DType, id.LayerEnd, id.HeadSize, id.BlockTokens, id.Layout == block.LayoutMLA
	n := max(id.HeadEnd-id.HeadFirst, 1)
	heads := max(id.Heads, n)
	for _, split := range [][3]int{{g.KVHeads, g.TPSize, g.TPRank}, {heads, heads / n, id.HeadFirst / n}} {
		if g.KVHeads, g.TPSize, g.TPRank = split[0], split[1], split[2]; g.Validate() != nil || g.Identity("", "") != id {
			continue
		}
		var flags []string
		for _, f := range []struct {
			name      string
			want, has any
		}{
			{"dtype", want.Identity("", "").DType, g.DType},
			{"layers", want.Layers, g.Layers},
			{"kv-heads", want.KVHeads, g.KVHeads},
			{"head-size", want.HeadSize, g.HeadSize},
			{"block-tokens", want.BlockTokens, g.BlockTokens},
			{"tp", want.TPSize, g.TPSize},
			{"tp-rank", want.TPRank, g.TPRank},
			{"mla", want.MLA, g.MLA},
		} {
			if f.want != f.has {
				flags = append(flags, fmt.Sprintf("--%s=%v", f.name, f.has))
			}
		}
		return strings.Join(flags, " ")
	}
	return ""
}

// listPresets prints the presets and the size of a block on one rank.
func listPresets(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	t := &present.Table{Head: []string{"preset", "layers", "KV heads", "head size", "dtype", "MLA", "tokens", "block"}, Right: " rrr  rr"}
	for _, g := range block.Presets() {
		mla := "no"
		if g.MLA {
			mla = "yes"
		}
		t.Row(g.Model, fmt.Sprint(g.Layers), fmt.Sprint(g.KVHeads), fmt.Sprint(g.HeadSize), g.DType, mla, fmt.Sprint(g.BlockTokens),
			present.Bytes(g.PlaneBytes()*int64(g.PlanesPerLayer())*int64(g.Layers)))
	}
	p.Table(t)
	p.Define("tokens", "in a block")
	p.Define("block", "bytes of a block, with one rank")
	return p.Write(w)
}

package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

const (
	formatName    = "kvlane-profile"
	formatVersion = 6
	// maxEncoded bounds the size of an encoded profile in bytes. Usually a profile has about 100
	// KiB.
	maxEncoded = 4 << 20
)

// document is the stored form of a profile.
type document struct {
	Format  string             `json:"format"`
	Version int                `json:"version"`
	Key     Key                `json:"key"`
	Source  string             `json:"source"`
	Made    time.Time          `json:"made"`
	GBps    map[string]float64 `json:"large_copy_gbps"`
	SumGBps float64            `json:"cpu_sum_gbps"`
	Sizes   []int64            `json:"sizes"`
	Counts  []int64            `json:"counts"`
	Models  []modelDocument    `json:"models"`
}

type modelDocument struct {
	Path   string      `json:"path"`
	CTAs   int         `json:"ctas"`
	Dir    string      `json:"direction"`
	Side   string      `json:"host"`
	Times  [][]float64 `json:"times_ns"` // by size and count
	Lead   float64     `json:"lead_ns"`
	Duplex float64     `json:"duplex_ns_per_byte"`
	Spread float64     `json:"spread"`
	Points int         `json:"points"`
}

// MarshalJSON encodes p. It returns an error if p is invalid.
func (p Profile) MarshalJSON() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("encode profile: %w", err)
	}
	d := document{
		Format: formatName, Version: formatVersion, Key: p.Key, Source: p.Source, Made: p.Made.UTC().Round(0),
		GBps: make(map[string]float64), SumGBps: p.SumGBps, Sizes: p.Sizes, Counts: p.Counts, Models: make([]modelDocument, len(p.Models)),
	}
	for i, gbps := range p.GBps {
		d.GBps[Direction(i).String()] = gbps
	}
	for i := range p.Models {
		m := &p.Models[i]
		d.Models[i] = modelDocument{
			m.Path.String(), m.CTAs, m.Dir.String(), m.Side.String(),
			slices.Collect(slices.Chunk(m.Times, len(p.Counts))), m.Lead, m.Duplex, m.Spread, m.Points,
		}
	}
	return json.Marshal(d)
}

// UnmarshalJSON decodes and validates a profile. The error wraps ErrMismatch for another version,
// and ErrCorrupt if b is otherwise not a valid profile. p is then unchanged.
func (p *Profile) UnmarshalJSON(b []byte) error {
	q, err := Decode(b)
	if err == nil {
		*p = q
	}
	return err
}

// Decode decodes and validates a profile like UnmarshalJSON.
func Decode(b []byte) (Profile, error) {
	corrupt := func(err error) (Profile, error) {
		return Profile{}, fmt.Errorf("decode profile: %w: %w", errdefs.ErrCorrupt, err)
	}
	if len(b) > maxEncoded {
		return corrupt(fmt.Errorf("%d bytes are more than %d", len(b), maxEncoded))
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return corrupt(err)
	}
	switch {
	case head.Format != formatName:
		return corrupt(fmt.Errorf("unknown format %q", head.Format))
	case head.Version != formatVersion:
		return Profile{}, fmt.Errorf("decode profile: version %d is not %d: %w", head.Version, formatVersion, errdefs.ErrMismatch)
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return corrupt(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return corrupt(errors.New("trailing data"))
	}
	p, err := d.profile()
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return corrupt(err)
	}
	return p, nil
}

func (d *document) profile() (Profile, error) {
	p := Profile{Key: d.Key, Source: d.Source, Made: d.Made, SumGBps: d.SumGBps, Sizes: d.Sizes, Counts: d.Counts}
	for name, gbps := range d.GBps {
		dir, err := parse[Direction](name, directions)
		if err != nil {
			return p, err
		}
		p.GBps[dir] = gbps
	}
	for i := range d.Models {
		x := &d.Models[i]
		path, errPath := stream.ParsePath(x.Path)
		dir, errDir := parse[Direction](x.Dir, directions)
		side, errSide := parse[Side](x.Side, sides)
		if err := errors.Join(errPath, errDir, errSide); err != nil {
			return p, fmt.Errorf("model %d: %w", i, err)
		}
		for k, row := range x.Times {
			if len(row) != len(p.Counts) {
				return p, fmt.Errorf("model %d: %d times of size %d, for %d counts", i, len(row), k, len(p.Counts))
			}
		}
		p.Models = append(p.Models, Model{
			Path: path, CTAs: x.CTAs, Dir: dir, Side: side, Times: slices.Concat(x.Times...),
			Lead: x.Lead, Duplex: x.Duplex, Spread: x.Spread, Points: x.Points,
		})
	}
	return p, nil
}

// parse returns the value below limit whose String is name.
func parse[T interface {
	~uint8
	fmt.Stringer
}](name string, limit T,
) (T, error) {
	for v := T(0); v < limit; v++ {
		if v.String() == name {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown %T %q", limit, name)
}

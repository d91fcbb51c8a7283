package blockdir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// CheckIdentities returns ErrInvalid unless ids is empty or has the identity of each format, in
// order.
func CheckIdentities(formats block.Formats, ids []block.Identity) error {
	if n := len(ids); n != 0 && n != len(formats) {
		return fmt.Errorf("%d identities are given for %d formats: %w", n, len(formats), errdefs.ErrInvalid)
	}
	for i, id := range ids {
		if d := id.Digest(); d != formats[i].Identity {
			return fmt.Errorf("the identity's digest is %s, the format has %s: %w", d, formats[i].Identity, errdefs.ErrInvalid)
		}
	}
	return nil
}

// Check returns ErrMismatch unless the directory is for blocks of exactly these formats and
// identities. Empty ids are not checked.
func (m *Marker) Check(formats block.Formats, ids []block.Identity) error {
	other := func(format string, args ...any) error {
		return fmt.Errorf("%s; give another directory, or remove this one: %w", fmt.Sprintf(format, args...), errdefs.ErrMismatch)
	}
	if len(formats) == 1 && len(m.Groups) == 1 && m.Groups[0].Digest != formats[0].Identity {
		return fmt.Errorf("it holds blocks of another identity: %w; give another directory, or remove this one",
			m.Groups[0].differs(formats[0].Identity, ids))
	}
	var differ []string
	for i, f := range formats {
		at := slices.IndexFunc(m.Groups, func(g Group) bool { return g.Digest == f.Identity })
		switch {
		case at < 0:
			g := Group{Digest: f.Identity}
			if len(ids) > 0 {
				g.Identity = &ids[i]
			}
			differ = append(differ, g.name()+" is not of them")
		case !m.Groups[at].Layout.Equal(f.Layout):
			return other("its blocks have another layout: shard bytes: expected %s, found %s", f.Layout, m.Groups[at].Layout)
		}
	}
	for i := range m.Groups {
		if !slices.ContainsFunc(formats, func(f block.Format) bool { return f.Identity == m.Groups[i].Digest }) {
			differ = append(differ, m.Groups[i].name()+" was not given")
		}
	}
	if len(differ) > 0 {
		return other("it is for blocks of %d page groups: %s", len(m.Groups), strings.Join(differ, "; "))
	}
	return nil
}

// name returns the name of the group for messages.
func (g *Group) name() string {
	if g.Identity != nil && g.Identity.Group != "" {
		return fmt.Sprintf("page group %q (identity %s)", g.Identity.Group, g.Digest)
	}
	return fmt.Sprintf("identity %s", g.Digest)
}

// differs describes how the only group differs from the expected identity.
func (g *Group) differs(want block.Digest, ids []block.Identity) error {
	if g.Identity != nil && len(ids) > 0 {
		if e := (&block.IdentityError{Want: PublicIdentity(ids[0]), Found: *g.Identity}); len(e.Want.Diff(e.Found)) > 0 {
			return e
		}
	}
	return fmt.Errorf("identity digest: expected %s, found %s: %w", want, g.Digest, errdefs.ErrMismatch)
}

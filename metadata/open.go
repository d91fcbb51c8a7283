package metadata

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// schemeSRV begins the names of DNS services.
const schemeSRV = "dns+srv"

// OpenedMembers is a list that its owner closes.
type OpenedMembers interface {
	Members
	io.Closer
	// Err returns the error of the last read of the directory, or nil if the list is up to date.
	Err() error
}

// Scheme opens the list that a URL names. Implementations are safe for concurrent use.
type Scheme interface {
	// Check returns ErrInvalid for a wrong URL.
	Check(url string) error
	// Open opens a list. If the directory does not answer the list is empty until it does.
	Open(ctx context.Context, url string) (OpenedMembers, error)
}

type schemesKey struct{}

// WithScheme returns a context in which OpenMembers opens URLs NAME://... by s.
func WithScheme(ctx context.Context, name string, s Scheme) context.Context {
	all := maps.Clone(schemesOf(ctx))
	if all == nil {
		all = make(map[string]Scheme)
	}
	all[name] = s
	return context.WithValue(ctx, schemesKey{}, all)
}

func schemesOf(ctx context.Context) map[string]Scheme {
	all, _ := ctx.Value(schemesKey{}).(map[string]Scheme)
	return all
}

// CheckMembers returns ErrInvalid for a text that OpenMembers never opens. It does not access a
// directory. URLs of other schemes than dns+srv are left to OpenMembers.
func CheckMembers(text string) error {
	scheme, name, ok := strings.Cut(text, "://")
	switch {
	case !ok:
		_, err := ParseMembers(text)
		return err
	case scheme == schemeSRV && !strings.HasPrefix(name, "_"):
		return fmt.Errorf("members %s: must be %s://_SERVICE._PROTOCOL.DOMAIN: %w", text, schemeSRV, errdefs.ErrInvalid)
	}
	return nil
}

// OpenMembers opens a list HOST:PORT[=WEIGHT],..., dns+srv://_SERVICE._PROTOCOL.DOMAIN, or a URL of
// a scheme of ctx (WithScheme). A directory that does not answer is no error: the list is empty
// until it does. It returns ErrInvalid for a wrong text, and ErrNotSupported for an unknown scheme.
func OpenMembers(ctx context.Context, text string) (OpenedMembers, error) {
	if err := CheckMembers(text); err != nil {
		return nil, err
	}
	scheme, name, ok := strings.Cut(text, "://")
	if !ok {
		m, err := ParseMembers(text)
		return staticList{m}, err
	}
	if scheme == schemeSRV {
		return OpenDNSMembers(ctx, name, DNSOptions{Patient: true})
	}
	s := schemesOf(ctx)[scheme]
	if s == nil {
		return nil, fmt.Errorf("members %s: this program has no scheme %q; use HOST:PORT,... or %s://NAME: %w", text, scheme, schemeSRV, errdefs.ErrNotSupported)
	}
	if err := s.Check(text); err != nil {
		return nil, err
	}
	return s.Open(ctx, text)
}

// staticList is a list without resources.
type staticList struct{ StaticMembers }

// Err returns nil.
func (staticList) Err() error { return nil }

// Close does nothing.
func (staticList) Close() error { return nil }

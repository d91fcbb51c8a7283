package mooncake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/wire"
)

// P2PHandshake stands for no directory: the name of a segment is the address HOST:PORT of its
// handshake.
const P2PHandshake = "P2PHANDSHAKE"

// Directory finds segments by name.
type Directory interface {
	// Find returns the description of a segment with DataHost set. It returns ErrNotFound if there
	// is no such segment.
	Find(ctx context.Context, segment string) (*Segment, error)
	// handshake returns the address of a segment's handshake.
	handshake(ctx context.Context, segment string) (string, error)
	// publish adds a segment. withdraw removes it.
	publish(ctx context.Context, s *Segment, at server) error
	withdraw(ctx context.Context, segment string) error
}

// OpenDirectory returns the directory of a URI: P2PHANDSHAKE, or http(s)://HOST:PORT/metadata.
// cluster separates the names of clusters that share a metadata server; it may be empty.
// OpenDirectory returns ErrNotSupported for etcd and redis, and ErrInvalid for another URI.
func OpenDirectory(uri, cluster string) (Directory, error) {
	if uri == P2PHandshake {
		return p2p{}, nil
	}
	if scheme, _, ok := strings.Cut(uri, "://"); ok && (scheme == "etcd" || scheme == "redis") {
		return nil, fmt.Errorf("open metadata %q: %s is not supported by this protocol, use %s or http: %w", uri, scheme, P2PHandshake, errdefs.ErrNotSupported)
	}
	c, err := metadata.NewClient(uri, handshakeTime)
	if err != nil {
		return nil, fmt.Errorf("open metadata: must be %s or http://HOST:PORT/metadata: %w", P2PHandshake, err)
	}
	prefix := "mooncake/"
	if cluster != "" {
		prefix += strings.TrimSuffix(cluster, "/") + "/"
	}
	return &httpDirectory{client: c, prefix: prefix}, nil
}

// p2p finds a segment by a handshake with the address that is its name.
type p2p struct{}

func (p2p) Find(ctx context.Context, segment string) (*Segment, error) {
	addr, err := p2p{}.handshake(ctx, segment)
	if err != nil {
		return nil, fmt.Errorf("find segment %s: %w", segment, err)
	}
	text, err := exchange(ctx, addr, kindMetadata, []byte("{}"))
	if err != nil {
		return nil, fmt.Errorf("find segment %s: %w", segment, err)
	}
	s, err := ParseSegment(text)
	if err != nil {
		return nil, &wire.AnswerError{Err: fmt.Errorf("find segment %s: %w", segment, err)}
	}
	if s.DataHost == "" {
		s.DataHost, _, _ = net.SplitHostPort(addr)
	}
	return s, nil
}

func (p2p) handshake(_ context.Context, segment string) (string, error) {
	if _, port, err := net.SplitHostPort(segment); err != nil || port == "" || port == "0" {
		return "", fmt.Errorf("by %s a segment's name is HOST:PORT: %w", P2PHandshake, errdefs.ErrInvalid)
	}
	return segment, nil
}

func (p2p) publish(context.Context, *Segment, server) error { return nil }
func (p2p) withdraw(context.Context, string) error          { return nil }

// httpDirectory is an HTTP metadata server. Requests are rare, so it keeps no connection open
// between them.
type httpDirectory struct {
	client *metadata.Client
	prefix string
}

func (d *httpDirectory) segmentKey(name string) string { return d.prefix + "ram/" + name }
func (d *httpDirectory) serverKey(name string) string  { return d.prefix + "rpc_meta/" + name }

func (d *httpDirectory) Find(ctx context.Context, segment string) (*Segment, error) {
	text, err := d.get(ctx, d.segmentKey(segment))
	if err != nil {
		return nil, fmt.Errorf("find segment %s: %w", segment, err)
	}
	s, err := ParseSegment(text)
	if err != nil {
		return nil, &wire.AnswerError{Err: fmt.Errorf("find segment %s: %w", segment, err)}
	}
	if s.DataHost == "" {
		addr, err := d.handshake(ctx, segment)
		if err != nil {
			return nil, fmt.Errorf("find segment %s: %w", segment, err)
		}
		s.DataHost, _, _ = net.SplitHostPort(addr)
	}
	return s, nil
}

func (d *httpDirectory) handshake(ctx context.Context, segment string) (string, error) {
	text, err := d.get(ctx, d.serverKey(segment))
	if err != nil {
		return "", err
	}
	var at server
	if err := json.Unmarshal(text, &at); err != nil {
		return "", &wire.AnswerError{Err: fmt.Errorf("read rpc_meta: %w: %w", errdefs.ErrInvalid, err)}
	}
	if at.Host == "" || at.Port < 1 || at.Port > 65535 {
		return "", &wire.AnswerError{Err: fmt.Errorf("rpc_meta names %q, port %d: %w", at.Host, at.Port, errdefs.ErrInvalid)}
	}
	return net.JoinHostPort(at.Host, strconv.Itoa(at.Port)), nil
}

// publish first deletes entries of an earlier process, because Mooncake's server refuses to
// overwrite rpc_meta.
func (d *httpDirectory) publish(ctx context.Context, s *Segment, at server) error {
	defer d.client.Close()
	for _, v := range []struct {
		key   string
		value any
	}{{d.serverKey(s.Name), at}, {d.segmentKey(s.Name), s}} {
		text, err := json.Marshal(v.value)
		if err != nil {
			return fmt.Errorf("publish segment %s: %w", s.Name, err)
		}
		err = d.client.Delete(ctx, v.key)
		if err == nil {
			err = d.client.Put(ctx, v.key, text, 0)
		}
		if err != nil {
			return fmt.Errorf("publish segment %s: %w", s.Name, err)
		}
	}
	return nil
}

func (d *httpDirectory) withdraw(ctx context.Context, segment string) error {
	defer d.client.Close()
	err := errors.Join(d.client.Delete(ctx, d.segmentKey(segment)), d.client.Delete(ctx, d.serverKey(segment)))
	if err != nil {
		return fmt.Errorf("withdraw segment %s: %w", segment, err)
	}
	return nil
}

func (d *httpDirectory) get(ctx context.Context, key string) ([]byte, error) {
	defer d.client.Close()
	text, err := d.client.Get(ctx, key)
	if err != nil {
		return nil, &wire.AnswerError{Err: err}
	}
	return text, nil
}

package owner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
)

// Client asks the owner of a directory. One goroutine may use it.
type Client struct {
	c       net.Conn
	process string
}

// Dial connects to the owner that serves a folder of d. process describes it for messages. Dial
// returns ErrNotFound if no process serves the folder, and ErrNotSupported if the process belongs
// to an unrelated user.
func Dial(ctx context.Context, d dirfs.Dir, folder, process string) (_ *Client, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s has it open, and does not serve commands: %w", process, err)
		}
	}()
	f, fd, err := openFolder(d, folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	dialer := net.Dialer{Timeout: requestTimeout}
	c, err := dialer.DialContext(ctx, "unix", pathOf(fd))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	uid, err := peerUser(c)
	if err = errors.Join(err, unix.Fstat(fd, &st)); err == nil && uid != 0 && uid != os.Geteuid() && uid != int(st.Uid) {
		err = fmt.Errorf("it belongs to user %d, the folder to user %d: %w", uid, st.Uid, errdefs.ErrNotSupported)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Client{c, process}, nil
}

// Process describes the owner.
func (c *Client) Process() string { return c.process }

// Close closes the connection.
func (c *Client) Close() error { return c.c.Close() }

// ask sends requests for the keys, and calls each for the replies. It stops at the first error.
func (c *Client) ask(ctx context.Context, op operation, keys []block.Key, each func(p *reply, removed []block.Key)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, which has it open: %w", c.process, err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for len(keys) > 0 {
		q := request{op, keys[:min(len(keys), MaxKeys)]}
		if err := c.c.SetDeadline(time.Now().Add(workTimeout + requestTimeout)); err != nil {
			return err
		}
		var p reply
		var removed []block.Key
		err := context.Cause(ctx)
		if err == nil {
			_, err = c.c.Write(q.encode())
		}
		if err == nil {
			p, removed, err = readReply(c.c, q.keys)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if each != nil {
			each(&p, removed)
		}
		if err := p.Error.err(); err != nil {
			return err
		}
		keys = keys[len(q.keys):]
	}
	return nil
}

// Remove removes blocks: see Owner.Remove.
func (c *Client) Remove(ctx context.Context, keys []block.Key) (r tier.Removed, err error) {
	var left []error
	err = c.ask(ctx, opRemove, keys, func(p *reply, removed []block.Key) {
		r.Keys, r.Bytes = append(r.Keys, removed...), r.Bytes+p.Bytes
		left = append(left, p.Left.err())
	})
	r.Left = errors.Join(left...)
	return r, err
}

// Pin pins blocks: see tier.Pinner. Each request is for MaxKeys blocks; after an error, those of
// earlier requests are pinned.
func (c *Client) Pin(ctx context.Context, keys []block.Key) error {
	return c.ask(ctx, opPin, keys, nil)
}

// Unpin unpins blocks: see tier.Pinner.
func (c *Client) Unpin(ctx context.Context, keys []block.Key) error {
	return c.ask(ctx, opUnpin, keys, nil)
}

// Why explains why blocks are stored or not: see Owner.Why.
func (c *Client) Why(ctx context.Context, keys []block.Key) (all []Answer, err error) {
	err = c.ask(ctx, opWhy, keys, func(p *reply, _ []block.Key) { all = append(all, p.Why...) })
	if err == nil && len(all) != len(keys) {
		err = fmt.Errorf("%s: %d answers for %d blocks: %w", c.process, len(all), len(keys), errdefs.ErrCorrupt)
	}
	return all, err
}

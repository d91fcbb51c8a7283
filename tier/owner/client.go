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

// Client asks the owner of a directory. It connects for each operation, because an owner does not
// wait long for a command that lists a directory or asks another owner. One goroutine may use it.
type Client struct {
	socket  int // descriptor of the socket's file; -1: closed
	user    int // that the folder belongs to
	process string
}

// Dial finds the owner that serves a folder of d. process describes it for messages. Dial returns
// ErrNotFound if no process serves the folder, and ErrNotSupported if the process belongs to an
// unrelated user, or if another file has the name of the socket.
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
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	// Connecting to a path would follow a link, to the socket of a directory of another user.
	socket, err := unix.Openat(fd, Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	c := &Client{socket, int(st.Uid), process}
	if err = unix.Fstat(socket, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = fmt.Errorf("%s is no socket: %w", Name, errdefs.ErrNotSupported)
	}
	var conn net.Conn
	if err == nil {
		conn, err = c.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, conn.Close()
}

// connect connects to the owner. It returns the errors of Dial.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: requestTimeout}
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", c.socket))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	uid, err := peerUser(conn)
	if err == nil && uid != 0 && uid != os.Geteuid() && uid != c.user {
		err = fmt.Errorf("it belongs to user %d, the folder to user %d: %w", uid, c.user, errdefs.ErrNotSupported)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Process describes the owner.
func (c *Client) Process() string { return c.process }

// Close closes the socket's file. Later calls do nothing.
func (c *Client) Close() error {
	socket := c.socket
	if c.socket = -1; socket < 0 {
		return nil
	}
	return unix.Close(socket)
}

// fewKeys is the number of keys of a request that may take long for each key, as one to a bucket, or
// whose reply is long for each key. Requests for a prompt begin with a run.
const fewKeys = 2 * tier.RunBlocks

// ask sends requests for at most most of the keys, and calls each for the replies. It stops at the
// first error.
func (c *Client) ask(ctx context.Context, op operation, keys []block.Key, most int, each func(p *reply, removed []block.Key)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, which has it open: %w", c.process, err)
		}
	}()
	if len(keys) == 0 {
		return nil
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for len(keys) > 0 {
		q := request{op, keys[:min(len(keys), most)]}
		if err := conn.SetDeadline(time.Now().Add(workTimeout + requestTimeout)); err != nil {
			return err
		}
		var p reply
		var removed []block.Key
		err := context.Cause(ctx)
		if err == nil {
			_, err = conn.Write(q.encode())
		}
		if err == nil {
			p, removed, err = readReply(conn, q.keys)
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
	err = c.ask(ctx, opRemove, keys, fewKeys, func(p *reply, removed []block.Key) {
		r.Keys, r.Bytes = append(r.Keys, removed...), r.Bytes+p.Bytes
		left = append(left, p.Left.err())
	})
	r.Left = errors.Join(left...)
	return r, err
}

// Pin pins blocks: see tier.Pinner. Each request is for MaxKeys blocks; after an error, those of
// earlier requests are pinned.
func (c *Client) Pin(ctx context.Context, keys []block.Key) error {
	return c.ask(ctx, opPin, keys, MaxKeys, nil)
}

// Unpin unpins blocks: see tier.Pinner.
func (c *Client) Unpin(ctx context.Context, keys []block.Key) error {
	return c.ask(ctx, opUnpin, keys, MaxKeys, nil)
}

// Why explains why blocks are stored or not: see Owner.Why.
func (c *Client) Why(ctx context.Context, keys []block.Key) (all []Answer, err error) {
	err = c.ask(ctx, opWhy, keys, fewKeys, func(p *reply, _ []block.Key) { all = append(all, p.Why...) })
	if err == nil && len(all) != len(keys) {
		err = fmt.Errorf("%s: %d answers for %d blocks: %w", c.process, len(all), len(keys), errdefs.ErrCorrupt)
	}
	return all, err
}

package owner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
)

// Name is the name of the socket in its folder.
const Name = "owner.sock"

const (
	maxConns       = 8
	requestTimeout = 10 * time.Second // to receive a request, and to send a reply
	workTimeout    = time.Minute
)

// Owner is the process that has a directory of blocks open. All methods are safe for concurrent
// use.
type Owner interface {
	// Remove removes blocks from the directory and from the memory of the owner: see tier.Remover.
	Remove(ctx context.Context, keys []block.Key) (tier.Removed, error)
	// Why explains why blocks are stored or not.
	Why(ctx context.Context, keys []block.Key) ([]tier.Why, error)
	tier.Pinner
}

// Server serves the commands for an Owner.
type Server struct {
	owner  Owner
	folder dirfs.Dir
	name   string
	l      net.Listener
	ctx    context.Context // of operations; ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // has an element for each connection

	mu     sync.Mutex
	closed bool                  // guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu
}

// Serve serves the socket named Name in a folder of d, until Close. The caller has a lock which
// ensures that no other process serves it: Serve replaces the socket of a dead owner. It returns
// ErrNotSupported if the file system has no descriptors or no sockets.
func Serve(d dirfs.Dir, folder string, o Owner) (_ *Server, err error) {
	s := &Server{owner: o, folder: d, name: folder + "/" + Name, slots: make(chan struct{}, maxConns), conns: make(map[net.Conn]struct{})}
	if folder == "." {
		s.name = Name
	}
	f, fd, err := openFolder(d, folder)
	if err != nil {
		return nil, fmt.Errorf("serve commands: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := s.removeSocket(); err != nil {
		return nil, fmt.Errorf("serve commands: %w", err)
	}
	// The mode of the socket's descriptor becomes that of its file.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	l, err := lc.Listen(s.ctx, "unix", pathOf(fd))
	if err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w: %w", errdefs.ErrNotSupported, err)
		}
		return nil, fmt.Errorf("serve commands: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // its path names a descriptor
	}
	s.l = l
	s.wg.Go(s.accept)
	return s, nil
}

// removeSocket removes the socket, if there is one. It returns ErrExists for another file.
func (s *Server) removeSocket() error {
	info, err := s.folder.Stat(s.name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case info.Type != fs.ModeSocket:
		return fmt.Errorf("%s is a %s: remove it: %w", s.name, info.Kind(), errdefs.ErrExists)
	}
	return s.folder.Remove(s.name)
}

// openFolder opens a folder of d, and returns its descriptor.
func openFolder(d dirfs.Dir, folder string) (dirfs.File, int, error) {
	f, err := d.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, 0, err
	}
	fd, ok := f.(dirfs.Descriptor)
	if !ok {
		return nil, 0, errors.Join(fmt.Errorf("the file system has no descriptors: %w", errdefs.ErrNotSupported), f.Close())
	}
	return f, fd.Descriptor(), nil
}

// pathOf returns a short path of the socket in the folder with a descriptor.
func pathOf(fd int) string { return fmt.Sprintf("/proc/self/fd/%d/%s", fd, Name) }

// Close removes the socket, ends the connections and waits for operations, whose contexts it ends.
// If ctx ends first, it returns ErrBusy, and may be called again. Call it before the owner closes.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	var err error
	if first {
		s.cancel()
		err = s.l.Close()
		if rerr := s.removeSocket(); !errors.Is(rerr, unix.ENOTDIR) && !errors.Is(rerr, unix.ENOENT) {
			err = errors.Join(err, rerr)
		}
	}
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("an operation is running: %w: %w", errdefs.ErrBusy, context.Cause(ctx)))
	}
	if err != nil {
		return fmt.Errorf("stop serving commands: %w", err)
	}
	return nil
}

// acceptRetryDelay is the delay after a failed accept, which may fail for lack of descriptors.
const acceptRetryDelay = 100 * time.Millisecond

// accept serves connections. Those beyond maxConns wait.
func (s *Server) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-s.slots
			select {
			case <-time.After(acceptRetryDelay):
			case <-s.ctx.Done():
			}
			continue
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		} else {
			s.conns[c] = struct{}{}
			s.wg.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

// serve answers the requests of a connection.
func (s *Server) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		<-s.slots
	}()
	if uid, err := peerUser(c); err != nil || uid != 0 && uid != os.Geteuid() {
		return
	}
	for {
		if c.SetDeadline(time.Now().Add(requestTimeout)) != nil {
			return
		}
		q, err := readRequest(c)
		if err != nil && !errors.Is(err, errdefs.ErrInvalid) {
			return
		}
		p := reply{Error: failureOf(err)}
		if err == nil {
			ctx, cancel := context.WithTimeout(s.ctx, workTimeout)
			p = s.do(ctx, &q)
			cancel()
		}
		b, perr := p.encode()
		if perr != nil {
			b, perr = (&reply{Error: failureOf(perr)}).encode()
		}
		if perr == nil {
			_ = c.SetDeadline(time.Now().Add(requestTimeout))
			_, perr = c.Write(b)
		}
		if err != nil || perr != nil {
			return
		}
	}
}

// do does the operation of a request.
func (s *Server) do(ctx context.Context, q *request) (p reply) {
	var err error
	switch q.op {
	case opRemove:
		var r tier.Removed
		r, err = s.owner.Remove(ctx, q.keys)
		p.setRemoved(&r, q.keys)
	case opPin:
		err = s.owner.Pin(ctx, q.keys)
	case opUnpin:
		err = s.owner.Unpin(ctx, q.keys)
	case opWhy:
		var all []tier.Why
		all, err = s.owner.Why(ctx, q.keys)
		for i := range all {
			text, merr := json.Marshal(&all[i])
			err = errors.Join(err, merr)
			p.Why = append(p.Why, Answer{all[i].Stored(), all[i].String(), text})
		}
	}
	p.Error = failureOf(err)
	return p
}

// peerUser returns the user of the process at the other end.
func peerUser(c net.Conn) (uid int, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errdefs.ErrNotSupported
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		return 0, errors.Join(cerr, err)
	}
	return int(cred.Uid), nil
}

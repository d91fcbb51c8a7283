package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Options say how a Server is made.
type Options struct {
	// Dir has the socket. It is made, of mode 0700, where it does not exist; an existing one has to be this user's alone. Default DefaultDir().
	Dir string
	// Name of the socket's file, which ends in ".sock". Default: the process's number and something random.
	Name string
	// Allow is the users, by number, whose processes may import. Default: this process's own.
	Allow []int
	// MaxImporters bounds connections, one for each import of a process. Default 4096.
	MaxImporters int
	// RequestTimeout bounds how long a connection may take to ask. Default 5 s.
	RequestTimeout time.Duration
}

func (o *Options) setDefaults() error {
	if o.MaxImporters < 0 || o.RequestTimeout < 0 {
		return fmt.Errorf("%d importers at most, requests within %v: %w", o.MaxImporters, o.RequestTimeout, errdefs.ErrInvalid)
	}
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("directory of sockets %q: %w", o.Dir, err)
	}
	o.Dir = dir
	if o.Name == "" {
		o.Name = fmt.Sprintf("%d-%s%s", os.Getpid(), NewIdentity().String()[:8], suffix)
	}
	if filepath.Ext(o.Name) != suffix {
		return fmt.Errorf("socket %q does not end in %s: %w", o.Name, suffix, errdefs.ErrInvalid)
	}
	o.Allow = users(o.Allow)
	if o.MaxImporters == 0 {
		o.MaxImporters = 4096
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 5 * time.Second
	}
	return nil
}

// Stats is what a Server has and has had.
type Stats struct {
	Exports   int   // with those that are withdrawn and whose importers are not done
	Importers int   // that are connected
	Imports   int64 // that were granted
	// Refused, by reason.
	Denied, Malformed, Unknown, Busy int64
}

// Server exports memory. NewServer does nothing but check; Start and Close begin and end it.
type Server struct {
	o    Options
	path string

	mu       sync.Mutex
	listener *net.UnixListener // once it was started
	closed   bool
	exports  map[Identity]*Export
	conns    map[*net.UnixConn]bool // whether it imports
	stats    Stats
	serving  sync.WaitGroup
}

// NewServer returns a server that is not started. ErrInvalid.
func NewServer(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("make export server: %w", err)
	}
	return &Server{
		o: o, path: filepath.Join(o.Dir, o.Name), exports: make(map[Identity]*Export), conns: make(map[*net.UnixConn]bool),
	}, nil
}

// Start makes the socket and serves it until Close. ErrExists if it was started, or somebody else listens there; ErrClosed after
// Close. It waits until ctx ends for others who start in the same directory.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("start export server: %w", errdefs.ErrClosed)
	case s.listener != nil:
		return fmt.Errorf("start export server: it was started: %w", errdefs.ErrExists)
	}
	l, err := listen(ctx, s.o.Dir, s.o.Name)
	if err != nil && s.o.Dir == DefaultDir() {
		err = fmt.Errorf("%w; the environment variable %s, now %q, must name a directory of this user", err, runtimeDir, os.Getenv(runtimeDir))
	}
	if err != nil {
		return fmt.Errorf("start export server: %w", err)
	}
	s.listener = l
	s.serving.Go(func() { s.accept(l) })
	return nil
}

// Socket returns the path of the socket.
func (s *Server) Socket() string { return s.path }

// Stats returns what the server has and has had.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Exports, st.Importers = len(s.exports), len(s.conns)
	return st
}

// Close removes the socket, withdraws every export, and waits as Export.Close does. If ctx ends first it is closed, and Close may be called
// again to wait on: ErrBusy. A second Close after success returns nil.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	all := slices.Collect(maps.Values(s.exports))
	s.mu.Unlock()

	var errs []error
	if first && s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	for _, e := range all {
		errs = append(errs, e.withdraw(statusStopped))
	}
	s.mu.Lock()
	for c, imports := range s.conns {
		if !imports { // it has not asked yet
			_ = c.Close()
		}
	}
	s.mu.Unlock()
	var held []error
	for _, e := range all {
		held = append(held, e.settle(ctx))
	}
	err := errors.Join(held...)
	if err == nil {
		s.serving.Wait() // it has nobody to wait for
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("close export server: %w", err)
	}
	return nil
}

// breath is how long accepting rests after an error, as that there are no file descriptors left.
const breath = 10 * time.Millisecond

func (s *Server) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(breath)
			continue
		}
		s.mu.Lock()
		switch {
		case s.closed:
			_ = c.Close()
		case len(s.conns) >= s.o.MaxImporters:
			s.stats.Busy++
			refuse(c, statusBusy)
			_ = c.Close()
		default:
			s.conns[c] = false
			s.serving.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

// refuse says why. A fresh socket has room for it.
func refuse(c *net.UnixConn, why status) {
	_, _ = c.Write((&reply{status: why}).encode())
}

// serve has a connection from its request to its end.
func (s *Server) serve(c *net.UnixConn) {
	cred, err := credentials(c)
	why := statusDenied
	if err == nil && slices.Contains(s.o.Allow, int(cred.Uid)) {
		why = s.attend(c, cred.Pid)
	} else {
		refuse(c, why)
	}
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	switch why {
	case statusOK:
	case statusDenied:
		s.stats.Denied++
	case statusUnknown, statusUnnamed:
		s.stats.Unknown++
	default:
		s.stats.Malformed++
	}
}

func (s *Server) granted(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Imports += n
}

// attend has the connection of an allowed process, of that number, and returns what was wrong with it.
func (s *Server) attend(c *net.UnixConn, pid int32) status {
	p, err := peerProcess(c, pid)
	if err != nil {
		return statusOK // it is gone
	}
	defer func() { _ = p.close() }()
	e, why := s.grant(c, p, pid)
	switch {
	case why != statusOK:
		refuse(c, why)
	case e != nil:
		why = stay(c, e.desc.Identity, p)
		e.leave(c)
	}
	return why
}

// stay returns when the importer touches the memory no more. It says so itself; if it says anything else, or nothing at its end, its
// process has to be gone: a connection ends before what a device does for its process.
func stay(c *net.UnixConn, id Identity, p *process) status {
	var watching sync.WaitGroup
	defer watching.Wait()
	defer func() { _ = p.close() }()
	dead := make(chan struct{})
	if p != nil {
		watching.Go(func() {
			if p.wait() == nil {
				close(dead)
				_ = c.SetReadDeadline(time.Now()) // its children may have the other end
			}
		})
	}
	b := make([]byte, requestBytes+1)
	n, err := heard(func() (int, error) { return c.Read(b) })
	if said, what, bad := decodeRequest(b[:n]); bad == nil && said == id && what == forEnd {
		return statusOK
	}
	if p != nil {
		_ = c.CloseWrite() // what it has imported is lost
		<-dead
	}
	if err == nil {
		return statusMalformed
	}
	return statusOK
}

// grant reads the request of c, of the process of that number, and answers it if that can be. It returns the export that c imports by now;
// none if all was said.
func (s *Server) grant(c *net.UnixConn, p *process, pid int32) (*Export, status) {
	_ = c.SetDeadline(time.Now().Add(s.o.RequestTimeout))
	b := make([]byte, requestBytes+1)
	var flags int
	n, err := heard(func() (n int, err error) {
		// Without room for control messages the kernel takes back what descriptors there are, and says so.
		n, _, flags, _, err = c.ReadMsgUnix(b, nil)
		return n, err
	})
	if err != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, statusMalformed
	}
	id, what, err := decodeRequest(b[:n])
	if err != nil || what == forEnd {
		return nil, statusMalformed
	}
	s.mu.Lock()
	e := s.exports[id]
	s.conns[c] = !s.closed && e != nil
	s.mu.Unlock()
	switch {
	case e == nil:
		return nil, statusUnknown
	case p == nil && e.desc.Device != "": // what its device does would outlive its connection unseen
		return nil, statusUnnamed
	}
	s.granted(1) // before the importer hears of it
	if why := e.admit(c, pid); why != statusOK {
		s.granted(-1)
		return nil, why
	}
	_ = c.SetDeadline(time.Time{})
	return e, statusOK
}

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

// Options are the options of a Server.
type Options struct {
	// Dir is the directory of the socket. If it does not exist, it is created with mode 0700.
	// Otherwise only this user may have access. Default DefaultDir().
	Dir string
	// Name is the file name of the socket. It must end in ".sock". Default: the process ID and a
	// random part.
	Name string
	// Allow lists the user IDs whose processes may import. Default: the user of this process.
	Allow []int
	// MaxImporters is the maximum number of connections. Each import of a process needs one.
	// Default 4096.
	MaxImporters int
	// RequestTimeout is the maximum time to receive a request. Default 5 s.
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

// Stats are the statistics of a Server.
type Stats struct {
	Exports   int   // including withdrawn exports that are still imported
	Importers int   // current connections
	Imports   int64 // granted imports since the start
	// Denied, Malformed, Unknown and Busy count refused requests by reason.
	Denied, Malformed, Unknown, Busy int64
}

// Server exports memory. Start starts it and Close stops it.
type Server struct {
	o    Options
	path string

	mu       sync.Mutex
	listener *net.UnixListener // set by Start
	closed   bool
	exports  map[Identity]*Export
	conns    map[*net.UnixConn]bool // true: the connection has an import
	stats    Stats
	serving  sync.WaitGroup
}

// NewServer checks the options and returns a server. Call Start to start it. It returns ErrInvalid
// for invalid options.
func NewServer(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("make export server: %w", err)
	}
	return &Server{
		o: o, path: filepath.Join(o.Dir, o.Name), exports: make(map[Identity]*Export), conns: make(map[*net.UnixConn]bool),
	}, nil
}

// Start creates the socket and serves it until Close. It returns ErrExists if the server was
// already started or another process listens at the path, and ErrClosed after Close. While another
// server starts in the same directory, it blocks until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("start export server: %w", errdefs.ErrClosed)
	case s.listener != nil:
		return fmt.Errorf("start export server: already started: %w", errdefs.ErrExists)
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

// Stats returns the statistics of the server.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Exports, st.Importers = len(s.exports), len(s.conns)
	return st
}

// Close removes the socket, withdraws every export, and waits like Export.Close. If ctx ends first,
// it returns ErrBusy. The server is closed then, and the caller may retry to wait for the
// importers. After success it returns nil.
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
		if !imports { // the request has not arrived yet
			_ = c.Close()
		}
	}
	s.mu.Unlock()
	var unclosed []error
	for _, e := range all {
		unclosed = append(unclosed, e.waitImporters(ctx))
	}
	err := errors.Join(unclosed...)
	if err == nil {
		s.serving.Wait() // all connections have ended
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("close export server: %w", err)
	}
	return nil
}

// acceptRetryDelay is the delay after a failed accept, which may fail for lack of file descriptors.
const acceptRetryDelay = 10 * time.Millisecond

func (s *Server) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptRetryDelay)
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

// refuse sends a status on a new connection. It does not block, because the socket's buffer is
// empty.
func refuse(c *net.UnixConn, why status) {
	_, _ = c.Write((&reply{status: why}).encode())
}

// serve serves a connection until it ends.
func (s *Server) serve(c *net.UnixConn) {
	cred, err := credentials(c)
	why := statusDenied
	if err == nil && slices.Contains(s.o.Allow, int(cred.Uid)) {
		why = s.serveImporter(c, cred.Pid)
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

// serveImporter serves the connection of an allowed process with ID pid and returns its final
// status.
func (s *Server) serveImporter(c *net.UnixConn, pid int32) status {
	p, err := peerProcess(c, pid)
	if err != nil {
		return statusOK // the process has disconnected
	}
	defer func() { _ = p.close() }()
	e, why := s.grant(c, p, pid)
	switch {
	case why != statusOK:
		refuse(c, why)
	case e != nil:
		why = waitImporter(c, e.desc.Identity, p)
		e.removeImporter(c)
	}
	return why
}

// waitImporter waits until the importer no longer accesses the memory. The importer confirms this
// with an end request. Without a confirmation, waitImporter waits for the end of the process,
// because copies by the importer's device may continue after the connection has ended.
func waitImporter(c *net.UnixConn, id Identity, p *process) status {
	var watching sync.WaitGroup
	defer watching.Wait()
	defer func() { _ = p.close() }()
	dead := make(chan struct{})
	if p != nil {
		watching.Go(func() {
			if p.wait() == nil {
				close(dead)
				_ = c.SetReadDeadline(time.Now()) // child processes may keep the connection open
			}
		})
	}
	b := make([]byte, requestBytes+1)
	n, err := readPacket(func() (int, error) { return c.Read(b) })
	if said, what, bad := decodeRequest(b[:n]); bad == nil && said == id && what == forEnd {
		return statusOK
	}
	if p != nil {
		_ = c.CloseWrite() // its imports are lost
		<-dead
	}
	if err == nil {
		return statusMalformed
	}
	return statusOK
}

// grant reads the request on c from process p with ID pid, and replies. It returns the export that
// is imported, or nil if the connection is finished.
func (s *Server) grant(c *net.UnixConn, p *process, pid int32) (*Export, status) {
	_ = c.SetDeadline(time.Now().Add(s.o.RequestTimeout))
	b := make([]byte, requestBytes+1)
	var flags int
	n, err := readPacket(func() (n int, err error) {
		// The kernel drops file descriptors without space and sets a flag.
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
	case p == nil && e.desc.Device != "": // its device may copy after the connection has ended
		return nil, statusUnnamed
	}
	s.granted(1) // before the importer receives the reply
	if why := e.admit(c, pid); why != statusOK {
		s.granted(-1)
		return nil, why
	}
	_ = c.SetDeadline(time.Time{})
	return e, statusOK
}

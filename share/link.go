package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// link is the connection by which an allocation was imported. It says nothing as long as that is exported, so that whatever can be
// read, and the end, says that it is not; it is looked at and left there, so that every look finds it.
type link struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	// exporter is the process, as children of it that it has forked may keep the connection open after its death. Nil where it cannot be
	// named: it is in another PID namespace, or the kernel has no descriptors of processes.
	exporter *os.File
	process  syscall.RawConn
}

// closeAll closes what the link has. Those who watch find that.
func (l *link) closeAll() error {
	err := l.conn.Close()
	if l.exporter != nil {
		err = errors.Join(err, l.exporter.Close())
	}
	return err
}

// follow opens the process at the other end.
func (l *link) follow(pid int32) error {
	if pid <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(int(pid), unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d is gone: %w", pid, errdefs.ErrLost)
	case err != nil:
		return nil //nolint:nilerr // the connection has to do
	}
	l.exporter = os.NewFile(uintptr(fd), "exporter")
	l.process, err = l.exporter.SyscallConn()
	return err
}

// dial asks the server that d names for its export, and returns the handle, whose descriptor is the caller's.
func dial(ctx context.Context, d *Descriptor, users []int) (_ *link, h device.Handle, err error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, network, d.Socket)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("process %d exports nothing any more: %w: %w", d.PID, errdefs.ErrLost, err)
		}
		return nil, h, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, h, errors.Join(fmt.Errorf("%T is no Unix socket: %w", c, errdefs.ErrInvalid), c.Close())
	}
	l := &link{conn: conn}
	defer func() {
		if err != nil {
			_ = l.closeAll()
		}
	}()
	cred, err := credentials(conn)
	if err != nil {
		return nil, h, err
	}
	if !slices.Contains(users, int(cred.Uid)) {
		return nil, h, fmt.Errorf("the exporter is of a user who is not allowed: %w", fs.ErrPermission)
	}
	if err := l.follow(cred.Pid); err != nil {
		return nil, h, err
	}
	if l.raw, err = conn.SyscallConn(); err != nil {
		return nil, h, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	h, err = ask(conn, d)
	if !stop() && err == nil {
		err = errors.Join(context.Cause(ctx), closeFiles(h))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("ask the exporter: %w: %w", context.Cause(ctx), err)
		}
		return nil, device.Handle{}, err
	}
	return l, h, nil
}

func closeFiles(h device.Handle) error {
	if h.Type.IsFD() && h.FD >= 0 {
		return unix.Close(h.FD)
	}
	return nil
}

// ask sends the request and reads the reply, with one descriptor or none.
func ask(conn *net.UnixConn, d *Descriptor) (h device.Handle, err error) {
	// Who is refused unheard finds that the other end is closed, and behind that the reason.
	if _, err := conn.Write(encodeRequest(d.Identity)); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return h, fmt.Errorf("ask the exporter: %w", err)
	}
	b, control := make([]byte, replyBytes+1), make([]byte, unix.CmsgSpace(4*4))
	n, nc, flags, _, err := conn.ReadMsgUnix(b, control)
	if errors.Is(err, unix.ECONNRESET) {
		n, nc, flags, _, err = conn.ReadMsgUnix(b, control)
	}
	if err != nil {
		return h, fmt.Errorf("read the exporter's reply: %w", err)
	}
	files, err := received(control[:nc])
	defer func() {
		if err != nil {
			for _, fd := range files {
				err = errors.Join(err, unix.Close(fd))
			}
		}
	}()
	if err != nil {
		return h, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return h, fmt.Errorf("the exporter's reply is cut off: flags %#x: %w", flags, errdefs.ErrInvalid)
	}
	r, err := decodeReply(b[:n])
	if err != nil {
		return h, err
	}
	if err := r.status.err(); err != nil {
		return h, err
	}
	h, want := r.handle, 0
	if h.Type.IsFD() {
		want = 1
	}
	switch {
	case h.Type != d.Type || h.Bytes != d.Bytes || h.Off != d.Offset || r.length != d.Length:
		return h, fmt.Errorf("the exporter has %d bytes at %d of %d by %s under this identity: %w", r.length, h.Off, h.Bytes, h.Type, errdefs.ErrMismatch)
	case len(files) != want:
		return h, fmt.Errorf("%d descriptors came with a handle of type %s: %w", len(files), h.Type, errdefs.ErrInvalid)
	case want == 1:
		h.FD = files[0]
	}
	h.Device = d.Device
	return h, nil
}

// received returns the descriptors that came with a message, also where the rest of it makes no sense.
func received(control []byte) (files []int, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("control message: %w: %w", errdefs.ErrInvalid, err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, fmt.Errorf("control message: %w: %w", errdefs.ErrInvalid, err)
		}
		files = append(files, fds...)
	}
	return files, nil
}

// live returns why the memory is not exported any more, or nil. It does not block.
func (l *link) live() error {
	var why error
	if err := l.raw.Control(func(fd uintptr) { _, why = glance(int(fd)) }); err != nil {
		return fmt.Errorf("the import was closed: %w", errdefs.ErrClosed)
	}
	if why != nil || l.process == nil {
		return why
	}
	ended := false
	if err := l.process.Control(func(fd uintptr) { ended = exited(int(fd)) }); err != nil {
		return fmt.Errorf("the import was closed: %w", errdefs.ErrClosed)
	}
	if ended {
		return errGone
	}
	return nil
}

// watch calls over with why the memory is not exported any more, once that is so or the link is closed, and returns when nobody watches
// any more: when it is closed.
func (l *link) watch(over func(error)) {
	closed := fmt.Errorf("the import was closed: %w", errdefs.ErrClosed)
	var process sync.WaitGroup
	defer process.Wait()
	if l.process != nil {
		process.Go(func() {
			if err := l.process.Read(func(fd uintptr) bool { return exited(int(fd)) }); err != nil {
				over(closed)
				return
			}
			over(errGone)
		})
	}
	var why error
	err := l.raw.Read(func(fd uintptr) (ended bool) {
		ended, why = glance(int(fd))
		return ended
	})
	if err != nil {
		why = closed
	}
	over(why)
}

// exited reports whether the process of that descriptor has.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// glance looks whether anything has come, and leaves it there.
func glance(fd int) (over bool, why error) {
	var b [replyBytes]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return true, fmt.Errorf("the exporter is gone: %w", err)
		case n == 0:
			return true, errGone
		}
		r, err := decodeReply(b[:n])
		if err == nil && r.status == statusOK {
			err = fmt.Errorf("the exporter replies twice: %w", errdefs.ErrInvalid)
		}
		if err == nil {
			err = r.status.err()
		}
		return true, err
	}
}

var errGone = errors.New("the exporter is gone")

package share

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
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
	id       Identity // that was asked for, or zero
	conn     *net.UnixConn
	raw      syscall.RawConn
	exporter *process
}

// acknowledge tells the exporter that nothing of this process touches the memory any more, nor will. An exporter that is gone does not
// hear it.
func (l *link) acknowledge() {
	if l.id != (Identity{}) {
		_, _ = l.conn.Write(encodeRequest(l.id, forEnd))
	}
}

// closeAll closes what the link has, for an import by which nothing is copied any more. Those who watch find that.
func (l *link) closeAll() error {
	l.acknowledge()
	return errors.Join(l.conn.Close(), l.exporter.close())
}

// dial asks the server that d names for its export, and returns the handle, whose descriptor is the
// caller's.
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
	if l.exporter, err = openProcess(cred.Pid); err != nil {
		return nil, h, err
	}
	if l.raw, err = conn.SyscallConn(); err != nil {
		return nil, h, err
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Now())
		close(hurried)
	})
	l.id = d.Identity
	h, err = ask(conn, d)
	if !stop() {
		<-hurried // what is still to be said is not: the exporter may have granted it, and waits for the last word
		if err == nil {
			err = errors.Join(context.Cause(ctx), closeFiles(h))
		}
		err = errors.Join(err, conn.SetDeadline(time.Time{}))
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
	// Who is refused unheard finds that the other end is closed, and reads the reason all the same.
	if _, err := conn.Write(encodeRequest(d.Identity, forMemory)); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return h, fmt.Errorf("ask the exporter: %w", err)
	}
	b, control := make([]byte, replyBytes+1), make([]byte, unix.CmsgSpace(4*4))
	var nc, flags int
	n, err := heard(func() (n int, err error) {
		n, nc, flags, _, err = conn.ReadMsgUnix(b, control)
		return n, err
	})
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
		return errImportClosed
	}
	if why != nil {
		return why
	}
	return l.exporter.live()
}

// watch calls over with why the memory is not exported any more, once that is so or the link is closed, and returns when nobody watches
// any more: when it is closed.
func (l *link) watch(over func(error)) {
	var process sync.WaitGroup
	defer process.Wait()
	if l.exporter != nil {
		process.Go(func() {
			if err := l.exporter.wait(); err != nil {
				over(errImportClosed)
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
		why = errImportClosed
	}
	over(why)
}

// glance looks whether anything has come, and leaves it there.
func glance(fd int) (over bool, why error) {
	var b [replyBytes]byte
	n, err := heard(func() (int, error) {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		for errors.Is(err, unix.EINTR) {
			n, _, err = unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
		if n == 0 && err == nil {
			err = io.EOF
		}
		return n, err
	})
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case errors.Is(err, io.EOF):
		return true, errGone
	case err != nil:
		return true, fmt.Errorf("the exporter is gone: %w", err)
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

var (
	errGone         = errors.New("the exporter is gone")
	errImportClosed = fmt.Errorf("the import was closed: %w", errdefs.ErrClosed)
)

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

// link is the connection of an import to its exporter. Data or the end of the connection means that
// the memory is no longer exported. The data is not consumed, so that every check detects it.
type link struct {
	id       Identity // requested identity, or zero
	conn     *net.UnixConn
	raw      syscall.RawConn
	exporter *process
}

// acknowledge confirms to the exporter that this process no longer accesses the memory.
func (l *link) acknowledge() {
	if l.id != (Identity{}) {
		_, _ = l.conn.Write(encodeRequest(l.id, forEnd))
	}
}

// closeAll closes the link after the last use of the memory. Watchers are notified.
func (l *link) closeAll() error {
	l.acknowledge()
	return errors.Join(l.conn.Close(), l.exporter.close())
}

// dial requests the export d from its server and returns the handle. The caller owns the handle's
// file descriptor.
func dial(ctx context.Context, d *Descriptor, users []int) (_ *link, h device.Handle, err error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, network, d.Socket)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("process %d no longer exports memory: %w: %w", d.PID, errdefs.ErrLost, err)
		}
		return nil, h, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, h, errors.Join(fmt.Errorf("%T is not a Unix socket: %w", c, errdefs.ErrInvalid), c.Close())
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
		return nil, h, fmt.Errorf("the exporter belongs to a user that is not allowed: %w", fs.ErrPermission)
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
		// Do not send the end request: the exporter may have granted the export and expects an
		// importer that closes its connection.
		<-hurried
		if err == nil {
			err = errors.Join(context.Cause(ctx), closeFiles(h))
		}
		err = errors.Join(err, conn.SetDeadline(time.Time{}))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("request the memory from its exporter: %w: %w", context.Cause(ctx), err)
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

// ask sends the request and reads the reply, which has at most one file descriptor.
func ask(conn *net.UnixConn, d *Descriptor) (h device.Handle, err error) {
	// A server that refuses a connection closes it without reading the request. The reply with the
	// reason is still readable.
	if _, err := conn.Write(encodeRequest(d.Identity, forMemory)); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return h, fmt.Errorf("request the memory from its exporter: %w", err)
	}
	b, control := make([]byte, replyBytes+1), make([]byte, unix.CmsgSpace(4*4))
	var nc, flags int
	n, err := readPacket(func() (n int, err error) {
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

// received returns the file descriptors of a message. It returns them even if the rest of the
// message is malformed, so that they can be closed.
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

// checkExported returns nil if the memory is still exported, otherwise the reason. It does not
// block.
func (l *link) checkExported() error {
	var why error
	if err := l.raw.Control(func(fd uintptr) { _, why = peek(int(fd)) }); err != nil {
		return errImportClosed
	}
	if why != nil {
		return why
	}
	return l.exporter.live()
}

// watch waits until the memory is no longer exported and calls over with the reason. It returns
// when the link is closed.
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
		ended, why = peek(int(fd))
		return ended
	})
	if err != nil {
		why = errImportClosed
	}
	over(why)
}

// peek reports whether data or the end of the connection has arrived. It does not consume the data.
func peek(fd int) (over bool, why error) {
	var b [replyBytes]byte
	n, err := readPacket(func() (int, error) {
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
		err = fmt.Errorf("the exporter replied twice: %w", errdefs.ErrInvalid)
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

package testkit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns a terminal with the given number of columns, and a function that closes it and
// returns its output.
func Terminal(tb testing.TB, columns int) (tty *os.File, written func() string) {
	tb.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		Skip(tb, "terminals", err.Error())
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		Skip(tb, "terminals", err.Error())
	}
	var all []byte
	read := make(chan struct{})
	go func() {
		defer close(read)
		all, _ = io.ReadAll(master) // EIO means that the other side is closed
	}()
	written = sync.OnceValue(func() string {
		_ = tty.Close()
		<-read
		_ = master.Close()
		return strings.ReplaceAll(string(all), "\r\n", "\n")
	})
	tb.Cleanup(func() { written() })
	return tty, written
}

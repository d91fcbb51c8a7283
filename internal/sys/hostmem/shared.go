package hostmem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
)

// sealed fixes the length of a file of AllocShared. Otherwise the file could become shorter, and
// processes that have mapped it would fault.
const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// AllocShared is like Alloc for memory that other processes can map: a memfd. The caller closes the
// descriptor, before or after it frees the memory.
func AllocShared(bytes int64) (b []byte, fd int, err error) {
	if bytes <= 0 || bytes != int64(int(bytes)) {
		return nil, -1, fmt.Errorf("map %d bytes of a file in memory: %w", bytes, errdefs.ErrInvalid)
	}
	if fd, err = unix.MemfdCreate("kvlane", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return nil, -1, fmt.Errorf("make a file in memory: %w", err)
	}
	if err = unix.Ftruncate(fd, bytes); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		err = fmt.Errorf("make a file in memory of %d bytes: %w: %w", bytes, errdefs.ErrNoMemory, err)
	} else {
		b, err = MapShared(fd, bytes)
	}
	if err != nil {
		return nil, -1, errors.Join(err, unix.Close(fd))
	}
	return b, fd, nil
}

// MapShared maps a file of AllocShared, usually of another process. The caller closes the
// descriptor, and frees the memory with Free. It returns ErrMismatch if the file has another length
// or could become shorter.
func MapShared(fd int, bytes int64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat a file in memory: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size != bytes || bytes <= 0 || bytes != int64(int(bytes)) {
		return nil, fmt.Errorf("map %d bytes of a file of %d bytes with seals %#x: %w", bytes, st.Size, seals, errdefs.ErrMismatch)
	}
	b, err := unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of a file in memory: %w: %w", bytes, errdefs.ErrNoMemory, err)
	}
	leak.Add(leak.HostBytes, bytes)
	return b, nil
}

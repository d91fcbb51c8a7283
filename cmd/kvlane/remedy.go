package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/object"
)

// step is advice for errors of one kind. After an error, the command line prints the text of the
// first step in nextSteps that applies.
type step struct {
	applies func(f *failure) bool
	text    func(f *failure) string
}

// failure is a failed command and its error.
type failure struct {
	cmd *cobra.Command
	err error
}

var nextSteps = []step{
	{func(f *failure) bool { return errdefs.Remedy(f.err) != "" }, func(f *failure) string { return errdefs.Remedy(f.err) + "." }},
	{func(f *failure) bool { return f.rpcStep() != "" }, (*failure).rpcStep},
	{isA[*outputError], text("free space at the destination of standard output, or redirect it.")},
	{isA[*noGPUError], (*failure).withoutGPU},
	{isErr(fs.ErrPermission, syscall.EROFS), (*failure).notAllowed},
	{func(f *failure) bool { return f.otherTier() != "" }, (*failure).otherTier},
	{all(of("store verify"), isErr(errdefs.ErrNotFound)), text(noStore)},
	{all(of("store"), isErr(errdefs.ErrNotFound)), (*failure).noMarker},
	{all(of("store"), isErr(errdefs.ErrCorrupt)), text("kvlane store verify DIR reports the damage, and with --repair repairs what is repairable.")},
	{isErr(fs.ErrNotExist), (*failure).notFound},
	{isErr(file.ErrPinLimit), text("unpin other blocks, or give the bound with which engines open the directory: --max-bytes SIZE.")},
	{isErr(syscall.ENOSPC, syscall.EDQUOT, errdefs.ErrNoSpace), text("free space there: kvlane store gc DIR --max-bytes SIZE removes the coldest blocks of a directory, and --file-bytes or --log-bytes bounds a tier.")},
	{isErr(syscall.EADDRINUSE), text("another process listens at this address: stop it, or give another port; port 0 is any free port.")},
	{isErr(syscall.EADDRNOTAVAIL), text("this host does not have this address: give one of its own, 127.0.0.1:PORT for this host only or 0.0.0.0:PORT for all.")},
	{isErr(syscall.ECONNREFUSED), text("no process listens there: start kvlane transfer serve --name HOST:PORT, or for a benchmark kvlane bench transfer --mode target, with the same --protocol and --metadata.")},
	{isA[*net.AddrError], text("give HOST:PORT, an IPv6 address in brackets: [::1]:15995.")},
	{all(of("cluster"), isA[*net.DNSError]), text("give a name that this host can resolve; dns+srv://_SERVICE._PROTOCOL.DOMAIN needs SRV records.")},
	{all(of("cluster"), isErr(context.DeadlineExceeded)), text("check that etcd listens at these addresses, and --etcd-ca if it uses TLS.")},
	{isA[*net.DNSError], text("give HOST:PORT: an address, or a name that this host can resolve, and a numeric port.")},
	{all(changed("log-dir"), isErr(errdefs.ErrBusy)), text("one process may open a log: stop the other one, or give another --log-dir; several processes may share a --file-dir.")},
	{isErr(file.ErrPinned), text("kvlane store unpin DIR with the same --key or --identity, then try again; kvlane store ls DIR --pinned lists the pinned blocks.")},
	{all(of("store rm", "store pin", "store unpin"), isErr(errdefs.ErrBusy)), text("stop the process that has the directory open, or try again when the blocks are not in use.")},
	{all(of("store"), isErr(errdefs.ErrBusy)), text("one process may open a log: stop the other one, then try again.")},
	{all(changed("device-index", "peer-index"), isErr(errdefs.ErrNotFound)), text("kvlane doctor lists the devices; indices start at 0.")},
	{all(changed("nic"), isErr(errdefs.ErrNotFound)), text("kvlane doctor lists the NICs, and kvlane topo their distance to GPUs.")},
}

const noStore = "kvlane store reads a directory that kvlane replay --file-dir or --log-dir, or a program with the library, has made, " +
	"or the directory above such folders: check DIR."

// nextStep returns advice for the error of a failed command, or "".
func nextStep(cmd *cobra.Command, err error) string {
	f := &failure{cmd, err}
	for _, s := range nextSteps {
		if s.applies(f) {
			return s.text(f)
		}
	}
	return ""
}

func text(s string) func(*failure) string { return func(*failure) string { return s } }

func isErr(targets ...error) func(*failure) bool {
	return func(f *failure) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(f.err, t) })
	}
}

func isA[E error](f *failure) bool {
	var e E
	return errors.As(f.err, &e)
}

func all(a, b func(*failure) bool) func(*failure) bool {
	return func(f *failure) bool { return a(f) && b(f) }
}

// changed returns a condition that holds if the command line has one of the flags.
func changed(flags ...string) func(*failure) bool {
	return func(f *failure) bool { return slices.ContainsFunc(flags, f.cmd.Flags().Changed) }
}

// of returns a condition that holds if the command has the path or is below it.
func of(paths ...string) func(*failure) bool {
	return func(f *failure) bool { return within(f.cmd, paths) }
}

// path returns the path of the file in the error, or "".
func (f *failure) path() string {
	var p *fs.PathError
	if errors.As(f.err, &p) {
		return p.Path
	}
	return ""
}

// withoutGPU returns the text about devices that need no GPU.
func (f *failure) withoutGPU() string {
	other := "host the CPU"
	if flag := f.cmd.Flags().Lookup("device"); flag != nil && flag.DefValue == noDevice {
		other = "none the host"
	}
	return "kvlane doctor has details; --device sim is a simulated GPU, " + other + "."
}

// notAllowed returns advice for a file that the user may not access or that is on a read-only file
// system.
func (f *failure) notAllowed() string {
	path := f.path()
	if path == "" {
		return "run the command as a user with permission, or as root."
	}
	info, err := os.Lstat(path)
	// find the directory above that exists; its owner is relevant
	for err != nil && path != "/" && path != "." {
		path = filepath.Dir(path)
		info, err = os.Lstat(path)
	}
	if errors.Is(f.err, syscall.EROFS) {
		return fmt.Sprintf("the file system of %s is mounted read-only: give a directory elsewhere, or --file-read-only to serve loads from it.", path)
	}
	owner := "another user"
	if err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			owner = userName(s.Uid)
		}
	}
	text := fmt.Sprintf("%s belongs to %s: run the command as a user with permission", path, owner)
	if !of("store")(f) {
		text += ", or give a directory of your own" + ownDir()
	}
	return text + "."
}

// ownDir returns an example of a directory that the user can create, or "". A service's user may
// have no access to its home directory.
func ownDir() string {
	mine, err := os.UserCacheDir()
	if err == nil {
		if _, err = os.Stat(mine); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return ""
	}
	return ", such as " + filepath.Join(mine, "kvlane")
}

// inKernel reports whether a missing path would be on a file system without storage, such as /proc.
func inKernel(path string) bool {
	var st unix.Statfs_t
	for err := error(syscall.ENOENT); err != nil; {
		if path == "/" || path == "." {
			return false
		}
		path = filepath.Dir(path)
		err = unix.Statfs(path, &st)
	}
	return slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC}, st.Type)
}

// userName returns the name of a user, or the user ID if it has no name.
func userName(id uint32) string {
	n := strconv.FormatUint(uint64(id), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return "user " + n
}

// noMarker returns advice for a directory without kvlane.json: it belongs to a block server, or the
// file can be restored from the blocks.
func (f *failure) noMarker() string {
	for _, arg := range f.cmd.Flags().Args() {
		if object.IsURL(arg) {
			continue
		}
		if blockhost.Recognises(arg) {
			return present.Name(arg) + " is the directory of a block server: give the directory of a tenant in it."
		}
		dirs, err := foldersOf(f.cmd.Context(), bucketAccess{}, arg)
		if err == nil && slices.ContainsFunc(dirs, lostMarker) {
			return fmt.Sprintf("kvlane.json was lost; kvlane store verify --repair %s writes it again from the blocks.", shellWord(arg))
		}
	}
	return noStore
}

// lostMarker reports whether dir has blocks but no kvlane.json.
func lostMarker(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "kvlane.json")); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	blocks, err := fs.Glob(os.DirFS(dir), "[0-9a-f][0-9a-f]/*")
	return err == nil && len(blocks) > 0 || log.Recognises(dir)
}

// notFound returns advice for a missing file or directory.
func (f *failure) notFound() string {
	path := f.path()
	if path == "" {
		return ""
	}
	isDir, isOut, given := false, false, ""
	f.cmd.Flags().Visit(func(flag *pflag.Flag) {
		named := slices.ContainsFunc(flagValues(flag), func(v string) bool { return filepath.Clean(v) == filepath.Clean(path) })
		if named {
			given = flag.Name
		}
		s := settings.ByName(flag.Name)
		isDir = isDir || named && (flag.Name == "dir" || s != nil && s.IsDir())
		isOut = isOut || named && slices.Contains([]string{"out", "svg"}, flag.Name)
	})
	parent := filepath.Dir(path)
	_, err := os.Stat(parent)
	switch {
	case isDir && changed("file-read-only")(f):
		return "check the name: a read-only directory must exist."
	case isDir && inKernel(path):
		return fmt.Sprintf("directories cannot be created in a kernel file system: give one elsewhere%s.", ownDir())
	case isDir:
		return fmt.Sprintf("create it: mkdir -p %s", shellWord(path))
	case isOut && err != nil:
		return fmt.Sprintf("create its folder: mkdir -p %s", shellWord(parent))
	case given != "":
		return fmt.Sprintf("check the name that --%s gives.", given)
	case within(f.cmd, []string{"replay"}):
		return "check the name; - is standard input, and kvlane demo has a trace of its own."
	}
	return "check the name."
}

// otherTier returns advice for a directory of the file tier given as a log, or the reverse.
func (f *failure) otherTier() string {
	if !errors.Is(f.err, errdefs.ErrMismatch) {
		return ""
	}
	text := ""
	f.cmd.Flags().Visit(func(flag *pflag.Flag) {
		for _, dir := range flagValues(flag) {
			_, err := os.Stat(filepath.Join(dir, "kvlane.json"))
			switch isLog := log.Recognises(dir); {
			case err != nil:
			case flag.Name == "file-dir" && isLog:
				text = fmt.Sprintf("%s is a log: give it by --log-dir.", dir)
			case flag.Name == "log-dir" && !isLog:
				text = fmt.Sprintf("%s is a directory of files: give it by --file-dir.", dir)
			}
		}
	})
	return text
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/log"
)

// step is what to do about errors of a sort. The first of nextSteps whose when holds is said, below the error of a command that failed;
// what a wrong command line should be, its error says by itself.
type step struct {
	when func(f *failure) bool
	say  func(f *failure) string
}

// failure is a command that failed.
type failure struct {
	cmd *cobra.Command
	err error
}

var nextSteps = []step{
	{isA[*outputError], says("free space where standard output goes, or send it elsewhere.")},
	{isA[*noGPUError], (*failure).withoutGPU},
	{isErr(fs.ErrPermission, syscall.EROFS), (*failure).notAllowed},
	{(*failure).otherSort, (*failure).openAsOther},
	{all(of("store verify"), isErr(errdefs.ErrNotFound)), says(madeByOthers)},
	{all(of("store"), isErr(errdefs.ErrNotFound)), (*failure).noMarker},
	{all(of("store"), isErr(errdefs.ErrCorrupt)), says("kvlane store verify DIR says what is damaged, and with --repair mends what can be mended.")},
	{isErr(fs.ErrNotExist), (*failure).notThere},
	{isErr(syscall.ENOSPC, syscall.EDQUOT, errdefs.ErrNoSpace), says("make room there: kvlane store gc DIR --max-bytes SIZE removes the coldest blocks of a directory, and --file-bytes or --log-bytes bounds a tier.")},
	{all(about("allocate the cache"), isErr(errdefs.ErrNoMemory)), says("give a smaller --cache-bytes; kvlane doctor shows the memory and its limits.")},
	{isErr(syscall.EADDRINUSE), says("another process serves at this address: end it, or give another port; port 0 takes any that is free.")},
	{isErr(syscall.EADDRNOTAVAIL), says("this host has no such address: give one of its own, 127.0.0.1:PORT for this host alone or 0.0.0.0:PORT for all.")},
	{isErr(syscall.ECONNREFUSED), says("nobody listens there: start kvlane transfer serve --name HOST:PORT, or for a benchmark kvlane bench transfer --mode target, with the same --protocol and --metadata.")},
	{all(isErr(errdefs.ErrNotSupported), about("the memory is reached by ")), says("give --protocol with the path that reaches it, or --protocol auto.")},
	{isA[*net.AddrError], says("give HOST:PORT, an IPv6 address in brackets: [::1]:15995.")},
	{isA[*net.DNSError], says("give HOST:PORT, the host by an address or by a name that this host can look up, the port as a number.")},
	{all(changed("log-dir"), isErr(errdefs.ErrBusy)), says("a log belongs to one process: end the other one, or give another --log-dir; several processes share a --file-dir.")},
	{all(of("store"), isErr(errdefs.ErrBusy)), says("a log belongs to one process: end the one that has it open, then try again.")},
	{all(ofHardware, about("build tag nonic")), says("take a build with the code for NICs: make build, or a release's binary.")},
	{all(ofHardware, about("libibverbs")), says(doctor.InstallVerbs + "; kvlane doctor says what else copies by NIC take, and --rdma-provider soft tries them without one.")},
	{all(ofHardware, about("open NIC", "requires a NIC")), says("this takes an RDMA NIC with an active port: kvlane doctor says what is missing, and --rdma-provider soft tries the path without one.")},
	{all(changed("device-index", "peer-index"), isErr(errdefs.ErrNotFound)), says("kvlane doctor lists the devices; indices count from 0.")},
	{all(changed("nic"), isErr(errdefs.ErrNotFound)), says("kvlane doctor lists the NICs, and kvlane topo which of them is near which GPU.")},
}

const madeByOthers = "kvlane store takes a directory that kvlane replay --file-dir or --log-dir, or a program with the library, has made, " +
	"or the directory above such folders: see that DIR is one."

// nextStep says what to do about an error of a command that failed, or nothing where nothing is known, or the error says it.
func nextStep(cmd *cobra.Command, err error) string {
	f := &failure{cmd, err}
	for _, s := range nextSteps {
		if s.when(f) {
			return s.say(f)
		}
	}
	return ""
}

func says(text string) func(*failure) string { return func(*failure) string { return text } }

func isErr(targets ...error) func(*failure) bool {
	return func(f *failure) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(f.err, t) })
	}
}

func isA[E error](f *failure) bool {
	var e E
	return errors.As(f.err, &e)
}

func all(conditions ...func(*failure) bool) func(*failure) bool {
	return func(f *failure) bool {
		return !slices.ContainsFunc(conditions, func(holds func(*failure) bool) bool { return !holds(f) })
	}
}

func changed(flags ...string) func(*failure) bool {
	return func(f *failure) bool { return slices.ContainsFunc(flags, f.cmd.Flags().Changed) }
}

// about reports whether the error's text has one of these.
func about(texts ...string) func(*failure) bool {
	return func(f *failure) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(f.err.Error(), t) })
	}
}

// ofHardware is about what the machine lacks, or what is there and does not work.
var ofHardware = isErr(errdefs.ErrNotSupported, errdefs.ErrBroken)

// of is about a command, or those below it.
func of(path string) func(*failure) bool {
	return func(f *failure) bool { return within(f.cmd, []string{path}) }
}

// path is the file that the error is about, or "".
func (f *failure) path() string {
	var p *fs.PathError
	if errors.As(f.err, &p) {
		return p.Path
	}
	return ""
}

// withoutGPU is about what this machine can be used for without a GPU.
func (f *failure) withoutGPU() string {
	other := "host the CPU"
	if flag := f.cmd.Flags().Lookup("device"); flag != nil && flag.DefValue == noDevice {
		other = "none the host"
	}
	return "kvlane doctor says more; --device sim is a simulated GPU, " + other + "."
}

// notAllowed is about a file that this user may not use, or that nobody may write.
func (f *failure) notAllowed() string {
	path := f.path()
	if path == "" {
		return "run it as a user who may, or as root."
	}
	info, err := os.Lstat(path)
	for err != nil && path != "/" && path != "." { // the owner of what is above it decides
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
	text := fmt.Sprintf("%s belongs to %s: run it as a user who may use that", path, owner)
	if !of("store")(f) {
		text += ", or give a directory of your own" + ownDir()
	}
	return text + "."
}

// ownDir returns an example of a directory that this user can make, or nothing: a service's user
// may not enter its home.
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

// ofKernel reports whether a path that is not there would be on a file system without disk or
// memory behind it, such as /proc.
func ofKernel(path string) bool {
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

// userName names a user, by the number where it has no name.
func userName(id uint32) string {
	n := strconv.FormatUint(uint64(id), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return "user " + n
}

// noMarker is about a directory without kvlane.json. If blocks are left, kvlane.json can be made from them.
func (f *failure) noMarker() string {
	for _, arg := range f.cmd.Flags().Args() {
		dirs, err := foldersOf(arg)
		if err == nil && slices.ContainsFunc(dirs, lostMarker) {
			return fmt.Sprintf("kvlane.json was lost, and kvlane store verify --repair %s makes it from the blocks.", shellWord(arg))
		}
	}
	return madeByOthers
}

// lostMarker reports whether dir has blocks, and no kvlane.json.
func lostMarker(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "kvlane.json")); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	blocks, err := fs.Glob(os.DirFS(dir), "[0-9a-f][0-9a-f]/*")
	return err == nil && len(blocks) > 0 || log.Recognises(dir)
}

// notThere is about a file or folder that there is not.
func (f *failure) notThere() string {
	path := f.path()
	if path == "" {
		return ""
	}
	isDir, isOut := false, false
	f.cmd.Flags().Visit(func(flag *pflag.Flag) {
		named := slices.ContainsFunc(flagValues(flag), func(v string) bool { return filepath.Clean(v) == filepath.Clean(path) })
		isDir = isDir || named && slices.Contains([]string{"dir", "file-dir", "log-dir", "profile-dir"}, flag.Name)
		isOut = isOut || named && slices.Contains([]string{"out", "svg"}, flag.Name)
	})
	parent := filepath.Dir(path)
	_, err := os.Stat(parent)
	switch {
	case isDir && changed("file-read-only")(f):
		return "see that the name is right: a directory that is only read has to be there."
	case isDir && ofKernel(path):
		return fmt.Sprintf("no directory can be made there, among the kernel's files: give one elsewhere%s.", ownDir())
	case isDir:
		return fmt.Sprintf("make it: mkdir -p %s", shellWord(path))
	case isOut && err != nil:
		return fmt.Sprintf("make its folder: mkdir -p %s", shellWord(parent))
	case within(f.cmd, []string{"replay"}):
		return "see that the name is right; - is standard input, and kvlane demo brings a trace of its own."
	}
	return "see that the name is right."
}

// otherSort reports whether a directory of files was given as one of a log, or the other way round.
func (f *failure) otherSort() bool { return f.openAsOther() != "" }

func (f *failure) openAsOther() string {
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

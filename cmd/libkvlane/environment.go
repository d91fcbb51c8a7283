package main

// extern char **environ;
import "C"

import (
	"os"
	"strings"
	"unsafe"
)

// useEnvironment copies C's environment, which has the changes by setenv and os.environ, into Go's.
// Go's own is read from the memory of the process's arguments when the library is loaded. A program
// that sets its title, such as vLLM, overwrites that memory.
func useEnvironment() {
	now := make(map[string]string)
	for at := C.environ; at != nil && *at != nil; at = (**C.char)(unsafe.Add(unsafe.Pointer(at), unsafe.Sizeof(*at))) {
		if name, value, ok := strings.Cut(C.GoString(*at), "="); ok {
			now[name] = value
		}
	}
	for _, was := range os.Environ() {
		name, _, _ := strings.Cut(was, "=")
		if _, ok := now[name]; !ok {
			_ = os.Unsetenv(name) // an invalid name was never set
		}
	}
	for name, value := range now {
		if was, ok := os.LookupEnv(name); !ok || was != value {
			_ = os.Setenv(name, value) // an invalid name has no reader
		}
	}
}

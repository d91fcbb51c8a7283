package main

// extern char **environ;
import "C"

import (
	"os"
	"strings"
	"unsafe"
)

// useEnvironment takes the environment of the C library, which has the program's changes, as those
// of os.environ in Python. Go has read the memory where the environment was when the process began.
// Programs that set their title, as vLLM does, overwrite it.
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

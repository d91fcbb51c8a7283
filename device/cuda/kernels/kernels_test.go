package kernels

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestPTXIsWhatTheSourceCompilesTo(t *testing.T) {
	if _, err := exec.LookPath("clang-16"); err != nil {
		testkit.Skip(t, "clang", err.Error())
	}
	if out, err := exec.CommandContext(t.Context(), "./generate.sh", "-check").CombinedOutput(); err != nil {
		t.Fatalf("generate.sh -check: %v\n%s", err, out)
	}
}

func TestPTXHasEveryKernel(t *testing.T) {
	for name, params := range map[string]int{
		device.KernelCopyList:     2,
		device.KernelCopyPaged:    7,
		device.KernelPatternFill:  5,
		device.KernelPatternCheck: 6,
	} {
		_, body, ok := bytes.Cut(PTX, []byte(".visible .entry "+name+"("))
		if !ok {
			t.Errorf("no kernel %s", name)
			continue
		}
		head, _, _ := bytes.Cut(body, []byte(")"))
		if got := bytes.Count(head, []byte(".param .u64")); got != params {
			t.Errorf("%s has %d 64-bit parameters, want %d", name, got, params)
		}
		if !bytes.Contains(body[:bytes.IndexByte(body, '{')], []byte(".maxntid 512, 1, 1")) {
			t.Errorf("%s is not bound to %d threads a block", name, Threads)
		}
	}
}

// What an older driver or GPU would refuse, and what would make the kernels slow.
func TestPTXIsPortableAndKeepsDataInRegisters(t *testing.T) {
	text := string(PTX)
	for _, want := range []string{".version 7.0\n", ".target sm_70\n", "ld.global.cs.v4.u32", "st.global.cs.v4.u32"} {
		if !strings.Contains(text, want) {
			t.Errorf("PTX lacks %q", want)
		}
	}
	for _, bad := range []string{".local", "st.local", "ld.local", "call", ".file"} {
		if strings.Contains(text, bad) {
			t.Errorf("PTX contains %q", bad)
		}
	}
}

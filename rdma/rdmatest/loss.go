package rdmatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// LossEnv is the environment variable that specifies the packet loss of the NICs' link, for example
// "1%". It is not set for links without loss.
const LossEnv = "KVLANE_VERBS_LOSS"

// Lossy reports whether LossEnv is set. In that case the test also fails at its end unless the link
// dropped packets and the NICs retransmitted some: without losses it would not test retransmission.
// Lossy is for soft-RoCE on links whose losses come from tc, as in tools/rxe/run.
func Lossy(t *testing.T) bool {
	t.Helper()
	if os.Getenv(LossEnv) == "" {
		return false
	}
	dropped, resent := losses(t)
	t.Cleanup(func() {
		t.Helper()
		d, r := losses(t)
		d, r = d-dropped, r-resent
		t.Logf("the link has dropped %d packets, and NICs sent again %d times", d, r)
		if d == 0 || r == 0 {
			t.Errorf("%s is %s, and nothing was lost", LossEnv, os.Getenv(LossEnv))
		}
	})
	return true
}

var droppedCount = regexp.MustCompile(`dropped (\d+)`)

// losses returns the number of packets that the links of this host dropped and that its NICs
// retransmitted.
func losses(t *testing.T) (dropped, resent int) {
	t.Helper()
	out, err := exec.Command("tc", "-s", "qdisc").Output()
	if err != nil {
		t.Fatalf("read the links' dropped packets: %v", err)
	}
	for _, m := range droppedCount.FindAllStringSubmatch(string(out), -1) {
		dropped += count(t, m[1])
	}
	files, err := filepath.Glob("/sys/class/infiniband/*/ports/*/hw_counters/completer_retry_err")
	if err != nil || len(files) == 0 {
		t.Fatalf("no NIC counts what it sends again: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		resent += count(t, strings.TrimSpace(string(b)))
	}
	return dropped, resent
}

func count(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Package deploy tests the files below deploy: Dockerfiles, chart, manifests and units. Its folder of tools is made by the script build.
package deploy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// need returns the absolute path that a variable of the environment has.
func need(t *testing.T, name string) string {
	t.Helper()
	path := os.Getenv(name)
	if path == "" {
		t.Fatalf("%s is not set: run make deploy", name)
	}
	return path
}

// tool returns the path of something that the script build has made.
func tool(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(need(t, "KVLANE_DEPLOY"), name)
}

// binary returns the path of the binary kvlane.
func binary(t *testing.T) string {
	t.Helper()
	return need(t, "KVLANE_BINARY")
}

// run runs a command and returns what it printed.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// metric returns the sum of a metric's values.
func metric(t *testing.T, port, name string) float64 {
	t.Helper()
	answer, err := http.Get("http://127.0.0.1:" + port + "/metrics") //nolint:noctx // the server is local
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// An instruction of a Dockerfile.
type instruction struct{ name, arguments string }

// readDockerfile returns the instructions of a file below deploy/docker. Continued lines are joined.
func readDockerfile(t *testing.T, name string) []instruction {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/docker", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []instruction
	lines := bufio.NewScanner(bytes.NewReader(bytes.ReplaceAll(text, []byte("\\\n"), nil)))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if name, arguments, found := strings.Cut(line, " "); found && !strings.HasPrefix(line, "#") {
			all = append(all, instruction{name, strings.TrimSpace(arguments)})
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestDockerfilesPassTheLinter(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "deploy/docker/*.Dockerfile"))
	if err != nil || len(files) != 2 {
		t.Fatalf("Dockerfiles: %q, %v", files, err)
	}
	run(t, exec.Command(tool(t, "venv/bin/hadolint"), files...)) //nolint:gosec // of the test
}

// The instructions of the binary's image run in Debian's base system, as root up to USER. The binary then starts as the image's user.
func TestImageOfTheBinary(t *testing.T) {
	image := filepath.Join(t.TempDir(), "root")
	run(t, exec.Command("cp", "-a", tool(t, "root"), image)) //nolint:gosec // of the test
	for _, name := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		run(t, exec.Command("cp", name, image+name)) //nolint:gosec // of the test
	}
	user, entry := "", ""
	for _, i := range readDockerfile(t, "kvlane.Dockerfile") {
		switch i.name {
		case "RUN":
			cmd := exec.Command("chroot", image, "/bin/sh", "-c", i.arguments) //nolint:gosec // the image's
			cmd.Env = append(os.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive")
			run(t, cmd)
		case "COPY":
			fields := strings.Fields(i.arguments)
			if len(fields) != 3 || fields[1] != "bin/dist/kvlane-linux-${TARGETARCH}" {
				t.Fatalf("COPY %s: the test does not know it", i.arguments)
			}
			run(t, exec.Command("install", "-m", strings.TrimPrefix(fields[0], "--chmod="), binary(t), image+fields[2])) //nolint:gosec // of the test
		case "USER":
			user = i.arguments
		case "ENTRYPOINT":
			entry = strings.Trim(i.arguments, `[]"`)
		}
	}
	out := run(t, exec.Command("chroot", "--userspec="+user, image, "/usr/bin/env", "-C", "/var/lib/kvlane", "sh", "-c", "touch mine && id -u && "+entry+" version")) //nolint:gosec // the image's
	if !strings.HasPrefix(out, "10001\n") {
		t.Errorf("the image's user: %s", out)
	}
}

// The instructions of vLLM's image run in an environment that has vLLM for CPUs below it.
func TestImageOfVLLM(t *testing.T) {
	venv, dir := filepath.Join(t.TempDir(), "venv"), t.TempDir()
	vllm := need(t, "KVLANE_VENV")
	run(t, exec.Command(filepath.Join(vllm, "bin/python"), "-m", "venv", venv)) //nolint:gosec // of the test
	site := "lib/python3.11/site-packages"
	if err := os.WriteFile(filepath.Join(venv, site, "vllm.pth"), []byte(filepath.Join(vllm, site)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wheels, err := filepath.Glob(filepath.Join(need(t, "KVLANE_WHEEL"), "kvlane-*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels: %q, %v", wheels, err)
	}
	for _, i := range readDockerfile(t, "vllm.Dockerfile") {
		switch i.name {
		case "COPY":
			if i.arguments != "bin/wheel/kvlane-*.whl /opt/kvlane/" {
				t.Fatalf("COPY %s: the test does not know it", i.arguments)
			}
			run(t, exec.Command("cp", wheels[0], dir)) //nolint:gosec // of the test
		case "RUN":
			cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(i.arguments, "/opt/kvlane/", dir+"/")) //nolint:gosec // the image's
			cmd.Env = append(os.Environ(), fmt.Sprintf("PATH=%s/bin:/usr/bin:/bin", venv), "PYTHONPATH=")
			run(t, cmd)
		}
	}
}

// systemd accepts the units, with the binary at a path that exists, and their flags are flags of the binary.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(root, "deploy/systemd/*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("units: %q, %v", files, err)
	}
	verify := []string{"verify", "--man=no"}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/kvlane"), []byte(binary(t)))
		unit := filepath.Join(dir, strings.Replace(filepath.Base(name), "@.", "@var-cache-kvlane.", 1))
		if err := os.WriteFile(unit, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, ".env") {
			verify = append(verify, unit)
		}
	}
	if out := run(t, exec.Command("systemd-analyze", verify...)); out != "" { //nolint:gosec // of the test
		t.Errorf("systemd-analyze: %s", out)
	}

	text, err := os.ReadFile(filepath.Join(root, "deploy/systemd/kvlane-blockd.service"))
	if err != nil {
		t.Fatal(err)
	}
	help := run(t, exec.Command(binary(t), "blockd", "--help")) //nolint:gosec // of the test
	for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(string(text), -1) {
		if !strings.Contains(help, flag+" ") {
			t.Errorf("kvlane blockd has no flag %s", flag)
		}
	}
}

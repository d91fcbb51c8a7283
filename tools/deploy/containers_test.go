package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// token is the one of the secret's only tenant.
const token = "0123456789abcdef0123456789abcdef"

// writeSecret writes the files that a chart's secret has, with a certificate for loopback, and returns their folder.
func writeSecret(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "blocks"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{
		"tls.crt": public, "ca.crt": public, "token": []byte(token), "tokens": []byte("engines " + token + "\n"),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A container runs as the chart says, with folders of the test for its volumes and free ports for its own.
type container struct {
	ports map[string]string // by name
	errs  bytes.Buffer
	cmd   *exec.Cmd
}

// startContainer starts a container's command of the binary kvlane.
func startContainer(t *testing.T, c *core.Container, secret string) *container {
	t.Helper()
	r := &container{ports: map[string]string{}}
	replaced := []string{}
	for _, p := range c.Ports {
		r.ports[p.Name] = freePort(t)
		replaced = append(replaced, fmt.Sprintf("0.0.0.0:%d", p.ContainerPort), "127.0.0.1:"+r.ports[p.Name])
	}
	for _, m := range c.VolumeMounts {
		dir := secret
		if m.Name != "credentials" {
			dir = t.TempDir()
		}
		replaced = append(replaced, m.MountPath, dir)
	}
	line := slices.Concat(c.Command, c.Args)
	if line[0] != "kvlane" {
		t.Fatalf("container %s runs %q, not kvlane", c.Name, line[0])
	}
	for i := range line {
		line[i] = strings.NewReplacer(replaced...).Replace(line[i])
	}
	r.cmd = exec.Command(binary(t), line[1:]...) //nolint:gosec // the chart's
	r.cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	for _, e := range c.Env {
		r.cmd.Env = append(r.cmd.Env, e.Name+"="+e.Value)
	}
	r.cmd.Stderr = &r.errs
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// probe waits until a probe's request succeeds, for as long as the kubelet would.
func (r *container) probe(t *testing.T, name string, p *core.Probe) {
	t.Helper()
	if p == nil || p.HTTPGet == nil {
		t.Fatalf("no %s probe by HTTP", name)
	}
	url := "http://127.0.0.1:" + r.ports[p.HTTPGet.Port.StrVal] + p.HTTPGet.Path
	deadline := time.Now().Add(time.Minute)
	for {
		status := 0
		if answer, err := http.Get(url); err == nil { //nolint:gosec,noctx // the chart's; the server is local
			answer.Body.Close()
			status = answer.StatusCode
		}
		if status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s probe %s: status %d; standard error:\n%s", name, url, status, r.errs.String())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// stop ends the container as a kubelet does, and checks that it exits within its grace period.
func (r *container) stop(t *testing.T, grace time.Duration) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v; standard error:\n%s", err, r.errs.String())
		}
	case <-time.After(grace):
		t.Errorf("runs %v after SIGTERM; standard error:\n%s", grace, r.errs.String())
	}
}

// The container answers its probes, serves a client that has the secret's token, and ends in time.
func TestBlockServersContainer(t *testing.T) {
	for name, values := range map[string][]string{
		"memory": {"--set", "blockServers.cacheGiB=1"},
		"disk":   {"--set", "blockServers.cacheGiB=1,blockServers.disk.sizeGiB=2,blockServers.disk.bytesGiB=1"},
	} {
		t.Run(name, func(t *testing.T) {
			pods := render(t, values...).pods
			pod := pods["kvlane-blocks"]
			c := &pod.Containers[0]
			secret := writeSecret(t)
			r := startContainer(t, c, secret)
			r.probe(t, "startup", c.StartupProbe)
			r.probe(t, "readiness", c.ReadinessProbe)
			r.probe(t, "liveness", c.LivenessProbe)

			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			replay := exec.CommandContext(ctx, binary(t), "replay", filepath.Join(root, "replay/testdata/mooncake-conversation.jsonl.gz"), //nolint:gosec // of the test
				"--device", "sim", "--limit", "10", "--layers", "2", "--kv-heads", "1", "--head-size", "64", "--cache-bytes", "16MiB",
				"--pipeline", "cache|remote", "--remote", "127.0.0.1:"+r.ports["blocks"],
				"--remote-ca", filepath.Join(secret, "ca.crt"), "--remote-token", filepath.Join(secret, "token"))
			if out, err := replay.CombinedOutput(); err != nil {
				t.Fatalf("replay: %v\n%s", err, out)
			}
			if n := metric(t, r.ports["metrics"], "kvlane_blockd_blocks"); n == 0 {
				t.Error("the server has no blocks after the replay")
			}
			r.stop(t, time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second)
		})
	}
}

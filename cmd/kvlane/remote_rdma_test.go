package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// startRDMA opens the gateway of a server with RDMA.
func (s *remoteServer) startRDMA(t *testing.T) {
	t.Helper()
	if s.devices == nil {
		return
	}
	s.set = s.devices.NewSet(registry.Options{})
	nic, err := s.set.NIC("soft0")
	must(t, err)
	s.gateway, err = gateway.New(gateway.Options{NIC: nic, Kind: mem.KindHost, Memory: mem.BufferHooks{Alloc: hostmem.AllocRegion, Free: hostmem.FreeRegion}})
	must(t, err)
}

// stopRDMA closes the gateway.
func (s *remoteServer) stopRDMA(t *testing.T) {
	t.Helper()
	if s.devices == nil {
		return
	}
	s.remote += s.gateway.Stats().Requests
	if err := s.gateway.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := s.set.Close(); err != nil {
		t.Error(err)
	}
}

// remoteRDMA are the flags of a replay that uses block servers by RDMA.
func remoteRDMA(servers, device string, more ...string) []string {
	return append([]string{
		"--device", device, "--json", "--log-level", "error", "--cache-bytes", "1MiB", "--pipeline", "cache|remote", "--remote", servers,
		"--remote-ca", "server.pem", "--remote-token", "token", "--remote-rdma",
	}, more...)
}

// A replay over software NICs has exactly the hits of a large cache. The servers restart 20 times:
// misses, but no failed dumps and no wrong bytes.
func TestReplayByRDMA(t *testing.T) {
	for _, device := range []string{"sim", "host"} {
		t.Run(device, func(t *testing.T) { replayByRDMA(t, device) })
	}
}

// The same with the KV cache in the memory of a GPU.
func TestCUDAReplayByRDMA(t *testing.T) {
	if cudatest.Count() == 0 {
		testkit.Skip(t, "cuda", "there is no GPU")
	}
	replayByRDMA(t, "cuda")
}

func replayByRDMA(t *testing.T, device string) {
	t.Helper()
	trace := traceFile(t, prompts(100))
	t.Chdir(t.TempDir())
	credentialFiles(t)
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	ctx := autonic.WithProvider(t.Context(), p)
	var servers [2]*remoteServer
	for i := range servers {
		servers[i] = &remoteServer{
			addr: "127.0.0.1:0", devices: registry.NewDevices(p),
			credentials: auth.ServerOptions{CertFile: "server.pem", KeyFile: "server.key", TokensFile: "tokens"},
		}
		servers[i].start(t)
		t.Cleanup(func() { servers[i].stop(t) })
	}
	list := servers[0].addr + "=2," + servers[1].addr
	want := replayReport(t.Context(), t, "replay", trace, "--device", "sim", "--json", "--pipeline", "cache", "--cache-bytes", "128MiB").PrefixHits
	args := append([]string{"replay", trace}, remoteRDMA(list, device, "--remote-timeout-ms", longMS)...)
	r := replayReport(ctx, t, args...)
	if r.PrefixHits != want || want == 0 || r.Mismatches+r.LoadErrors+r.DumpErrors != 0 {
		t.Errorf("%d hits, want %d; %d mismatches, %d load errors, %d dump errors", r.PrefixHits, want, r.Mismatches, r.LoadErrors, r.DumpErrors)
	}
	var requests int64
	for _, s := range servers { // the runs of short prompts with one beginning are in one server
		g := s.gateway.Stats()
		if requests += g.Requests; g.Attached == 0 || g.Refused != 0 || g.Denied != 0 {
			t.Errorf("statistics of the gateway %+v", g)
		}
	}
	if requests == 0 {
		t.Error("no request passed by RDMA")
	}
	n := 0
	replayDuringRestarts(ctx, t, append(args, "--remote-timeout-ms", "500"), 25*time.Millisecond, func() {
		s := servers[n%len(servers)]
		n++
		s.stop(t)
		time.Sleep(5 * time.Millisecond)
		s.start(t)
	})
	if servers[0].remote+servers[1].remote == 0 {
		t.Error("no request passed by RDMA during the restarts")
	}
}

// Servers that refuse RDMA are used over sockets, and the notes have the reason.
func TestReplayNotesRefusedRDMA(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	credentials := auth.ServerOptions{CertFile: "server.pem", KeyFile: "server.key", TokensFile: "tokens"}
	for _, c := range []struct {
		server *remoteServer
		more   []string
		want   string
	}{
		{&remoteServer{credentials: credentials}, []string{"--remote-ca", "server.pem", "--remote-token", "token"}, "the server refuses RDMA: not supported"},
		{&remoteServer{devices: registry.NewDevices(p)}, nil, "the server refuses RDMA: denied"},
	} {
		c.server.addr = "127.0.0.1:0"
		c.server.start(t)
		var out, errs bytes.Buffer
		code := run(autonic.WithProvider(t.Context(), p), small(append([]string{
			"replay", traceFile(t, goodLine), "--remote", c.server.addr, "--remote-rdma",
		}, c.more...)...), &out, &errs)
		if code != exitOK || !strings.Contains(out.String(), "blocks of block server "+c.server.addr+" pass over sockets: "+c.want) ||
			!strings.Contains(out.String(), "block servers that authenticate this process move blocks by RDMA: NIC soft0, ") {
			t.Errorf("exit code %d, %q:\n%s", code, errs.String(), out.String())
		}
		c.server.stop(t)
	}
}

// prompts returns a trace of requests that share prefixes.
func prompts(requests int) string {
	r, ids := rand.New(rand.NewPCG(3, 4)), 0
	var all [][]string
	var b strings.Builder
	for range requests {
		var prompt []string
		if len(all) > 0 && r.IntN(4) > 0 {
			old := all[r.IntN(len(all))]
			prompt = append(prompt, old[:1+r.IntN(len(old))]...)
		}
		for range 1 + r.IntN(4) {
			prompt = append(prompt, strconv.Itoa(ids))
			ids++
		}
		all = append(all, prompt)
		fmt.Fprintf(&b, `{"timestamp": 0, "input_length": %d, "output_length": 5, "hash_ids": [%s]}`+"\n", 512*len(prompt), strings.Join(prompt, ", "))
	}
	return b.String()
}

// verbsNICs returns the names of two NICs of the machine, for example those of tools/rxe/run.
func verbsNICs(t *testing.T) (client, server string) {
	t.Helper()
	names := strings.Split(os.Getenv("KVLANE_VERBS_DEVICES"), ",")
	if len(names) < 2 {
		testkit.Skip(t, "verbs", "KVLANE_VERBS_DEVICES does not name two NICs")
	}
	return names[0], names[1]
}

var byRDMA = regexp.MustCompile(`, (\d+) by RDMA, 0 refused, 0 denied`)

// A replay by a NIC of the machine has exactly the hits of a large cache. The server's process is
// killed 20 times: misses, but no failed dumps and no wrong bytes.
func TestVerbsReplay(t *testing.T) {
	own, nic := verbsNICs(t)
	trace, bin := traceFile(t, prompts(40)), command(t)
	t.Chdir(t.TempDir())
	credentialFiles(t)
	flags := []string{"--cache-bytes", "64MiB", "--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens", "--nic", nic}
	s := startBlockd(t, bin, "127.0.0.1:0", flags...)
	small := []string{"replay", trace, "--layers", "2", "--kv-heads", "2", "--head-size", "64", "--dtype", "bfloat16"}
	want := replayReport(t.Context(), t, append(small, "--device", "sim", "--json", "--pipeline", "cache", "--cache-bytes", "128MiB")...).PrefixHits
	args := append(small, remoteRDMA(s.addr, "sim", "--nic", own, "--remote-timeout-ms", "10000")...)
	start := time.Now()
	r := replayReport(t.Context(), t, args...)
	t.Logf("%d hits of %d, %d blocks, in %v", r.PrefixHits, want, r.DumpedBlocks, time.Since(start))
	if r.PrefixHits != want || want == 0 || r.Mismatches+r.LoadErrors+r.DumpErrors != 0 {
		t.Errorf("%d hits, want %d; %d mismatches, %d load errors, %d dump errors", r.PrefixHits, want, r.Mismatches, r.LoadErrors, r.DumpErrors)
	}
	replayDuringRestarts(t.Context(), t, args, 200*time.Millisecond, func() {
		_, _ = s.end(t, syscall.SIGKILL) // a killed process is no success
		s = startBlockd(t, bin, s.addr, flags...)
	})
	rest, err := s.end(t, syscall.SIGTERM)
	if m := byRDMA.FindStringSubmatch(rest); err != nil || m == nil || m[1] == "0" {
		t.Errorf("%v, %q, %s", err, rest, s.stderr.String())
	}
}

// The server's process is stopped while its NIC moves blocks: see TestStoppedBlockd.
func TestVerbsStoppedBlockd(t *testing.T) {
	own, nic := verbsNICs(t)
	bin := command(t)
	t.Chdir(t.TempDir())
	credentialFiles(t)
	s := startBlockd(t, bin, "127.0.0.1:0", "--cache-bytes", "16MiB", "--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens", "--nic", nic)
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	n, err := gdr.OpenHost(dev.Info(), gdr.Config{NICs: []string{own}}, nil)
	must(t, err)
	t.Cleanup(func() { must(t, n.Close(context.Background())) })
	d, err := n.OpenDomain()
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	creds, err := auth.NewClient(auth.ClientOptions{CAFile: "server.pem", TokenFile: "token"})
	must(t, err)
	var last *blockClient
	s.stopInMidBatch(t, func() *blockClient {
		last = openBlockClient(t, blockio.ClientOptions{
			Token: creds.Token(), RDMA: &blockio.RDMAOptions{NIC: d.NIC, Connect: d.Connect, Memory: mem.BufferHooks{Alloc: dev.AllocHost, Free: dev.Free}},
			Dial: func(ctx context.Context) (net.Conn, error) {
				return (&tls.Dialer{Config: creds.TLS(s.addr)}).DialContext(ctx, "tcp", s.addr)
			},
		})
		return last
	})
	if st := last.Stats(); st.Remote == 0 || st.RemoteMissed+st.RemoteRefused != 0 {
		t.Errorf("statistics of the client %+v", st)
	}
	_, err = s.end(t, syscall.SIGTERM)
	must(t, err)
}

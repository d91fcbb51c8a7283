package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestPTXIsWhatTheSourceCompilesTo(t *testing.T) {
	testkit.SkipRace(t, "a compiler runs")
	if _, err := exec.LookPath("clang-16"); err != nil {
		testkit.Skip(t, "clang", err.Error())
	}
	if out, err := exec.CommandContext(t.Context(), "./generate.sh", "-check").CombinedOutput(); err != nil {
		t.Fatalf("generate.sh -check: %v\n%s", err, out)
	}
}

func TestPTXHasEveryKernel(t *testing.T) {
	found := 0
	for _, k := range Kernels() {
		_, body, ok := bytes.Cut(PTX(), []byte(".visible .entry "+k.Name+"("))
		if !ok {
			t.Errorf("no kernel %s", k.Name)
			continue
		}
		found++
		head, _, _ := bytes.Cut(body, []byte(")"))
		if got := bytes.Count(head, []byte(".param .u64")); got != k.Args || got > device.MaxKernelArgs {
			t.Errorf("%s has %d 64-bit parameters, want %d", k.Name, got, k.Args)
		}
		if !bytes.Contains(body[:bytes.IndexByte(body, '{')], fmt.Appendf(nil, ".maxntid %d, 1, 1", Threads)) {
			t.Errorf("%s is not bound to %d threads a block", k.Name, Threads)
		}
	}
	if all := bytes.Count(PTX(), []byte(".visible .entry ")); all != found {
		t.Errorf("the PTX has %d kernels, but %d are listed", all, found)
	}
}

// The PTX contains no instruction that an older driver or GPU refuses, or that makes the kernels
// slow.
func TestPTXIsPortableAndKeepsDataInRegisters(t *testing.T) {
	text := string(PTX())
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

// xxh3Words reads the constants of xxh3.cuh.
func xxh3Words(t *testing.T) []uint64 {
	t.Helper()
	src, err := os.ReadFile("xxh3.cuh")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := bytes.Cut(src, []byte("xxh3_words[48] = {"))
	table, _, _ = bytes.Cut(table, []byte("}"))
	var words []uint64
	for _, m := range regexp.MustCompile(`0x([0-9a-f]+)ull`).FindAllSubmatch(table, -1) {
		w, err := strconv.ParseUint(string(m[1]), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, w)
	}
	if len(words) != 48 {
		t.Fatalf("xxh3.cuh has %d words, want 48", len(words))
	}
	return words
}

// leafSum computes XXH3-64 of a leaf in the order of xxh3.cuh: the additions of each lane are
// summed first and scrambled afterwards.
func leafSum(leaf []byte, words []uint64) uint64 {
	const last, merge, start, scramble = 24, 32, 40, 16
	var blocks [4][8]uint64
	for round := range 8 {
		for lane := range 32 {
			b := leaf[512*round+16*lane:]
			x, y := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
			word := lane/4 + 2*(lane%4) + round%2*8
			if round == 7 && lane >= 28 {
				word = last + 2*(lane%4)
			}
			product := func(key uint64) uint64 { return key & 0xffff_ffff * (key >> 32) }
			acc := &blocks[round/2]
			acc[2*(lane%4)] += product(x^words[word]) + y
			acc[2*(lane%4)+1] += product(y^words[word+1]) + x
		}
	}
	sum := uint64(4096)
	sum *= 0x9e3779b185ebca87
	var acc [8]uint64
	for i := range acc {
		acc[i] = words[start+i]
		for b := range blocks {
			acc[i] += blocks[b][i]
			if b < 3 {
				acc[i] = (acc[i] ^ acc[i]>>47 ^ words[scramble+i]) * 0x9e3779b1
			}
		}
		acc[i] ^= words[merge+i]
	}
	for i := 0; i < 8; i += 2 {
		hi, lo := bits.Mul64(acc[i], acc[i+1])
		sum += hi ^ lo
	}
	sum = (sum ^ sum>>37) * 0x165667919e3779f9
	return sum ^ sum>>32
}

func TestLeafSumIsXXH3(t *testing.T) {
	words := xxh3Words(t)
	leaf := make([]byte, device.LeafBytes)
	rng := rand.NewChaCha8([32]byte{7})
	for i := range 100 {
		if got, want := leafSum(leaf, words), xxh3.Hash(leaf); got != want {
			t.Fatalf("leaf %d: %#x, XXH3 is %#x", i, got, want)
		}
		_, _ = rng.Read(leaf) // the first leaf is all zeros
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/owner"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// storePrompt stores the blocks of a prompt in a directory of a kind, and returns their keys.
func storePrompt(t *testing.T, kind, dir string, g block.Geometry, tokens []int64) (keys []block.Key) {
	t.Helper()
	layout, err := g.Layout()
	must(t, err)
	id := g.Identity("", "secret")
	f := block.Format{Layout: layout, Identity: id.Digest()}
	formats := block.Formats{f}
	keys, err = formats.TokenKeys(0, tokens, g.BlockTokens)
	must(t, err)
	var c interface {
		OpenTier(ctx context.Context) (tier.Tier, error)
	} = &file.Config{Dirs: []string{dir}, Formats: formats, Identities: []block.Identity{id}}
	if kind == "log" {
		c = &log.Config{Dir: dir, Formats: formats, Identities: []block.Identity{id}}
	}
	tr, err := c.OpenTier(t.Context())
	must(t, err)
	for _, key := range keys {
		e := tiertest.Buffer(t, layout.ImageBytes())
		tiertest.Seal(t, f, e.Bytes(), key, 0)
		must(t, tr.Put(t.Context(), key, e))
	}
	must(t, tr.Close(t.Context()))
	return keys
}

func idList(tokens []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(tokens), " ", ","), "[]")
}

// "kvlane store why" names the stored prefix of a prompt and the cause for the next block, in both
// kinds of directories.
func TestStoreWhy(t *testing.T) {
	for _, kind := range []string{"file", "log"} {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "blocks")
			tokens := make([]int64, 5*smallGeometry.BlockTokens+3)
			for i := range tokens {
				tokens[i] = int64(1000 + i)
			}
			keys := storePrompt(t, kind, dir, smallGeometry, tokens)
			why := func(args ...string) string {
				t.Helper()
				code, stdout, stderr := execute(t, append([]string{"store", "why", dir}, args...)...)
				if code != exitOK {
					t.Errorf("why %v: exit code %d, %s%s", args, code, stdout, stderr)
				}
				return stdout
			}
			prompt := []string{"--tokens", idList(tokens)}
			contains := func(got string, want ...string) {
				t.Helper()
				for _, w := range want {
					if !strings.Contains(got, w) {
						t.Errorf("%q is missing in:\n%s", w, got)
					}
				}
			}
			const century = "20"
			contains(why(prompt...), "verdict  all 5 blocks are stored\n", "block 4  "+keys[4].String()[:12]+"... is stored in tier "+kind+" since "+century)

			if code, _, stderr := execute(t, "store", "rm", dir, "--key", keys[3].String()); code != exitOK {
				t.Fatal(stderr)
			}
			process := fmt.Sprintf(", process %d (", os.Getpid())
			contains(why(prompt...), "verdict  the first 3 of 5 blocks are stored; block 3 was removed from tier "+kind+" by a request at "+century, process,
				"; stored too: 1 of the later blocks,")
			contains(why("--key", keys[3].String()), "verdict  the block was removed from tier "+kind+" by a request at ")
			contains(why("--key", keys[1].String()), "verdict  the block is stored in tier "+kind)

			name := filepath.Join(t.TempDir(), "tokens.json")
			text, err := json.Marshal(tokens)
			must(t, err)
			must(t, os.WriteFile(name, text, 0o600))
			var out dirWhy
			must(t, json.Unmarshal([]byte(why("--tokens-file", name, "--json")), &struct {
				*dirWhy
				Blocks *[]any `json:"blocks"` // their cause and state are text
			}{dirWhy: &out}))
			if out.Directory != dir || !strings.HasPrefix(out.Verdict, "the first 3 of 5 blocks are stored") || out.Removals != 1 {
				t.Errorf("%+v", out)
			}
			hashes, err := block.HashTokens(nil, nil, tokens, smallGeometry.BlockTokens)
			must(t, err)
			contains(why("--hashes", fmt.Sprintf("%x,%x", hashes[:32], hashes[32:64])), "verdict  all 2 blocks are stored\n")
			contains(why("--tokens", idList(tokens[1:])), "verdict  the first of 5 blocks is not stored; block 0 was never stored in tier "+kind+", or removed before ",
				"next     compare the engine's identity")

			if code, _, stderr := execute(t, "store", "gc", dir, "--max-bytes", "0"); code != exitOK {
				t.Fatal(stderr)
			}
			contains(why(prompt...), "block 0 was removed from tier "+kind+" by garbage collection at ")

			if got := why("--tokens", "1,2"); got != "verdict  there is no whole block: the prompt has 2 tokens, fewer than a block\n" {
				t.Errorf("a short prompt: %s", got)
			}
			contains(why("--key", tiertest.Key(1).String()), "next     a key includes the identity: ask by --tokens or --hashes, or compare it with the keys of kvlane store ls\n")

			// The identity.
			contains(why(append(prompt, "--expect", "dtype=bf16", "--expect", "salt=secret", "--expect", "block_tokens=16")...), "block 0 was removed from tier")
			contains(why(append(prompt, "--expect", "dtype=fp8", "--expect", "head_size=128")...),
				`verdict  it holds blocks of another identity: dtype: expected "fp8_e4m3", found "bfloat16"; head size: expected 128, found 64`)
			contains(why(append(prompt, "--expect", "salt=other")...), "verdict  it holds blocks of another identity: salt: another one\n")
		})
	}
}

// Of several folders, the one with most of the prompt comes first, and those of other identities are
// named with the fields that differ.
func TestStoreWhyOfSeveralFolders(t *testing.T) {
	parent := t.TempDir()
	tokens := make([]int64, 3*smallGeometry.BlockTokens)
	other := smallGeometry
	other.DType = "float16"
	storePrompt(t, "file", filepath.Join(parent, "a"), other, tokens[:other.BlockTokens])
	storePrompt(t, "file", filepath.Join(parent, "b"), smallGeometry, tokens)
	code, stdout, stderr := execute(t, "store", "why", parent, "--tokens", idList(tokens))
	lines := strings.Split(stdout, "\n")
	if code != exitOK || !strings.HasPrefix(lines[0], "verdict  "+filepath.Join(parent, "b")+": all 3 blocks are stored") || len(lines) < 6 ||
		!strings.HasPrefix(lines[4], "verdict  "+filepath.Join(parent, "a")+": the first 1 of 3 blocks are stored; block 1 is not stored in tier file, and no removal is recorded") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, "store", "why", parent, "--tokens", idList(tokens), "--expect", "dtype=float16", "--json")
	var all []struct {
		Directory string
		Differs   []string `json:"identity_differs"`
		Blocks    []struct {
			Block   int
			Key     string
			State   string
			Stored  time.Time
			Removed *tier.Removal
		}
	}
	if code != exitOK {
		t.Fatal(stderr)
	}
	must(t, json.Unmarshal([]byte(stdout), &all))
	if len(all) != 2 || len(all[0].Differs) != 0 || len(all[0].Blocks) != 3 || all[0].Blocks[0].State != "ready" || all[0].Blocks[0].Stored.IsZero() ||
		all[0].Blocks[2].State != "absent" || all[0].Blocks[2].Block != 2 || all[0].Blocks[2].Removed != nil ||
		len(all[1].Differs) != 1 || !strings.Contains(all[1].Differs[0], "bfloat16") || len(all[1].Blocks) != 0 {
		t.Errorf("%s", stdout)
	}
}

// The verdict about a block that a directory does not know is that of an owner that knows it.
func TestStoreWhyConsultsOwners(t *testing.T) {
	for reason, known := range map[string]bool{"no space": true, "": false} {
		text, err := json.Marshal(tier.Why{Tiers: []tier.InTier{{Tier: "cache"}, {Tier: "file", Explanation: tier.Explanation{Refused: reason}}}})
		must(t, err)
		w := dirWhy{Verdict: "unknown", next: "ask"}
		w.consult([]ownerWhy{{Process: "process 7", Error: "closed"}, {Process: "process 8", answers: []owner.Answer{{Text: "was not stored", Why: text}}}})
		if len(w.Owners) != 2 || (w.next == "") != known || (w.Verdict == "unknown; process 8: the block was not stored") != known {
			t.Errorf("%q: %+v", reason, w)
		}
	}
}

// A block server's directory has digests instead of identities in words. Its fields are not compared.
func TestStoreWhyWithoutIdentity(t *testing.T) {
	storeWith(t, 1, func(t *testing.T, dir string, _ block.Format, _ func() tier.Tier) {
		code, stdout, stderr := execute(t, "store", "why", dir, "--key", tiertest.Key(0).String(), "--expect", "dtype=fp8")
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, "has no identity in words, only the digest ") || !strings.Contains(stderr, ": leave out --expect") {
			t.Errorf("exit code %d, %s%s", code, stdout, stderr)
		}
	})
}

func TestStoreWhyRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blocks")
	storePrompt(t, "file", dir, smallGeometry, make([]int64, smallGeometry.BlockTokens))
	for want, args := range map[string][]string{
		"give the blocks by one of --key KEY":    {},
		"give the blocks by one of":              {"--tokens", "1", "--hashes", "00"},
		"--key 12: parse block key":              {"--key", "12"},
		`--tokens: "x" is not a token id`:        {"--tokens", "1,x"},
		"--tokens-file has no token id":          {"--tokens-file", os.DevNull},
		"--tokens-file: open /nowhere":           {"--tokens-file", "/nowhere"},
		`--hashes: "xy" is not hexadecimal`:      {"--hashes", "xy"},
		`unknown field "models"`:                 {"--tokens", "1", "--expect", "models=x"},
		"--expect model: give FIELD=VALUE":       {"--tokens", "1", "--expect", "model"},
		"cannot unmarshal string into Go struct": {"--tokens", "1", "--expect", "head_size=big"},
	} {
		if code, stdout, stderr := execute(t, append([]string{"store", "why", dir}, args...)...); code != exitUsage || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%v: exit code %d, want %q: %s%s", args, code, want, stdout, stderr)
		}
	}
}

// The name of a process is chosen by its user, and must not control the terminal.
func TestNamesOfOwnersAreEscaped(t *testing.T) {
	w := dirWhy{known: true, Owners: []ownerWhy{{Process: "process 1 (\x1b[2J)", Error: "none"}}}
	for _, row := range w.rows(false, true) {
		if strings.Contains(row[0]+row[1], "\x1b") && row[0] != "verdict" {
			t.Errorf("the row is %q", row)
		}
	}
}

package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// question selects the blocks to explain.
type question struct {
	keys        []string
	tokens      string
	tokensFile  string
	hashes      []string
	blockTokens int
	expect      []string

	// Parsed.
	blocks   []block.Key
	prompt   []int64
	engine   [][]byte // hashes of the engine
	identity map[string]any
}

func newStoreWhyCommand() *cobra.Command {
	var asJSON bool
	var q question
	cmd := &cobra.Command{
		Use:   "why DIR",
		Short: "Explain where the blocks of a prompt are, or why they are missing",
		Long: `Explain for each block of a prompt, or for a key, since when it is stored and when it was last used; or why it is missing: when it was
removed, by which cause and process, or that it was never stored, is damaged, or has another identity. The first line is the verdict.

A prompt is given as token ids, for engines whose hashes are those of kvlane's hash_tokens (transformers, programs with the library), or as the
engine's block hashes. The identity is that of each folder. With --expect the folders whose identity differs from the engine's are named, with the fields:
those of "kvlane store stat --json".

The causes are in the removal log of a directory, which keeps the last removals: 64,000 at least if the directory has no bound or one of a GiB or more.
The command changes nothing, and engines may use the directory meanwhile. Memory, block servers and refusals are known to the engine alone:
engines of this user that have the directory open are asked, and their answers are shown with their processes.`,
		Example: `  kvlane store why /var/cache/kvlane --tokens 128000,9906,1917,0
  kvlane store why /var/cache/kvlane --tokens-file prompt.txt --expect model=meta-llama/Llama-3.1-8B --expect dtype=bfloat16
  kvlane store why /var/cache/kvlane --key 0000529c5dfa3ff8af88db2191711ca50caa0a371be3b6a51584ab3a82d7dc32`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.parse(); err != nil {
				return err
			}
			bucket := accessOf(cmd)
			dirs, err := foldersOf(cmd.Context(), bucket, args[0])
			if err != nil {
				return err
			}
			var answers []dirWhy
			err = eachFolder(cmd.Context(), dirs, func(dir string, _ bool) error {
				a, err := q.ask(cmd.Context(), bucket, dir)
				if err == nil {
					answers = append(answers, a)
				}
				return err
			})
			if len(answers) == 0 {
				return err
			}
			return errors.Join(printWhy(cmd.OutOrStdout(), answers, asJSON, len(dirs) > 1), err)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&q.keys, "key", nil, "explain the block with this key, as by \"kvlane store ls\"; repeatable")
	f.StringVar(&q.tokens, "tokens", "", "explain the blocks of the prompt with these token ids, as 1,2,3")
	f.StringVar(&q.tokensFile, "tokens-file", "", "read the token ids from a file, separated by commas or white space, or as a JSON array")
	f.StringSliceVar(&q.hashes, "hashes", nil, "explain the blocks with these hashes of the engine, in hexadecimal, in the order of the prompt")
	f.IntVar(&q.blockTokens, "block-tokens", 0, "tokens per block, for a directory without identities")
	f.StringArrayVar(&q.expect, "expect", nil, "a field of the engine's identity, as dtype=bfloat16; folders with another one are named; repeatable")
	f.BoolVar(&asJSON, "json", false, jsonOfFolders)
	return cmd
}

// parse checks the flags. It returns a usage error if nothing is asked.
func (q *question) parse() error {
	kinds := 0
	for _, given := range []bool{len(q.keys) > 0, q.tokens != "", q.tokensFile != "", len(q.hashes) > 0} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		return usagef("store why: give the blocks by one of --key KEY, --tokens IDS, --tokens-file FILE and --hashes HASHES")
	}
	for _, text := range q.keys {
		key, err := block.ParseKey(text)
		if err != nil {
			return usagef("store why: --key %s: %v", text, err)
		}
		q.blocks = append(q.blocks, key)
	}
	for _, text := range q.hashes {
		h, err := hex.DecodeString(text)
		if err != nil || len(h) == 0 {
			return usagef("store why: --hashes: %q is not hexadecimal", text)
		}
		q.engine = append(q.engine, h)
	}
	text, flag := q.tokens, "--tokens"
	if q.tokensFile != "" {
		b, err := os.ReadFile(q.tokensFile)
		if err != nil {
			return usagef("store why: --tokens-file: %v", err)
		}
		text, flag = string(b), "--tokens-file"
	}
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n[]", r) }) {
		id, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return usagef("store why: %s: %q is not a token id", flag, f)
		}
		q.prompt = append(q.prompt, id)
	}
	if len(q.blocks)+len(q.engine)+len(q.prompt) == 0 {
		return usagef("store why: %s has no token id", flag)
	}
	return q.parseIdentity()
}

// parseIdentity parses --expect.
func (q *question) parseIdentity() error {
	q.identity = make(map[string]any)
	for _, text := range q.expect {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return usagef("store why: --expect %s: give FIELD=VALUE", text)
		}
		q.identity[name] = value
		if n, err := strconv.Atoi(value); err == nil && slices.Contains(identityNumbers, name) {
			q.identity[name] = n
		}
	}
	_, err := q.expected(block.Identity{})
	return err
}

var identityNumbers = []string{"layer_first", "layer_end", "head_first", "head_end", "heads", "head_size", "block_tokens"}

// expected returns a folder's identity with the fields of --expect.
func (q *question) expected(found block.Identity) (block.Identity, error) {
	if dtype, ok := q.identity["dtype"].(string); ok {
		if name, err := block.ParseDType(dtype); err == nil {
			q.identity["dtype"] = name
		}
	}
	text, err := json.Marshal(q.identity)
	if err != nil {
		return found, err
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	want := found
	if err := dec.Decode(&want); err != nil {
		return found, usagef("store why: --expect: %v; the fields are those of the identity in kvlane store stat DIR --json", err)
	}
	if _, given := q.identity["salt"]; given {
		want = file.PublicIdentity(want)
	}
	return want, nil
}

// dirWhy is the output of "kvlane store why" for a directory.
type dirWhy struct {
	Directory string `json:"directory"`
	Verdict   string `json:"verdict"`
	// Differs has the fields in which the directory's identity differs from --expect. The blocks
	// are then not explained.
	Differs []string   `json:"identity_differs,omitempty"`
	Blocks  []blockWhy `json:"blocks,omitempty"`
	// Removals is the number of removals that the directory has recorded, and Damaged that of
	// damaged places between them.
	Removals int64 `json:"recorded_removals"`
	Damaged  int64 `json:"damaged_records,omitempty"`
	// Owners are the explanations of the processes that have the directory open.
	Owners []ownerWhy `json:"owners,omitempty"`

	stored int // blocks of the prefix
	known  bool
	next   string // advice if nothing is known about the blocks, or ""
}

// blockWhy is a block in the output.
type blockWhy struct {
	Block int    `json:"block"`
	Group string `json:"page_group,omitempty"`
	Key   string `json:"key"`
	Text  string `json:"explanation"`
	tier.Explanation
}

// ask explains the blocks of a directory.
func (q *question) ask(ctx context.Context, b bucketAccess, dir string) (w dirWhy, err error) {
	w.Directory = dir
	var counts []int // blocks of each group; nil for keys
	a, err := keeperOf(b, dir).why(ctx, dir, func(m *file.Marker) (keys []block.Key, err error) {
		if w.Differs, err = q.differs(m); err != nil || len(w.Differs) > 0 {
			return nil, err
		}
		keys, counts, err = q.keysOf(m)
		return keys, err
	})
	if err != nil {
		return w, err
	}
	w.Removals, w.Damaged = a.Records, a.Damaged
	if len(w.Differs) > 0 {
		w.Verdict = "it holds blocks of another identity: " + strings.Join(w.Differs, "; ")
		return w, nil
	}
	kind := string(a.Marker.Kind)
	name := map[string]string{"kvlane block directory": "file", "kvlane log directory": "log"}[kind]
	if name == "" {
		name = "object"
	}
	whys := make([]tier.Why, len(a.Keys))
	for i, key := range a.Keys {
		formats := a.Marker.Formats()
		whys[i] = tier.Why{Key: key, Other: formats.Group(key) < 0, Tiers: []tier.InTier{{Tier: name, Explanation: a.Blocks[i]}}}
		w.Blocks = append(w.Blocks, blockWhy{Block: i, Key: key.String(), Text: whys[i].String(), Explanation: a.Blocks[i]})
		w.known = w.known || a.Blocks[i].State != tier.Absent || a.Blocks[i].Removed != nil
	}
	w.judge(&a.Marker, whys, counts)
	switch {
	case len(a.Keys) == 0:
		w.Verdict += ": the prompt has " + counted(len(q.prompt), "token", "tokens") + ", fewer than a block"
	case counts == nil:
		w.next = "a key includes the identity: ask by --tokens or --hashes, or compare it with the keys of kvlane store ls"
	default:
		w.next = "compare the engine's identity with that of the folders: --expect FIELD=VALUE, fields as in kvlane store stat --json"
	}
	w.consult(askWhy(ctx, keeperOf(b, dir), dir, a.Keys))
	return w, nil
}

// consult adds the explanations of the owners. The verdict names the first owner that knows more
// than the directory.
func (w *dirWhy) consult(owners []ownerWhy) {
	w.Owners = owners
	if at := slices.IndexFunc(owners, func(o ownerWhy) bool { return o.knows() }); at >= 0 && !w.known {
		w.Verdict += "; " + owners[at].Process + ": " + owners[at].text()
		w.next = ""
	}
}

// judge sets the verdict: that of the page group with the shortest stored prefix.
func (w *dirWhy) judge(m *file.Marker, whys []tier.Why, counts []int) {
	if counts == nil {
		counts = []int{len(whys)}
	}
	tokens := -1
	for g, from := 0, 0; g < len(counts); from, g = from+counts[g], g+1 {
		group := whys[from : from+counts[g]]
		n, name, each := 0, "", 1
		for n < len(group) && group[n].Stored() {
			n++
		}
		if id := m.Groups[g].Identity; id != nil {
			each = id.BlockTokens
			name = id.Group
		}
		for i := range group {
			w.Blocks[from+i].Block = i
			if len(counts) > 1 {
				w.Blocks[from+i].Group = name
			}
		}
		if tokens >= 0 && n*each >= tokens {
			continue
		}
		tokens, w.stored, w.Verdict = n*each, n, tier.Verdict(group)
		if len(counts) > 1 {
			w.Verdict = fmt.Sprintf("page group %q: %s", name, w.Verdict)
		}
	}
}

// differs returns the fields in which every page group of a directory differs from --expect. A page
// group that is selected by its name is compared alone.
func (q *question) differs(m *file.Marker) (fields []string, err error) {
	if len(q.identity) == 0 {
		return nil, nil
	}
	for _, g := range m.Groups {
		if g.Identity == nil {
			return nil, usagef("store why: the directory has no identity in words, only the digest %s: leave out --expect", g.Digest)
		}
		want, err := q.expected(*g.Identity)
		if err != nil {
			return nil, err
		}
		d := want.Diff(*g.Identity)
		if len(d) == 0 {
			return nil, nil
		}
		if fields == nil || len(d) < len(fields) {
			fields = d
		}
	}
	return fields, nil
}

// keysOf returns the keys of the blocks in a directory, and their number in each page group, or nil
// for keys of --key.
func (q *question) keysOf(m *file.Marker) (keys []block.Key, counts []int, err error) {
	if len(q.blocks) > 0 {
		return q.blocks, nil, nil
	}
	formats := m.Formats()
	for g := range formats {
		var some []block.Key
		for _, h := range q.engine {
			some = append(some, formats.Key(g, h))
		}
		if len(q.prompt) > 0 {
			tokens := q.blockTokens
			if id := m.Groups[g].Identity; id != nil && tokens == 0 {
				tokens = id.BlockTokens
			}
			if tokens == 0 {
				return nil, nil, usagef("store why: the directory has no identity in words: give --block-tokens NUMBER")
			}
			if some, err = formats.TokenKeys(g, q.prompt, tokens); err != nil {
				return nil, nil, err
			}
		}
		keys, counts = append(keys, some...), append(counts, len(some))
	}
	return keys, counts, nil
}

// printWhy prints the answers, that of the directory with most of the prompt first.
func printWhy(w io.Writer, answers []dirWhy, asJSON, several bool) error {
	slices.SortStableFunc(answers, func(a, b dirWhy) int { return b.rank() - a.rank() })
	switch {
	case asJSON && !several:
		return printResult(w, true, answers[0], nil)
	case asJSON:
		return printResult(w, true, answers, nil)
	}
	for i := range answers {
		rows := answers[i].rows(several, i == 0)
		if err := printResult(w, false, nil, rows); err != nil {
			return err
		}
	}
	return nil
}

// rank orders directories by what they know of the blocks.
func (w *dirWhy) rank() int {
	switch {
	case len(w.Differs) > 0:
		return -len(w.Differs)
	case w.known:
		return 2 + w.stored
	}
	return 1
}

// rows returns the verdict, and the table of blocks if the directory knows something about them.
func (w *dirWhy) rows(several, first bool) (rows [][2]string) {
	verdict := w.Verdict
	if several {
		verdict = w.Directory + ": " + verdict
	}
	rows = append(rows, [2]string{"verdict", verdict})
	if !w.known && !first {
		return rows
	}
	if len(w.Blocks) > 1 {
		for i := range w.Blocks {
			b := &w.Blocks[i]
			name := fmt.Sprintf("block %d", b.Block)
			if b.Group != "" {
				name += ", " + b.Group
			}
			rows = append(rows, [2]string{name, b.Key[:12] + "... " + b.Text})
		}
	}
	for _, o := range w.Owners {
		rows = append(rows, [2]string{present.Name(o.Process), o.text()})
	}
	if w.Damaged > 0 {
		rows = append(rows, [2]string{"note", counted(int(w.Damaged), "damaged place", "damaged places") + " in the record of removals were skipped"})
	}
	if !w.known && w.next != "" {
		rows = append(rows, [2]string{"next", w.next})
	}
	return rows
}

package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/errdefs"
)

// Kinds of KV, values of Identity.Layout.
const (
	LayoutKV  = "kv"  // a layer has a K plane and a V plane
	LayoutMLA = "mla" // a layer has one plane of latents
	// LayoutState is one plane per layer: the recurrent state (Mamba, linear attention) at the end
	// of the block.
	LayoutState = "state"
)

// identityContext separates identity digests from other uses of BLAKE3. It changes with the
// encoding.
const identityContext = "github.com/kvlane/kvlane 2026-11 block identity v1"

// maxText bounds the strings of an identity, in bytes.
const maxText = 1024

// Identity describes the contents of blocks. Blocks are interchangeable only if all fields are
// equal, so every field affects every key. The rank is not a field, because KV that is equal on
// several ranks, such as MLA's latents, must be found by each of them.
type Identity struct {
	Model    string `json:"model"`    // name in the engine, "meta-llama/Llama-3.1-8B"
	Revision string `json:"revision"` // of the weights; may be empty
	DType    string `json:"dtype"`    // of the KV cache, a name of DTypes
	Layout   string `json:"layout"`   // kind of KV: LayoutKV, LayoutMLA or LayoutState

	// Layers of the blocks: [LayerFirst, LayerEnd).
	LayerFirst int `json:"layer_first"`
	LayerEnd   int `json:"layer_end"`
	// KV heads of the blocks: [HeadFirst, HeadEnd).
	HeadFirst int `json:"head_first"`
	HeadEnd   int `json:"head_end"`
	// Heads is the number of KV heads of the whole model. Zero means that the blocks contain all
	// heads.
	Heads       int `json:"heads,omitempty"`
	HeadSize    int `json:"head_size"`    // elements per head
	BlockTokens int `json:"block_tokens"` // tokens per block

	Adapter string `json:"adapter"` // LoRA adapter; empty for the base model
	Salt    string `json:"salt"`    // tenant; different salts never share blocks

	// Group is the page group of a hybrid model. Layers are the model's layers in the group, as
	// written by FormatLayers. Both are empty for a model with one group.
	Group  string `json:"group,omitempty"`
	Layers string `json:"group_layers,omitempty"`
}

// FormatLayers formats ascending layers as "0-3,8".
func FormatLayers(layers []int) string {
	var b strings.Builder
	for i := 0; i < len(layers); i++ {
		first := i
		for i+1 < len(layers) && layers[i+1] == layers[i]+1 {
			i++
		}
		if first > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, layers[first])
		if i > first {
			fmt.Fprintf(&b, "-%d", layers[i])
		}
	}
	return b.String()
}

// Validate reports all errors of the identity, joined. They wrap ErrInvalid.
func (id Identity) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("identity: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if id.Model == "" {
		bad("the model has no name")
	}
	for _, f := range append(id.texts(), id.groupTexts()...) {
		if len(f.value) > maxText {
			bad("%s has %d bytes, more than %d", f.name, len(f.value), maxText)
		}
		if !utf8.ValidString(f.value) {
			bad("%s %q is not UTF-8: encode it", f.name, clip(f.value))
		}
	}
	if _, err := DTypeBytes(id.DType); err != nil {
		errs = append(errs, fmt.Errorf("identity: %w", err))
	}
	if id.Layout != LayoutKV && id.Layout != LayoutMLA && id.Layout != LayoutState {
		bad("kind of KV %q is not one of %q, %q and %q", clip(id.Layout), LayoutKV, LayoutMLA, LayoutState)
	}
	if (id.Group == "") != (id.Layers == "") {
		bad("page group %q with layers %q: must both be set or both be empty", clip(id.Group), clip(id.Layers))
	}
	if id.LayerFirst < 0 || id.LayerEnd <= id.LayerFirst {
		bad("layers [%d, %d) are an empty or negative range", id.LayerFirst, id.LayerEnd)
	}
	if id.HeadFirst < 0 || id.HeadEnd <= id.HeadFirst {
		bad("heads [%d, %d) are an empty or negative range", id.HeadFirst, id.HeadEnd)
	}
	if id.Heads != 0 && id.Heads < id.HeadEnd {
		bad("heads [%d, %d) are outside the model's %d", id.HeadFirst, id.HeadEnd, id.Heads)
	}
	if id.HeadSize <= 0 {
		bad("head size %d is not positive", id.HeadSize)
	}
	if id.BlockTokens <= 0 {
		bad("block tokens %d is not positive", id.BlockTokens)
	}
	return errors.Join(errs...)
}

// Digest returns the digest of the identity for keys and headers. It covers every field, valid or
// not.
func (id Identity) Digest() Digest {
	// Each string is preceded by its length, and each number has 8 bytes. Therefore different
	// fields always have different encodings.
	var buf [512]byte
	b := buf[:0]
	for _, f := range id.texts() {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f.value)))
		b = append(b, f.value...)
	}
	for _, f := range id.numbers() {
		b = binary.LittleEndian.AppendUint64(b, uint64(f.value))
	}
	// Blocks of all heads and without a page group keep the encoding of versions without these
	// fields. A number follows both texts, so the encoding stays unambiguous.
	heads := id.modelHeads()
	if heads != 0 || id.Group != "" || id.Layers != "" {
		for _, f := range id.groupTexts() {
			b = binary.LittleEndian.AppendUint64(b, uint64(len(f.value)))
			b = append(b, f.value...)
		}
	}
	if heads != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(heads))
	}
	var d Digest
	blake3.DeriveKey(identityContext, b, d[:])
	return d
}

// Key returns id.Digest().Key(engineHash). To make many keys, keep the digest.
func (id Identity) Key(engineHash []byte) Key { return id.Digest().Key(engineHash) }

// Diff describes each field in which other differs from id, as "dtype: expected bfloat16, found
// float16". It never contains the salt.
func (id Identity) Diff(other Identity) []string {
	var out []string
	a, b := append(id.texts(), id.groupTexts()...), append(other.texts(), other.groupTexts()...)
	for i := range a {
		switch {
		case a[i].value == b[i].value:
		case a[i].name == "salt":
			out = append(out, "salt: another one")
		default:
			out = append(out, fmt.Sprintf("%s: expected %q, found %q", a[i].name, clip(a[i].value), clip(b[i].value)))
		}
	}
	m, n := id.numbers(), other.numbers()
	for i := range m {
		if m[i].value != n[i].value {
			out = append(out, fmt.Sprintf("%s: expected %d, found %d", m[i].name, m[i].value, n[i].value))
		}
	}
	if h, o := id.modelHeads(), other.modelHeads(); h != o {
		out = append(out, fmt.Sprintf("heads of the model: expected %s, found %s", headsText(h), headsText(o)))
	}
	return out
}

// IdentityError is returned if blocks have an unexpected identity. It wraps ErrMismatch.
type IdentityError struct{ Want, Found Identity }

// Error describes each field that differs.
func (e *IdentityError) Error() string {
	return strings.Join(e.Want.Diff(e.Found), "; ") + ": " + errdefs.ErrMismatch.Error()
}

// Unwrap returns ErrMismatch.
func (e *IdentityError) Unwrap() error { return errdefs.ErrMismatch }

type textField struct{ name, value string }

type numberField struct {
	name  string
	value int
}

// texts and numbers return the fields in the order of the canonical encoding.
func (id Identity) texts() []textField {
	return []textField{
		{"model", id.Model},
		{"revision", id.Revision},
		{"dtype", id.DType},
		{"kind of KV", id.Layout},
		{"adapter", id.Adapter},
		{"salt", id.Salt},
	}
}

// groupTexts returns the text fields of page groups.
func (id Identity) groupTexts() []textField {
	return []textField{{"page group", id.Group}, {"layers of the page group", id.Layers}}
}

func headsText(n int) string {
	if n == 0 {
		return "those of the blocks"
	}
	return strconv.Itoa(n)
}

// modelHeads returns the number of KV heads of the model, or 0 if the blocks contain all of them.
func (id Identity) modelHeads() int {
	if id.Heads == id.HeadEnd-id.HeadFirst {
		return 0
	}
	return id.Heads
}

func (id Identity) numbers() [6]numberField {
	return [...]numberField{
		{"first layer", id.LayerFirst},
		{"end layer", id.LayerEnd},
		{"first head", id.HeadFirst},
		{"end head", id.HeadEnd},
		{"head size", id.HeadSize},
		{"block tokens", id.BlockTokens},
	}
}

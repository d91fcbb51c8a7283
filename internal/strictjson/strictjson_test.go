package strictjson_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvlane/kvlane/internal/strictjson"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": "caf\u00e9", "b": [1, -2.5e3, true, null, {"a": {}}, [], ""]}`: "",
		`"\ud83d\ude00 and \\ud800 and \" and 😀"`:                             "",
		` 7 `:                            "",
		"\"caf\xe9\"":                    "byte 5 (0xe9) is not UTF-8",
		"{\"caf\xe9\": 1}":               "is not UTF-8",
		`["\udce9"]`:                     `byte 3: \udce9 is half`,
		`"\ud800"`:                       "half of a surrogate pair",
		`"\ud800\ud800"`:                 "half of a surrogate pair",
		`"\ud800x"`:                      "half of a surrogate pair",
		`"\ud800\n"`:                     "half of a surrogate pair",
		`"\ude00\ud83d"`:                 "half of a surrogate pair",
		`{"a": 1, "b": 2, "a": 3}`:       `key "a" is given twice`,
		`{"a": 1, "\u0061": 3}`:          `key "a" is given twice`,
		`[{"x": {"y": 1, "y": 1}}]`:      `key "y" is given twice`,
		`[{"x": 1}, {"x": 1}, {"x": 2}]`: "",
		`{"a": 1`:                        "unexpected end",
		`{} {}`:                          "invalid character",
		``:                               "unexpected end",
	} {
		err := strictjson.Check([]byte(text))
		switch {
		case want == "" && err != nil:
			t.Errorf("%q is refused: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

// Strings in accepted text encode to the same text after decoding, as far as a decoder can tell.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{"a": ["\ud83d\ude00", 1e3, null], "b": {"a": "\\"}}`))
	f.Add([]byte("[\"caf\xe9\"]"))
	f.Add([]byte(`{"a": 1, "a": 2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if strictjson.Check(text) != nil {
			return
		}
		var v any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // a number may exceed the range of a float
		if err := d.Decode(&v); err != nil {
			t.Fatalf("accepted %q, which does not decode: %v", text, err)
		}
		if !utf8.Valid(text) {
			t.Fatalf("accepted %q, which is not UTF-8", text)
		}
		if s, ok := v.(string); ok && strings.ContainsRune(s, utf8.RuneError) && !strings.ContainsRune(string(text), utf8.RuneError) &&
			!strings.Contains(strings.ToLower(string(text)), `\ufffd`) {
			t.Fatalf("%q became %q", text, s)
		}
	})
}

package metadata_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

func member(name, address string, weight int) metadata.Member {
	return metadata.Member{Name: name, Address: address, Weight: weight}
}

func TestParseMembers(t *testing.T) {
	m, err := metadata.ParseMembers("two:7001=3, one:7000,[fe80::1]:9=65536")
	if err != nil {
		t.Fatal(err)
	}
	want := []metadata.Member{
		member("[fe80::1]:9", "[fe80::1]:9", 65536), member("one:7000", "one:7000", 1), member("two:7001", "two:7001", 3),
	}
	got, changed := m.List()
	if !slices.Equal(got, want) || changed != nil {
		t.Errorf("members %+v", got)
	}
	if s := m.String(); s != "[fe80::1]:9=65536,one:7000,two:7001=3" {
		t.Errorf("String() returned %s", s)
	}
}

func TestMembersRefuse(t *testing.T) {
	for _, s := range []string{
		"", ",", "a:1,", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:http", "a:1=0", "a:1=", "a:1=-1", "a:1=65537", "a:1=x", "a:1=2=3", "a:1,b:1,a:1=2",
		"a:1=18446744073709551617", strings.Repeat("a:1,", 1<<10) + "b:1",
	} {
		if _, err := metadata.ParseMembers(s); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%.40q: %v", s, err)
		}
	}
	for _, list := range [][]metadata.Member{nil, {member("", "a:1", 1)}, {member("a", "b:1", 1), member("a", "c:1", 1)}, make([]metadata.Member, 1<<10+1)} {
		if _, err := metadata.NewStaticMembers(list); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d members: %v", len(list), err)
		}
	}
	list := []metadata.Member{member("b", "x:1", 1), member("a", "x:1", 2)}
	m, err := metadata.NewStaticMembers(list)
	if err != nil {
		t.Fatal(err)
	}
	if list[0].Name != "b" {
		t.Error("the caller's list was sorted")
	}
	if got, _ := m.List(); got[0].Name != "a" || got[1].Name != "b" {
		t.Errorf("the members are not sorted by name: %+v", got)
	}
}

func FuzzParseMembers(f *testing.F) {
	for _, s := range []string{"a:1", "a:1=2,b:2", "[::1]:80=65536", "a:1=", ",", "a:01=01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := metadata.ParseMembers(s)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := metadata.ParseMembers(m.String())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%q became %q, which is %+v, %v", s, m, again, err)
		}
	})
}

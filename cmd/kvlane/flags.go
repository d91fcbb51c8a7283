package main

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/settings"
)

// settingValue is the value of a flag for a setting.
type settingValue struct {
	setting *settings.Setting
	text    string
}

// Set accepts any text of the setting's kind. applySettings checks the value further, so that one
// error can list all errors of a command line.
func (v *settingValue) Set(text string) error {
	err := v.setting.CheckKind(text)
	if err == nil {
		v.text = text
	}
	return err
}

// String returns the text. Sizes are formatted with the largest unit that needs no fraction.
func (v *settingValue) String() string {
	if v.setting == nil || v.setting.Kind != settings.Size {
		return v.text
	}
	n, err := present.ParseSize(v.text)
	if err != nil {
		return v.text
	}
	return sizeValue{&n}.String()
}

// Type returns the name of the value's type for help texts.
func (v *settingValue) Type() string {
	switch v.setting.Kind {
	case settings.Bool:
		return "bool"
	case settings.Int:
		return "int"
	case settings.Size:
		return "size"
	default:
		return "string"
	}
}

// settingList is the value of a flag for a setting with several values.
type settingList struct {
	setting *settings.Setting
	texts   []string
}

// Set adds a text. For settings.List it adds several texts separated by commas.
func (v *settingList) Set(text string) error {
	texts := []string{text}
	if v.setting.Kind == settings.List {
		texts = strings.Split(text, ",")
	}
	for _, t := range texts {
		if err := v.Append(t); err != nil {
			return err
		}
	}
	return nil
}

func (v *settingList) Append(text string) error {
	err := v.setting.CheckKind(text)
	if err == nil {
		v.texts = append(v.texts, text)
	}
	return err
}

func (v *settingList) Replace(texts []string) error {
	v.texts = nil
	for _, t := range texts {
		if err := v.Append(t); err != nil {
			return err
		}
	}
	return nil
}

func (v *settingList) GetSlice() []string { return v.texts }
func (v *settingList) String() string     { return strings.Join(v.texts, ",") }

// Type returns the name of the value's type for help texts.
func (v *settingList) Type() string {
	if v.setting.Kind == settings.List {
		return "strings"
	}
	return "string"
}

// registerSettings registers the flags of settings.
func registerSettings(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		s := settings.ByName(name)
		usage := usageOf(name)
		if s.IsList() {
			flags.Var(&settingList{setting: s}, name, usage)
			continue
		}
		f := flags.VarPF(&settingValue{s, s.Initial()}, name, "", usage)
		if s.Kind == settings.Bool {
			f.NoOptDefVal = strconv.FormatBool(true)
		}
	}
}

// usageOf returns the help text of a setting's flag.
func usageOf(name string) string {
	s := settings.ByName(name)
	usage := s.Doc
	if s.Default != "" && s.Default != s.Initial() && s.Default != "none" {
		usage += " (default: " + s.Default + ")"
	}
	return strings.ReplaceAll(usage, "`", "")
}

// applySettings stores the values of flags in the fields of c. The error lists the flags with
// invalid values.
func applySettings(c *kvlane.Config, flags *pflag.FlagSet, names ...string) error {
	var values []settings.Value
	for _, name := range names {
		f := flags.Lookup(name)
		if f == nil {
			continue
		}
		v := settings.Value{Setting: settings.ByName(name), Texts: flagValues(f)}
		if len(v.Texts) == 0 && !v.IsList() && f.DefValue != "" {
			v.Texts = []string{""} // an empty text for an empty list
		}
		values = append(values, v)
	}
	return settings.Apply(c, values)
}

// flagValues returns the values of a flag. It returns none if the flag is empty.
func flagValues(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	if f.Value.String() == "" {
		return []string{}
	}
	return []string{f.Value.String()}
}

package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/internal/present"
)

// fitHelp makes the help of root and of the commands below it fit the width of the terminal.
func fitHelp(root *cobra.Command) {
	print := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		w := cmd.OutOrStdout()
		width := present.ScreenOf(w).Width
		if width <= 0 {
			print(cmd, args)
			return
		}
		var text bytes.Buffer
		cmd.SetOut(&text)
		print(cmd, args)
		cmd.SetOut(w)
		_, _ = io.WriteString(w, fitText(text.String(), width)) // output keeps the error
	})
}

// helpItem is a paragraph of a help text, or an item of a list with its description.
type helpItem struct {
	lead, hang int // columns of the first and of further lines
	lines      []string
}

// described matches the name of a list's item and the gap before its description.
var described = regexp.MustCompile(`^ +\S+(?: \S+)*? {2,}`)

// fitText wraps the lines of a help text that are wider than width.
func fitText(text string, width int) string {
	var b strings.Builder
	var item *helpItem
	flush := func() {
		if item != nil {
			item.write(&b, width)
			item = nil
		}
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		lead := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case strings.TrimSpace(line) == "":
			flush()
			b.WriteByte('\n')
		case item != nil && lead == item.hang && (lead > item.lead || lead == 0):
			item.lines = append(item.lines, line)
		default:
			flush()
			item = &helpItem{lead: lead, hang: lead, lines: []string{line}}
			if name := described.FindString(line); name != "" {
				item.hang = utf8.RuneCountInString(name)
			}
		}
	}
	flush()
	return b.String()
}

// write writes the item. Lines of an item that fits stay as they are.
func (h *helpItem) write(b *strings.Builder, width int) {
	fits := true
	for _, line := range h.lines {
		fits = fits && utf8.RuneCountInString(line) <= width
	}
	if fits {
		b.WriteString(strings.Join(h.lines, "\n") + "\n")
		return
	}
	first := []rune(h.lines[0])
	words := strings.Fields(string(first[h.hang:]) + " " + strings.Join(h.lines[1:], " "))
	line, hang, end := string(first[:h.hang]), h.hang, ""
	switch item := h.lead > 0 && h.hang == h.lead; {
	case item && words[0] == "kvlane":
		hang, end = h.lead+4, ` \` // a shell continues the command
	case item:
		hang = h.lead + 2
	case hang > width-20: // the description begins in the next line
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		hang = h.lead + 6
		line = strings.Repeat(" ", hang)
	}
	empty := true
	for _, word := range words {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word+end) > width {
			b.WriteString(line + end + "\n")
			line, empty = strings.Repeat(" ", hang), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
}

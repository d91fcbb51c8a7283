// Command metricsdoc writes the catalog of metrics as a Markdown page, to the file named as its argument.
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/kvlane/kvlane/telemetry"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: metricsdoc FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func write(path string) error {
	var page bytes.Buffer
	if err := telemetry.WriteTable(&page); err != nil {
		return err
	}
	return os.WriteFile(path, page.Bytes(), 0o644)
}

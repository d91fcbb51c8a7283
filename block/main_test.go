package block_test

import (
	"flag"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) { testkit.Main(m) }

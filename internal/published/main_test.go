package published

import (
	"flag"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write the README's figures and the chart anew")

func TestMain(m *testing.M) { testkit.Main(m) }

package testkit

import "go.uber.org/goleak"

func ignoreCurrent() goleak.Option { return goleak.IgnoreCurrent() }

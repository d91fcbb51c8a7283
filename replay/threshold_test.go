package replay

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

func TestThresholds(t *testing.T) {
	r := &Report{HitRate: 0.3, Requests: 100, Seconds: 2, LoadUS: Latency{10, 5000}, DumpUS: Latency{20, 30}, DurableUS: Latency{40, 50}, LagUS: Latency{60, 70}}
	for text, want := range map[string]struct {
		met  bool
		text string
	}{
		"hit_rate>0.3": {false, "0.3"}, "hit_rate >= 0.3": {true, "0.3"}, "hit_rate<3e-1": {false, "0.3"}, "hit_rate<=0.3": {true, "0.3"},
		"load_p99<5ms": {false, "5 ms"}, "load_p99 < 5.001ms": {true, "5 ms"}, "load_p50>=10us": {true, "10 µs"}, "dump_p50<1s": {true, "20 µs"},
		"dump_p99<29us": {false, "30 µs"}, "durable_p50<41us": {true, "40 µs"}, "durable_p99>1ms": {false, "50 µs"}, "lag_p50<60us": {false, "60 µs"},
		"lag_p99<=70us": {true, "70 µs"}, "time<1s": {false, "2 s"}, "requests_per_second>49": {true, "50"},
	} {
		th, err := ParseThreshold(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		r.Thresholds = nil
		err = r.Judge([]Threshold{th})
		if len(r.Thresholds) != 1 || r.Thresholds[0].Met != want.met || r.Thresholds[0].valueText != want.text || r.Thresholds[0].Threshold != text {
			t.Errorf("%s: %+v, want %+v", text, r.Thresholds, want)
		}
		if (err == nil) != want.met || err != nil && (!errors.Is(err, ErrThreshold) || !strings.Contains(err.Error(), text+" ("+want.text+")")) {
			t.Errorf("%s: error %v", text, err)
		}
		if th.NeedsSpeed() != strings.HasPrefix(text, "lag") {
			t.Errorf("%s: needs --speed: %v", text, th.NeedsSpeed())
		}
	}
	for text, want := range map[string]string{
		"": "hit_rate>=0.3", "hit_rate": "hit_rate>=0.3", "hit_rate=1": "hit_rate>=0.3", "speed>1": "one of hit_rate, requests_per_second", "hit_rate>": "is a number",
		"hit_rate>NaN": "is a number", "hit_rate>=30%": "is a number", "load_p99<5": "is a time", "hit_rate<>1": "is a number", "<5ms": "one of",
	} {
		if _, err := ParseThreshold(text); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want ErrInvalid that contains %q", text, err, want)
		}
	}
	if err := r.Judge([]Threshold{{}}); err != nil {
		t.Errorf("a threshold without a bound: %v", err)
	}
}

// A time is reported in the unit of its threshold, and the report contains the unit.
func TestDefectThresholdHasNoUnit(t *testing.T) {
	r := &Report{HitRate: 0.3, Seconds: 90, LoadUS: Latency{10, 5250}}
	for text, want := range map[string]ThresholdReport{
		"load_p99<6ms": {Value: 5.25, Unit: "ms"}, "load_p99 < 6000us": {Value: 5250, Unit: "us"}, "load_p99<6000.5µs": {Value: 5250, Unit: "µs"}, "load_p99>.001s": {Value: 0.00525, Unit: "s"},
		"time<1m30.5s": {Value: 90, Unit: "s"}, "time<1h2m": {Value: 1.5, Unit: "m"}, "load_p50>=0": {Value: 10, Unit: "us"}, "hit_rate>0.2": {Value: 0.3},
	} {
		th, err := ParseThreshold(text)
		if err != nil {
			t.Fatal(err)
		}
		r.Thresholds = nil
		err = r.Judge([]Threshold{th})
		if got := r.Thresholds[0]; err != nil || got.Value != want.Value || got.Unit != want.Unit {
			t.Errorf("%s: %v %q, want %v %q; %v", text, got.Value, got.Unit, want.Value, want.Unit, err)
		}
	}
}

func FuzzParseThreshold(f *testing.F) {
	for _, s := range []string{"hit_rate>=0.3", "load_p99<5ms", "<", "time>", "lag_p50<=1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		th, err := ParseThreshold(s)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		var r Report
		if err := r.Judge([]Threshold{th}); (err == nil) != r.Thresholds[0].Met || r.Thresholds[0].Value != 0 {
			t.Errorf("%q: %v, met %v, value %v", s, err, r.Thresholds[0].Met, r.Thresholds[0].Value)
		}
	})
}

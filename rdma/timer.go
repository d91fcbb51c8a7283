package rdma

import "time"

// AckTimeout returns the duration of a QPAttr.Timeout code: 4.096 us times 2 to the code, which is
// at most 31. It returns zero for code 0, which means no limit. Devices may wait up to four times
// as long (InfiniBand specification, 9.7.6.1.3).
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << min(code, maxTimerCode)
}

// AckTimeoutCode returns the smallest code whose duration is at least d, or 31 (2.4 hours) if d is
// longer.
func AckTimeoutCode(d time.Duration) uint8 {
	for code := uint8(1); code < maxTimerCode; code++ {
		if AckTimeout(code) >= d {
			return code
		}
	}
	return maxTimerCode
}

// maxTimerCode is the largest code of 5 bits.
const maxTimerCode = 31

// rnrTimers are the receiver-not-ready delays by code, in units of 10 us (InfiniBand specification,
// table 45).
var rnrTimers = [maxTimerCode + 1]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
	8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns the duration of a QPAttr.MinRNRTimer code: from 10 us for code 1 to 491.52 ms
// for code 31, and 655.36 ms for code 0.
func RNRTimer(code uint8) time.Duration {
	return rnrTimers[min(code, maxTimerCode)] * 10 * time.Microsecond
}

// RNRTimerCode returns the code with the smallest duration of at least d, or code 0, the longest.
func RNRTimerCode(d time.Duration) uint8 {
	for code := uint8(1); code <= maxTimerCode; code++ {
		if RNRTimer(code) >= d {
			return code
		}
	}
	return 0
}

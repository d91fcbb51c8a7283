package kernels

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
)

// source returns all CUDA C sources.
func source(t *testing.T) []byte {
	t.Helper()
	var all []byte
	for _, pattern := range []string{"*.cu", "*.cuh"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
	}
	return all
}

// fields returns the names of a struct's fields in order, in lower case and without underscores, as
// in the CUDA C.
func fields(args any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(args)) {
		names = append(names, strings.ToLower(f.Name))
	}
	return names
}

// number returns a struct of the type of args whose words are 1, 2, 3, and so on.
func number[T any](args T) T {
	v := reflect.ValueOf(&args).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(uint64(i + 1))
	}
	return args
}

// The parameters of each kernel have the names and the order of the fields of its arguments, and a
// launch has as many arguments.
func TestArgumentsAreTheKernelsParameters(t *testing.T) {
	src := source(t)
	list, paged, pattern := number(device.ListArgs{}), number(device.PagedArgs{}), number(device.PatternArgs{})
	plainList, plainPaged, fill := list, paged, pattern
	plainList.Sums, plainPaged.Sums, fill.Counts = 0, 0, 0
	launches := map[string]device.Kernel{}
	names := map[string][]string{}
	add := func(k device.Kernel, args any) { launches[k.Name], names[k.Name] = k, fields(args) }
	add(plainList.Kernel(device.KernelCopyList, 3), plainList)
	add(list.Kernel(device.KernelCopyListSum, 3), list)
	add(plainPaged.Kernel(device.KernelCopyPaged, 3), plainPaged)
	add(paged.Kernel(device.KernelCopyPagedSum, 3), paged)
	parts := number(device.PartsArgs{})
	add(parts.Kernel(device.KernelCopyParts, 3), parts)
	add(parts.Kernel(device.KernelCopyPartsSum, 3), parts)
	add(fill.Kernel(), fill)
	add(pattern.Kernel(), pattern)
	for _, k := range Kernels() {
		launch, ok := launches[k.Name]
		if !ok || launch.NArgs != k.Args {
			t.Errorf("%s takes %d arguments, a launch of it has %d", k.Name, k.Args, launch.NArgs)
		}
		for i, v := range launch.Args[:launch.NArgs] {
			if v != uint64(i+1) {
				t.Errorf("%s: argument %d is field %d", k.Name, i+1, v)
			}
		}
		found := regexp.MustCompile(k.Name + `\(([^)]*)\)`).FindSubmatch(src)
		if found == nil {
			t.Errorf("the source has no %s", k.Name)
			continue
		}
		params := strings.Split(strings.ReplaceAll(strings.ReplaceAll(string(found[1]), "u64 ", ""), "_", ""), ", ")
		if want := names[k.Name][:k.Args]; strings.Join(params, " ") != strings.Join(want, " ") {
			t.Errorf("%s has the parameters %v, its arguments are %v", k.Name, params, want)
		}
	}
	a := [device.MaxKernelArgs]uint64{1, 2, 3, 4, 5, 6, 7, 8}
	if device.ListArgsOf(&a) != list || device.PagedArgsOf(&a) != paged || device.PartsArgsOf(&a) != parts || device.PatternArgsOf(&a) != pattern {
		t.Error("the arguments of a launch differ from the given ones")
	}
}

// The sizes and offsets in the CUDA C equal those of package device.
func TestDescriptorsAreTheKernels(t *testing.T) {
	src := source(t)
	for _, want := range []string{
		fmt.Sprintf("PLANE = %d, PLANE_SUM = %d", device.PlaneDescBytes, device.PlaneSumDescBytes),
		fmt.Sprintf("descs + first * %d", device.CopyDescBytes),
		fmt.Sprintf(".pair * %d", device.PairBytes),
		"Plane{d, desc<FROM>(d), desc<FROM>(d + 8), desc<FROM>(d + 16), desc<FROM>(d + 24)}",
		"u64 base, stride, bytes, slot_off;",
		"unit.pair * desc<FROM>(pl.at + 40) + desc<FROM>(pl.at + 32)",
		"Piece{word[0], word[1], word[2],",
		"u64 dst, src, n, sums;",
		fmt.Sprintf("PART = %d, MOST_PARTS = %d, MOST_PLANES = %d", device.PartDescBytes, device.MaxParts, device.MaxPartPlanes),
		"make((u64)planes, d[1], d[3], lane_id())",
		"lane_id()), d[2], d[4], d[5], to_slots,",
		"SIZE == PLANE_SUM ? d[6] : 0}",
		fmt.Sprintf("store<0>(done + %d * (p * blocks + block), (u64)1)", device.PartDoneBytes),
	} {
		if !bytes.Contains(src, []byte(want)) {
			t.Errorf("the CUDA C has no %q", want)
		}
	}
}
